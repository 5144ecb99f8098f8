"""Topologies as other programs write them: the way back of the parsers, for tests."""

from __future__ import annotations

import json
from collections.abc import Mapping

from tocsin.schemas.formats.switch_place import SwitchPlace

Places = Mapping[str, SwitchPlace]


def _below(pairs: Mapping[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, above in pairs.items():
        found.setdefault(above, []).append(name)
    return found


def topology_conf(places: Places) -> str:
    """Slurm's file, plugin tree: as topograph writes it."""
    leaves = _below({host: place.leaf for host, place in places.items()})
    pods = _below({place.leaf: place.minipod for place in places.values()})
    lines = [f"SwitchName={pod} Switches={','.join(below)}" for pod, below in pods.items()]
    return "\n".join([*lines, *(f"SwitchName={leaf} Nodes={','.join(hosts)}" for leaf, hosts in leaves.items())])


def scontrol_tree(places: Places) -> str:
    """``scontrol show topology``, plugin tree: every level repeats its hosts."""
    leaves = _below({host: place.leaf for host, place in places.items()})
    pods = _below({place.leaf: place.minipod for place in places.values()})
    lines = [f"SwitchName={leaf} Level=0 LinkSpeed=1 Nodes={','.join(hosts)}" for leaf, hosts in leaves.items()]
    lines += [
        f"SwitchName={pod} Level=1 LinkSpeed=1 Nodes={','.join(h for leaf in below for h in leaves[leaf])} "
        f"Switches={','.join(below)}"
        for pod, below in pods.items()
    ]
    lines.append(f"SwitchName=core Level=2 LinkSpeed=1 Nodes={','.join(places)} Switches={','.join(pods)}")
    return "\n".join(lines) + "\n"


def scontrol_block(places: Places) -> str:
    """``scontrol show topology``, plugin block; a minipod's name is the list of its blocks."""
    leaves = _below({host: place.leaf for host, place in places.items()})
    pods = _below({place.leaf: place.minipod for place in places.values()})
    lines = [
        f"BlockName={leaf} BlockIndex={at} Nodes={','.join(hosts)} BlockSize={len(hosts)}"
        for at, (leaf, hosts) in enumerate(leaves.items())
    ]
    lines.append(f"AggregatedBlock={','.join(leaves)} BlockIndex=99 Nodes={','.join(places)} BlockSize={len(places)}")
    lines += [f"AggregatedBlock={','.join(below)} BlockIndex=98 BlockSize=1" for below in pods.values()]
    return "\n".join(lines) + "\n"


def topograph_graph(places: Places) -> str:
    """Topograph's engine ``graph``."""
    instances = [
        {"id": host, "type": "H100", "network_layers": [place.leaf, place.minipod, "core"], "attributes": {}}
        for host, place in places.items()
    ]
    return json.dumps({"instances": instances}, indent=2)


def kubernetes_nodes(places: Places, keys: tuple[str, str]) -> str:
    """``kubectl get nodes -o json``."""
    items = [
        {
            "kind": "Node",
            "metadata": {
                "name": host,
                "labels": {"kubernetes.io/os": "linux", keys[0]: place.leaf, keys[1]: place.minipod},
            },
        }
        for host, place in places.items()
    ]
    return json.dumps({"kind": "List", "items": items})
