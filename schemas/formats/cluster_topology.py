"""Where the hosts of a cluster are connected: host -> leaf switch and minipod, whoever says it.

Readable are Slurm's ``topology.conf`` and ``scontrol show topology`` (plugins tree and block), topograph's output for
Slurm and as a graph (JSON), and the labels of Kubernetes nodes (``kubectl get nodes -o json``), which topograph, AWS,
Google and Oracle set.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tocsin.schemas.formats.slurm_topology import places_of_slurm
from tocsin.schemas.formats.switch_place import SwitchPlace
from tocsin.schemas.formats.topology_json import LeafLabels, places_of_json

__all__ = ["ClusterTopology", "LeafLabels", "SwitchPlace", "read_topology"]


@dataclass(frozen=True, slots=True)
class ClusterTopology:
    """The hosts of a cluster.

    Attributes:
        places: host -> its leaf switch and minipod, in the order of the file.
    """

    places: Mapping[str, SwitchPlace]

    @property
    def minipods(self) -> tuple[str, ...]:
        """The minipods' names, in the order of the file."""
        return tuple(dict.fromkeys(place.minipod for place in self.places.values() if place.minipod))

    @property
    def leaves(self) -> tuple[str, ...]:
        """The leaf switches' names, in the order of the file."""
        return tuple(dict.fromkeys(place.leaf for place in self.places.values() if place.leaf))


def read_topology(text: str, file: str, labels: LeafLabels | None = None) -> ClusterTopology:
    """Return the topology that a file describes; the form is seen from its content.

    Args:
        text: the file's content.
        file: its name, for errors.
        labels: keys of the node labels that name leaf and minipod; None = those known.

    Raises:
        FieldError: the file is in none of the forms, or contradicts itself. Names file, line (JSON: path) and value.
    """
    is_json = text.lstrip()[:1] in ("{", "[")
    return ClusterTopology(places_of_json(text, file, labels) if is_json else places_of_slurm(text, file))
