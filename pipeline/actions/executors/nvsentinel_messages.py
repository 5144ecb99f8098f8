"""Protocol buffers of NVSentinel's platform connector, built from their published field numbers.

The messages are described here instead of being generated, so that no compiler is needed to install tocsin. Source of
names and numbers: ``data-models/protobufs/health_event.proto`` of NVSentinel (package ``datamodels``, proto3).
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, empty_pb2, message_factory, timestamp_pb2

from tocsin.schemas.formats.nvsentinel import (
    MESSAGE_VERSION,
    BehaviourOverrides,
    Entity,
    HealthEvent,
    ProcessingStrategy,
    RecommendedAction,
)

PACKAGE: Final = "datamodels"
METHOD: Final = f"/{PACKAGE}.PlatformConnector/HealthEventOccurredV1"
STRATEGY_FIELD: Final = "processingStrategy"
STRATEGY_NUMBER: Final = 16

_FIELD = descriptor_pb2.FieldDescriptorProto
_NS_PER_SECOND = 1_000_000_000
_TEXT, _FLAG, _COUNT = _FIELD.TYPE_STRING, _FIELD.TYPE_BOOL, _FIELD.TYPE_UINT32


def connector_file() -> descriptor_pb2.FileDescriptorProto:
    """Return the description of the connector's messages and service."""
    file = descriptor_pb2.FileDescriptorProto(name="health_event.proto", package=PACKAGE, syntax="proto3")
    file.dependency.extend((timestamp_pb2.DESCRIPTOR.name, empty_pb2.DESCRIPTOR.name))
    _enum(file, "ProcessingStrategy", ProcessingStrategy)
    _enum(file, "RecommendedAction", RecommendedAction)
    events = file.message_type.add(name="HealthEvents")
    _field(events, 1, "version", _COUNT)
    _field(events, 2, "events", _FIELD.TYPE_MESSAGE, of="HealthEvent", repeated=True)
    entity = file.message_type.add(name="Entity")
    _field(entity, 1, "entityType", _TEXT)
    _field(entity, 2, "entityValue", _TEXT)
    overrides = file.message_type.add(name="BehaviourOverrides")
    _field(overrides, 1, "force", _FLAG)
    _field(overrides, 2, "skip", _FLAG)
    _health_event(file.message_type.add(name="HealthEvent"))
    service = file.service.add(name="PlatformConnector")
    service.method.add(
        name="HealthEventOccurredV1", input_type=f".{PACKAGE}.HealthEvents", output_type=".google.protobuf.Empty"
    )
    return file


def _health_event(message: descriptor_pb2.DescriptorProto) -> None:
    """Describe the fields of ``HealthEvent``."""
    _field(message, 1, "version", _COUNT)
    for number, name in ((2, "agent"), (3, "componentClass"), (4, "checkName"), (7, "message"), (13, "nodeName")):
        _field(message, number, name, _TEXT)
    _field(message, 5, "isFatal", _FLAG)
    _field(message, 6, "isHealthy", _FLAG)
    _field(message, 8, "recommendedAction", _FIELD.TYPE_ENUM, of="RecommendedAction")
    _field(message, 9, "errorCode", _TEXT, repeated=True)
    _field(message, 10, "entitiesImpacted", _FIELD.TYPE_MESSAGE, of="Entity", repeated=True)
    entry = message.nested_type.add(name="MetadataEntry")
    entry.options.map_entry = True
    _field(entry, 1, "key", _TEXT)
    _field(entry, 2, "value", _TEXT)
    _field(message, 11, "metadata", _FIELD.TYPE_MESSAGE, of="HealthEvent.MetadataEntry", repeated=True)
    stamp = message.field.add(name="generatedTimestamp", number=12, type=_FIELD.TYPE_MESSAGE)
    stamp.label, stamp.type_name = _FIELD.LABEL_OPTIONAL, ".google.protobuf.Timestamp"
    _field(message, 14, "quarantineOverrides", _FIELD.TYPE_MESSAGE, of="BehaviourOverrides")
    _field(message, 15, "drainOverrides", _FIELD.TYPE_MESSAGE, of="BehaviourOverrides")
    _field(message, STRATEGY_NUMBER, STRATEGY_FIELD, _FIELD.TYPE_ENUM, of="ProcessingStrategy")


def _enum(
    file: descriptor_pb2.FileDescriptorProto, name: str, values: type[ProcessingStrategy | RecommendedAction]
) -> None:
    """Describe an enumeration."""
    described = file.enum_type.add(name=name)
    for value in values:
        described.value.add(name=value.name, number=value.value)


def _field(
    message: descriptor_pb2.DescriptorProto, number: int, name: str, kind: int, *, of: str = "", repeated: bool = False
) -> None:
    """Describe one field; ``of`` is the message or enumeration of this package that it holds."""
    field = message.field.add(name=name, number=number, type=kind)
    field.label = _FIELD.LABEL_REPEATED if repeated else _FIELD.LABEL_OPTIONAL
    if of:
        field.type_name = f".{PACKAGE}.{of}"


class ConnectorMessages:
    """Turns health events into the connector's bytes and back."""

    def __init__(self) -> None:
        """Describe the messages in a pool of their own: another library may have described them in the common one."""
        pool = descriptor_pool.DescriptorPool()
        for known in (timestamp_pb2.DESCRIPTOR, empty_pb2.DESCRIPTOR):
            pool.AddSerializedFile(known.serialized_pb)
        pool.AddSerializedFile(connector_file().SerializeToString())
        found = pool.FindMessageTypeByName(f"{PACKAGE}.HealthEvents")
        self._events: Any = message_factory.GetMessageClass(found)

    def encode(self, events: tuple[HealthEvent, ...]) -> bytes:
        """Return the bytes of ``HealthEvents``; equal events give equal bytes."""
        whole = self._events(version=MESSAGE_VERSION)
        for event in events:
            _fill(whole.events.add(), event)
        encoded: bytes = whole.SerializeToString(deterministic=True)
        return encoded

    def decode(self, data: bytes) -> tuple[HealthEvent, ...]:
        """Return the events of ``HealthEvents``.

        Raises:
            google.protobuf.message.DecodeError: the bytes are no such message.
        """
        whole = self._events()
        whole.ParseFromString(data)
        return tuple(_read(one) for one in whole.events)


def _fill(message: Any, event: HealthEvent) -> None:  # its class is made at run time
    """Write an event into an empty message."""
    message.version = MESSAGE_VERSION
    message.agent, message.componentClass, message.checkName = event.agent, event.component_class, event.check_name
    message.isFatal, message.isHealthy, message.message = event.is_fatal, event.is_healthy, event.message
    message.recommendedAction, message.processingStrategy = event.recommended_action.value, event.strategy.value
    message.errorCode.extend(event.error_codes)
    for entity in event.entities:
        message.entitiesImpacted.add(entityType=entity.entity_type, entityValue=entity.entity_value)
    for name, value in event.metadata:
        message.metadata[name] = value
    message.generatedTimestamp.seconds, message.generatedTimestamp.nanos = divmod(event.generated_ns, _NS_PER_SECOND)
    message.nodeName = event.node_name
    for target, overrides in (
        (message.quarantineOverrides, event.quarantine_overrides),
        (message.drainOverrides, event.drain_overrides),
    ):
        if overrides is not None:
            target.SetInParent()
            target.force, target.skip = overrides.force, overrides.skip


def _read(message: Any) -> HealthEvent:  # its class is made at run time
    """Return the event that a message holds."""
    stamp = message.generatedTimestamp
    return HealthEvent(
        agent=message.agent,
        component_class=message.componentClass,
        check_name=message.checkName,
        is_fatal=message.isFatal,
        is_healthy=message.isHealthy,
        message=message.message,
        recommended_action=RecommendedAction(message.recommendedAction),
        error_codes=tuple(message.errorCode),
        entities=tuple(Entity(one.entityType, one.entityValue) for one in message.entitiesImpacted),
        metadata=tuple(sorted(message.metadata.items())),
        generated_ns=stamp.seconds * _NS_PER_SECOND + stamp.nanos,
        node_name=message.nodeName,
        strategy=ProcessingStrategy(message.processingStrategy),
        quarantine_overrides=_overrides(message, "quarantineOverrides"),
        drain_overrides=_overrides(message, "drainOverrides"),
    )


def _overrides(message: Any, name: str) -> BehaviourOverrides | None:  # its class is made at run time
    """Return the overrides of a message, None where it has none."""
    if not message.HasField(name):
        return None
    found = getattr(message, name)
    return BehaviourOverrides(force=found.force, skip=found.skip)
