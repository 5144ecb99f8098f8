"""Topologies of clusters, as Slurm, topograph and Kubernetes write them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.schemas.formats import topology_texts as texts
from tocsin.schemas.errors import FieldError
from tocsin.schemas.formats.cluster_topology import ClusterTopology, LeafLabels, SwitchPlace, read_topology
from tocsin.schemas.formats.host_list import MAX_NAMES, expand_host_list
from tocsin.schemas.formats.topology_json import KNOWN_LABELS

TREE = """\
# written by topograph
SwitchName=core Switches=pod[1-2]
SwitchName=pod1 Switches=leaf[1-2]
SwitchName=pod2 Switches=leaf3
SwitchName=leaf1 Nodes=node[01-02]   # rack 1
SwitchName=leaf2 Nodes=node03,gpu7
switchname=leaf3 nodes=node[04-05]
"""


@st.composite
def topologies(draw: st.DrawFn) -> dict[str, SwitchPlace]:
    """Hosts below leaves below minipods, each of both with something below it."""
    pods = draw(st.integers(1, 4))
    leaf_pods = [*range(pods), *draw(st.lists(st.integers(0, pods - 1), max_size=5))]
    host_leaves = [*range(len(leaf_pods)), *draw(st.lists(st.integers(0, len(leaf_pods) - 1), max_size=12))]
    return {
        f"n{number:03d}": SwitchPlace(f"leaf{leaf}", f"pod{leaf_pods[leaf]}") for number, leaf in enumerate(host_leaves)
    }


@pytest.mark.parametrize("write", [texts.topology_conf, texts.scontrol_tree, texts.topograph_graph])
@settings(max_examples=12, deadline=None)
@given(places=topologies())
def test_what_was_written_is_read(write: Callable[[texts.Places], str], places: dict[str, SwitchPlace]) -> None:
    assert read_topology(write(places), "t").places == places


@pytest.mark.parametrize("keys", KNOWN_LABELS, ids=lambda keys: keys.leaf)
@settings(max_examples=5, deadline=None)
@given(places=topologies())
def test_labels_of_nodes_are_read(keys: LeafLabels, places: dict[str, SwitchPlace]) -> None:
    assert read_topology(texts.kubernetes_nodes(places, keys), "t").places == places


@settings(max_examples=12, deadline=None)
@given(places=topologies())
def test_blocks_are_leaves_and_their_smallest_aggregate_the_minipod(places: dict[str, SwitchPlace]) -> None:
    read = read_topology(texts.scontrol_block(places), "t").places

    assert {host: place.leaf for host, place in read.items()} == {host: place.leaf for host, place in places.items()}
    assert {
        frozenset(host for host in read if read[host].minipod == pod) for pod in {p.minipod for p in read.values()}
    } == {
        frozenset(host for host in places if places[host].minipod == pod)
        for pod in {p.minipod for p in places.values()}
    }


def test_switches_of_slurm() -> None:
    found = read_topology(TREE, "topology.conf")

    assert found.places["node01"] == SwitchPlace("leaf1", "pod1")
    assert found.places["gpu7"] == SwitchPlace("leaf2", "pod1")
    assert found.places["node05"] == SwitchPlace("leaf3", "pod2")
    assert found.leaves == ("leaf1", "leaf2", "leaf3")
    assert found.minipods == ("pod1", "pod2")


def test_blocks_of_slurm() -> None:
    text = (
        "BlockName=b0 BlockIndex=0 Nodes=10.140.71.103,10.140.88.115 BlockSize=2\n"
        "BlockName=b1 BlockIndex=1 Nodes=10.140.79.152 BlockSize=2\n"
        "AggregatedBlock=b[0-1] BlockIndex=2 Nodes=10.140.71.103,10.140.79.152,10.140.88.115 BlockSize=4\n"
    )
    assert read_topology(text, "t").places["10.140.79.152"] == SwitchPlace("b1", "b[0-1]")


SCONTROL_22_05 = """\
SwitchName=core Level=2 LinkSpeed=1 Nodes=node[1-8] Switches=pod[1-2]
SwitchName=pod1 Level=1 LinkSpeed=1 Nodes=node[1-4] Switches=leaf[1-2]
SwitchName=pod2 Level=1 LinkSpeed=1 Nodes=node[5-8] Switches=leaf[3-4]
SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=node[1-2]
SwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=node[3-4]
SwitchName=leaf3 Level=0 LinkSpeed=1 Nodes=node[5-6]
SwitchName=leaf4 Level=0 LinkSpeed=1 Nodes=node[7-8]
"""
"""Printed by ``scontrol show topology`` of Slurm 22.05.8, plugin tree."""


def test_what_a_real_slurm_printed() -> None:
    assert read_topology(SCONTROL_22_05, "t").places == {
        f"node{n}": SwitchPlace(f"leaf{(n + 1) // 2}", f"pod{(n + 3) // 4}") for n in range(1, 9)
    }


def test_a_host_that_only_an_upper_switch_names_has_no_leaf() -> None:
    text = "SwitchName=l0 Level=0 Nodes=a\nSwitchName=root Level=1 Nodes=a,dynamic Switches=l0\n"

    assert read_topology(text, "t").places == {"a": SwitchPlace("l0", "root"), "dynamic": SwitchPlace()}


def test_labels_of_a_site() -> None:
    text = '{"items": [{"metadata": {"name": "n1", "labels": {"rack": "r1", "hall": "h1"}}}]}'

    assert read_topology(text, "t", LeafLabels("rack", "hall")) == ClusterTopology({"n1": SwitchPlace("r1", "h1")})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("SwitchName=s1 Nodes=n[1-\n", r"f line 1: Nodes = 'n\[1-': must be a host list"),
        ("SwitchName=s1 Nodes=n[2-1]\n", r"f line 1: Nodes = '\[2-1\]': must be rising"),
        ("SwitchName=s1 Nodes=n1\nSwitchName=s2 Nodes=n1\n", "f line 2: Nodes = 'n1': must be below one leaf only"),
        ("SwitchName=s1 Nodes=n1\nSwitchName=s1 Nodes=n2\n", "f line 2: switchname = 's1': must be named once"),
        ("SwitchName=p Switches=s[1-2]\nSwitchName=s1 Nodes=n1\n", "f line 1: Switches = 's2': must be described"),
        (
            "SwitchName=s1 Nodes=n1\nSwitchName=a Switches=s1,b\nSwitchName=b Switches=a",
            "f line 2: Switches = 'b': must be not above itself",
        ),
        ("SwitchName=t Switches=t Nodes=n1", "f line 1: Switches = 't': must be not above itself"),
        (
            "SwitchName=p Switches=s1\nSwitchName=q Switches=s1\nSwitchName=s1 Nodes=n\n",
            "f line 2: Switches = 's1': must be below one switch only; it is below 'p' too",
        ),
        ("\n\nNodeName=n1 CPUs=2\n", "f line 3 = 'NodeName=n1 CPUs=2': must be a line that begins with SwitchName="),
        ("SwitchName=s1 Nodes\n", "f line 1 = 'Nodes': must be key=value"),
        ("# nothing\n", "f line 1 = '# nothing.*no line names a host"),
        ('{"instances": [\n{"id": 7, "network_layers": ["l"]}]}', r"f\.instances\[0\]\.id = 7: must be a name"),
        ('{"instances": [{"id": "a", "network_layers": [""]}]}', r"f\.instances\[0\]\.network_layers\[0\] = ''"),
        ('{"instances": 3}', r"f\.instances = 3: must be a list"),
        ('{"instances": [\n{"id": }', r"f line 2 = '}': must be JSON"),
        ('{"nodes": []}', "must be topograph's graph with 'instances', or a list of nodes with 'items'"),
        ('{"items": [{"metadata": {"name": "a", "labels": {}}}]}', "no host names its switch"),
    ],
)
def test_errors_name_file_line_and_value(text: str, said: str) -> None:
    with pytest.raises(FieldError, match=said):
        read_topology(text, "f")


def test_a_host_named_twice_in_json_is_refused() -> None:
    text = '{"instances": [{"id": "a", "network_layers": ["l"]}, {"id": "a", "network_layers": ["m"]}]}'

    with pytest.raises(FieldError, match=r"f\.instances\[1\]\.id = 'a': must be named once"):
        read_topology(text, "f")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ()),
        ("(null)", ()),
        ("n[001-003]", ("n001", "n002", "n003")),
        ("a[1-2]b[7,9]", ("a1b7", "a1b9", "a2b7", "a2b9")),
        ("n[8-11]-ib", ("n8-ib", "n9-ib", "n10-ib", "n11-ib")),
        ("x,y[5],z", ("x", "y5", "z")),
    ],
)
def test_host_lists(text: str, names: tuple[str, ...]) -> None:
    assert expand_host_list(text, "f") == names


@pytest.mark.parametrize("text", [",", "a,", "a,,b", "n[", "n]1", "n[1,]", "n[a-b]", "n[[1]]", "n[1-2] m"])
def test_what_is_no_host_list(text: str) -> None:
    with pytest.raises(FieldError, match=r"^f = "):
        expand_host_list(text, "f")


@pytest.mark.parametrize(
    "text", ["n[1-999999999]", f"n[1-{MAX_NAMES}],m", "n[1-1000][1-1000]", "n[1-9999]" + "[1-9999]" * 50]
)
def test_a_list_of_too_many_names_is_refused_at_once(text: str) -> None:
    with pytest.raises(FieldError, match=str(MAX_NAMES)):
        expand_host_list(text, "f")
