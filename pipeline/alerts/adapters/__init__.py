"""Adapters: each delivers notices to one kind of receiver."""

from __future__ import annotations

from typing import Final

from tocsin.pipeline.alerts.adapters.alertmanager import ALERTMANAGER
from tocsin.pipeline.alerts.adapters.kinds import AdapterKind as AdapterKind  # re-exported
from tocsin.pipeline.alerts.adapters.pagerduty import PAGERDUTY
from tocsin.pipeline.alerts.adapters.slack import SLACK
from tocsin.pipeline.alerts.adapters.webhook import WEBHOOK

ADAPTERS: Final[dict[str, AdapterKind]] = {one.kind: one for one in (ALERTMANAGER, PAGERDUTY, WEBHOOK, SLACK)}
"""Word of the kind in the routes file -> kind of receiver."""
