"""Network topology in JSON: topograph's graph, and the labels of Kubernetes nodes.

Topograph's engine ``graph`` writes ``{"instances": [{"id": ..., "network_layers": [leaf, spine, ...]}]}``.
``kubectl get nodes -o json`` prints a list whose ``metadata.labels`` name the switches, if topograph or a cloud set
them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from tocsin.schemas.errors import FieldError
from tocsin.schemas.formats.switch_place import SwitchPlace


class LeafLabels(NamedTuple):
    """Keys of the node labels that name a host's switches.

    Attributes:
        leaf: key whose value is the leaf switch, rack or block.
        minipod: key whose value is what joins several of them.
    """

    leaf: str
    minipod: str


KNOWN_LABELS: Final = (
    LeafLabels("network.topology.nvidia.com/leaf", "network.topology.nvidia.com/spine"),
    LeafLabels("network.topology.nvidia.com/block", "network.topology.nvidia.com/spine"),
    LeafLabels("network.topology.kubernetes.io/block", "network.topology.kubernetes.io/spine"),
    LeafLabels("topology.k8s.aws/network-node-layer-3", "topology.k8s.aws/network-node-layer-2"),
    LeafLabels("cloud.google.com/gce-topology-subblock", "cloud.google.com/gce-topology-block"),
    LeafLabels("oci.oraclecloud.com/host.rack_id", "oci.oraclecloud.com/host.network_block_id"),
)
"""Label keys of topograph (now and before), AWS, Google and Oracle; of a node, the first pair it carries counts."""


@dataclass(frozen=True, slots=True)
class _Value:
    """A value of the document, and where it stands."""

    path: str
    value: object

    def wrong(self, must: str) -> FieldError:
        """Return the error that the value is wrong."""
        return FieldError(self.path, self.value, must)

    def at(self, key: str) -> _Value:
        """Return the value of a key, None where it is missing."""
        if not isinstance(self.value, dict):
            raise self.wrong("an object")
        return _Value(f"{self.path}.{key}", self.value.get(key))

    def items(self) -> Iterator[_Value]:
        """Yield the values of a list."""
        if not isinstance(self.value, list):
            raise self.wrong("a list")
        for index, value in enumerate(self.value):
            yield _Value(f"{self.path}[{index}]", value)

    def text(self) -> str:
        """Return a text that is not empty."""
        if not isinstance(self.value, str) or not self.value:
            raise self.wrong("a name")
        return self.value


def places_of_json(text: str, file: str, labels: LeafLabels | None = None) -> dict[str, SwitchPlace]:
    """Return host -> leaf and minipod.

    Args:
        text: content of the file.
        file: its name, for errors.
        labels: keys of the node labels; None = ``KNOWN_LABELS``.

    Raises:
        FieldError: the text is no JSON, neither of the forms, names a host twice, or no host has a switch.
    """
    try:
        root = _Value(file, json.loads(text))
    except json.JSONDecodeError as error:
        raise FieldError(f"{file} line {error.lineno}", text[error.pos : error.pos + 40], "JSON") from error
    except RecursionError as error:
        raise FieldError(file, text[:40], "JSON without deep nesting") from error
    if not isinstance(root.value, dict) or not ("instances" in root.value or "items" in root.value):
        raise root.wrong("topograph's graph with 'instances', or a list of nodes with 'items'")
    pairs = _of_graph(root) if "instances" in root.value else _of_nodes(root, labels)
    places: dict[str, SwitchPlace] = {}
    for name, place in pairs:
        if places.setdefault(name.text(), place) is not place:
            raise name.wrong("named once")
    if not any(place.leaf or place.minipod for place in places.values()):
        known = ", ".join(keys.leaf for keys in ((labels,) if labels else KNOWN_LABELS))
        raise FieldError(
            file, f"{len(places)} hosts", f"a topology: no host names its switch (labels looked for: {known})"
        )
    return places


def _of_graph(root: _Value) -> Iterator[tuple[_Value, SwitchPlace]]:
    """Yield the instances of topograph's graph; the layers begin at the host."""
    for instance in root.at("instances").items():
        layers = instance.at("network_layers")
        names = [] if layers.value is None else [layer.text() for layer in layers.items()]
        yield instance.at("id"), SwitchPlace(*names[:2])


def _of_nodes(root: _Value, labels: LeafLabels | None) -> Iterator[tuple[_Value, SwitchPlace]]:
    """Yield the nodes of a Kubernetes list."""
    for node in root.at("items").items():
        metadata = node.at("metadata")
        found = metadata.at("labels")
        carried: Mapping[str, object] = {}
        if found.value is not None:
            if not isinstance(found.value, dict):
                raise found.wrong("an object")
            carried = found.value
        keys = next((pair for pair in KNOWN_LABELS if pair.leaf in carried), None) if labels is None else labels
        if keys is None:
            yield metadata.at("name"), SwitchPlace()
            continue
        leaf, minipod = (found.at(key) for key in keys)
        yield (
            metadata.at("name"),
            SwitchPlace(
                leaf.text() if leaf.value is not None else "", minipod.text() if minipod.value is not None else ""
            ),
        )
