"""The connector's messages are those that NVSentinel publishes."""

from __future__ import annotations

import re

from google.protobuf import descriptor_pb2
from hypothesis import given
from hypothesis import strategies as st

from tests.pipeline.actions.executors.nvsentinel_kit import PUBLISHED
from tocsin.pipeline.actions.executors.nvsentinel_messages import METHOD, ConnectorMessages, connector_file
from tocsin.schemas.formats.nvsentinel import (
    BehaviourOverrides,
    Entity,
    HealthEvent,
    ProcessingStrategy,
    RecommendedAction,
)

_FIELD = descriptor_pb2.FieldDescriptorProto
_SCALARS = {_FIELD.TYPE_STRING: "string", _FIELD.TYPE_BOOL: "bool", _FIELD.TYPE_UINT32: "uint32"}


def _published_fields() -> set[tuple[str, str, int, str, bool]]:
    """Return (message, field, number, type, whether it is repeated) of the published text."""
    found = set()
    for name, body in re.findall(r"message (\w+) \{(.*?)\n\}", PUBLISHED, re.DOTALL):
        for repeated, kind, field, number in re.findall(r"(repeated )?(map<[^>]+>|[\w.]+) (\w+) = (\d+);", body):
            found.add((name, field, int(number), kind, bool(repeated) or kind.startswith("map<")))
    return found


def _our_fields() -> set[tuple[str, str, int, str, bool]]:
    """Return the same of the description that tocsin builds."""
    found = set()
    for message in connector_file().message_type:
        for field in message.field:
            kind = _SCALARS.get(field.type, field.type_name.removeprefix(".datamodels.").removeprefix("."))
            if kind == "HealthEvent.MetadataEntry":
                kind = "map<string, string>"
            repeated = field.label == _FIELD.LABEL_REPEATED
            found.add((message.name, field.name, field.number, kind, repeated))
    return found


def test_fields_have_the_published_numbers_and_types() -> None:
    assert _our_fields() == _published_fields()
    assert len(_our_fields()) == 22


def test_enumerations_have_the_published_values() -> None:
    ours = {(one.name, value.name, value.number) for one in connector_file().enum_type for value in one.value}
    published = {
        (name, value, int(number))
        for name, body in re.findall(r"enum (\w+) \{(.*?)\}", PUBLISHED, re.DOTALL)
        for value, number in re.findall(r"(\w+) = (\d+);", body)
    }
    assert ours == published


def test_the_method_is_the_published_one() -> None:
    file = connector_file()
    service = file.service[0]
    assert f"/{file.package}.{service.name}/{service.method[0].name}" == METHOD
    assert f"rpc {service.method[0].name}(HealthEvents)" in PUBLISHED


_text = st.text(max_size=20)
_overrides = st.none() | st.builds(BehaviourOverrides, force=st.booleans(), skip=st.booleans())
_events = st.builds(
    HealthEvent,
    agent=_text,
    component_class=_text,
    check_name=_text,
    is_fatal=st.booleans(),
    is_healthy=st.booleans(),
    message=_text,
    recommended_action=st.sampled_from(RecommendedAction),
    error_codes=st.lists(_text, max_size=3).map(tuple),
    entities=st.lists(st.builds(Entity, _text, _text), max_size=3).map(tuple),
    metadata=st.dictionaries(_text, _text, max_size=3).map(lambda found: tuple(sorted(found.items()))),
    generated_ns=st.integers(0, 4_000_000_000_000_000_000),
    node_name=_text,
    strategy=st.sampled_from(ProcessingStrategy),
    quarantine_overrides=_overrides,
    drain_overrides=_overrides,
)


@given(events=st.lists(_events, max_size=3).map(tuple))
def test_events_come_back_as_they_were_and_equal_events_give_equal_bytes(events: tuple[HealthEvent, ...]) -> None:
    messages = ConnectorMessages()
    data = messages.encode(events)
    assert messages.decode(data) == events
    assert ConnectorMessages().encode(events) == data
