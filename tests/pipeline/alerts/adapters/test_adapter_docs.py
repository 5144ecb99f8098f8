"""The page of the adapters names each setting with its meaning, and its examples are taken."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tocsin.pipeline.alerts.adapters import ADAPTERS

PAGE = (Path(__file__).parents[4] / "docs/adapters.md").read_text(encoding="utf-8")
EXAMPLES = [yaml.safe_load(text)["receivers"] for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)]


@pytest.mark.parametrize("kind", ADAPTERS)
def test_each_setting_has_its_row(kind: str) -> None:
    properties: Any = ADAPTERS[kind].schema["properties"]
    for name, setting in properties.items():
        if name != "kind":
            assert f"| `{name}` | {setting['description']} |" in PAGE


@pytest.mark.parametrize("kind", ADAPTERS)
def test_each_kind_has_an_example_that_is_taken(kind: str) -> None:
    found = [settings for example in EXAMPLES for settings in example.values() if settings["kind"] == kind]
    assert found
    for settings in found:
        assert ADAPTERS[kind].make(settings, "receivers.example").kind == kind
