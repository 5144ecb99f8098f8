"""Routes files: a mistake is named by file, line and key; the right incidents go the right way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.pipeline.alerts.verdict_samples import verdict
from tocsin.pipeline.alerts.adapters import ADAPTERS
from tocsin.pipeline.alerts.flood import FloodLimits
from tocsin.pipeline.alerts.notice import AlertSeverity
from tocsin.pipeline.alerts.route_schema import schema_of
from tocsin.pipeline.alerts.routes import Route, RouteConfig, RouteMatch, load_routes
from tocsin.schemas.errors import ConfigError, ManySettingsError
from tocsin.schemas.verdicts import ActionKind, FaultKind, VerdictState

FILE = """version: 1
receivers:
  hook:
    kind: webhook
    url: http://h/
    signing_key_env: KEY
routes:
  - name: all
    receiver: hook
    match: {fault: [hang, fail_stop], min_confidence: 0.5}
watchdog: {receiver: hook}
"""


def _load(folder: Path, text: str) -> RouteConfig:
    path = folder / "alerts.yaml"
    path.write_text(text)
    return load_routes(path, ADAPTERS)


def test_a_right_file_is_read(tmp_path: Path) -> None:
    config = _load(tmp_path, FILE)

    assert config.routes == (Route("all", "hook", RouteMatch(fault=("hang", "fail_stop"), min_confidence=0.5)),)
    assert config.watchdog is not None
    assert config.watchdog.every_seconds == 60
    assert config.receivers["hook"]["kind"] == "webhook"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("url:", "ulr:", ":5: receivers.hook.ulr"),
        ("http://h/", "ftp", ":5: receivers.hook.url"),
        ("hang", "hangg", ":10: routes.0.match.fault.0 = 'hangg'"),
        ("fault:", "falt:", ":10: routes.0.match.falt"),
        ("    receiver: hook", "    receiver: hok", ":9: routes.0.receiver = 'hok'"),
        ("kind: webhook", "kind: webhook\n    kind: slack", ":5: receivers.hook.kind = 'given twice'"),
        ("kind: webhook", "kind: telegraph", ":4: receivers.hook.kind = 'telegraph'"),
        ("0.5", "5", ":10: routes.0.match.min_confidence = 5"),
        ("    signing_key_env: KEY\n", "", ":3: receivers.hook.signing_key_file"),
        ("version: 1", "version: 2", ":1: version = 2"),
        ("routes:", "routs:", ":7: routs"),
        ("[hang", "[", ":10"),
        ("{receiver: hook}", "{receiver: hok}", ":11: watchdog.receiver"),
    ],
)
def test_a_mistake_is_named_by_line_and_key(tmp_path: Path, old: str, new: str, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        _load(tmp_path, FILE.replace(old, new, 1))

    assert f"alerts.yaml{words}" in str(error.value)


MANY = """version: 1
receivers:
  hook: {kind: webhook, ulr: http://h/, signing_key_env: KEY, timeout_seconds: ten}
  wall: {kind: webhok}
  pager:
    kind: pagerduty
    routing_key_env: PAGER
    routing_key_env: OTHER
routes:
  - {name: all, reciever: hook, math: {fault: hang}}
  - {name: some, receiver: pagr, match: {fault: hangg, cause: [nic_dropuot, ecc_error], state: closed}}
  - {name: some, receiver: pager}
  - {receiver: pager}
severities: [{match: {action: evikt}, severity: pge}]
watchdog: {receiver: pager}
limts: {}
"""


def test_all_mistakes_are_named_in_one_go_by_line_and_key_with_the_word_that_was_meant(tmp_path: Path) -> None:
    with pytest.raises(ManySettingsError) as error:
        _load(tmp_path, MANY)

    places = [one.setting.partition("alerts.yaml:")[2] for one in error.value.errors]
    assert sorted(places, key=lambda one: (int(one.partition(":")[0]), one)) == [
        "3: receivers.hook.timeout_seconds",
        "3: receivers.hook.ulr",
        "4: receivers.wall.kind",
        "8: receivers.pager.routing_key_env",
        "10: routes.0.math",
        "10: routes.0.reciever",
        "11: routes.1.match.cause.0",
        "11: routes.1.match.fault",
        "11: routes.1.match.state",
        "11: routes.1.receiver",
        "12: routes.2.name",
        "13: routes.3.name",
        "14: severities.0.match.action",
        "14: severities.0.severity",
        "15: watchdog.receiver",
        "16: limts",
    ]
    lines = [int(one.partition(":")[0]) for one in places]
    assert lines == sorted(lines)
    text = str(error.value)
    meant = ("url", "webhook", "match", "receiver", "nic_dropout", "hang", "pager", "evict", "page", "limits")
    assert [one for one in meant if f"(did you mean {one}?)" not in text] == []
    assert len(text.splitlines()) == len(places)


def test_a_secret_in_the_file_is_not_repeated(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        _load(tmp_path, FILE.replace("signing_key_env: KEY", "signing_key: hunter2hunter2"))

    assert ":6: receivers.hook.signing_key" in str(error.value)
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize("text", ["a: &a [*a]", "[1, 2]", "", "? [x]\n: 1", "x: \x00"])
def test_strange_files_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError):
        _load(tmp_path, text)


def test_the_published_schema_is_one_and_takes_the_file(tmp_path: Path) -> None:
    import yaml

    schema = schema_of(ADAPTERS)
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(yaml.safe_load(FILE), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(yaml.safe_load(FILE.replace("url:", "ulr:")), schema)


def _names(config: RouteConfig, **fields: Any) -> list[str]:
    return [one.name for one in config.routes_of(verdict(**fields))]


def test_confirmed_is_told_open_and_degraded_only_on_request() -> None:
    config = RouteConfig(
        {},
        (
            Route("open", "r", RouteMatch(state=("open",)), goes_on=True),
            Route("sick", "r", RouteMatch(fault=("degraded",)), goes_on=True),
            Route("host", "r", RouteMatch(host=("n1*",)), goes_on=True),
            Route("all", "r"),
            Route("never", "r"),
        ),
    )

    assert _names(config, host="n2") == ["open", "all"]
    assert _names(config, host="n12") == ["open", "host", "all"]
    assert _names(config, state=VerdictState.OPEN) == ["open"]
    assert _names(config, fault=FaultKind.DEGRADED) == ["sick"]
    assert _names(config, reason="canary") == []


def test_the_table_of_severities() -> None:
    config = RouteConfig({}, (Route("all", "r"),))

    assert config.severity_of(verdict(fault=FaultKind.HANG)) is AlertSeverity.PAGE
    slow = verdict(fault=FaultKind.FAIL_SLOW, action=ActionKind.NOTIFY)
    assert config.severity_of(slow) is AlertSeverity.TICKET
    assert config.severity_of(verdict(fault=FaultKind.FAIL_SLOW, action=ActionKind.EVICT)) is AlertSeverity.PAGE
    stage = config.rule_of(verdict(fault=FaultKind.FAIL_SLOW, cause="stage_imbalance", action=ActionKind.NOTIFY))
    assert (stage.severity, stage.is_once_an_attempt) == (AlertSeverity.INFORMATION, True)
    assert config.severity_of(verdict(fault=FaultKind.DEGRADED)) is AlertSeverity.INFORMATION


AM = "  am: {kind: alertmanager, urls: ['http://am/'], resend_seconds: 20}\n"
PAGER = "  pager: {kind: pagerduty, routing_key_env: KEY}\n"


@pytest.mark.parametrize(
    ("receiver", "watchdog", "words"),
    [
        (PAGER, "{receiver: pager}", ":12: watchdog.receiver = 'pager': must be a receiver that notices absence"),
        (AM, "{receiver: am, every_seconds: 41}", ":12: watchdog.every_seconds = 41: must be at most 40"),
        (AM, "{receiver: aam}", ":12: watchdog.receiver = 'aam'"),
        ("", "{receiver: hook, every_seconds: 1}", ":11: watchdog.every_seconds = 1"),
    ],
)
def test_a_watchdog_that_nobody_would_miss_is_refused(tmp_path: Path, receiver: str, watchdog: str, words: str) -> None:
    text = FILE.replace("routes:", f"{receiver}routes:").replace("{receiver: hook}", watchdog)
    with pytest.raises(ConfigError) as error:
        _load(tmp_path, text)

    assert words in str(error.value)


def test_the_options_of_floods_and_routes_are_read(tmp_path: Path) -> None:
    text = FILE.replace("    receiver: hook\n", "    receiver: hook\n    give_up_after_seconds: 600\n")
    text += "limits: {signature_count: 2, stale_seconds: 120}\n"
    text += "severities:\n  - {match: {cause: loader_stall}, severity: ticket, once_an_attempt: true}\n"
    config = _load(tmp_path, text)

    assert config.routes[0].give_up_after_seconds == 600
    assert config.limits == FloodLimits(signature_count=2)
    assert config.stale_seconds == 120
    assert config.severities[0].is_once_an_attempt
