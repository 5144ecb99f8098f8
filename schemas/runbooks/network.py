"""Runbooks of faults of ports, cables and paths."""

from __future__ import annotations

from typing import Final

from tocsin.schemas.runbooks.form import HandStep, Lookalike, Runbook

_LINKS = HandStep("Is each port active, at the rate of its peers'?", "ibstat")
_MODULE = HandStep("Light, temperature and bit errors of the module (DEVICE as in ibstat).", "mlxlink -d DEVICE -m -c")
_DRAIN = HandStep("Let no new job onto the machine.", 'scontrol update NodeName=HOST State=DRAIN Reason="tocsin ID"')

NETWORK_RUNBOOKS: Final = (
    Runbook(
        "nic_dropout",
        signs=(
            "A port of one machine left the state active, and the kernel log or the RDMA counters say so.",
            "Ranks on it lose their connections, and all others wait.",
        ),
        lookalikes=(
            Lookalike("machine_unreachable", "There the agent is silent, too."),
            Lookalike("aoc_error", "There the port is up with errors or a lower rate, or goes up and down."),
            Lookalike("common_component", "Ports of many machines behind one switch go down together: the switch."),
            Lookalike(
                "the subnet manager",
                "The port stays in the state Init: the link is well, and nobody gave it an address.",
            ),
        ),
        steps=(
            _LINKS,
            HandStep("When did it go down, and how often?", "dmesg -T | grep -iE 'mlx5|link (is )?(up|down)'"),
            HandStep("Which switch port is at the other end, and is it up?", "iblinkinfo"),
            _MODULE,
            _DRAIN,
            HandStep(
                "Reseat the cable at both ends; then another cable, another switch port, another NIC, in this order."
            ),
        ),
    ),
    Runbook(
        "aoc_error",
        signs=(
            "A port runs at a lower rate than before, its link goes down and comes back, or its symbol errors grow.",
            "Transfers of that machine are slow or resent, and its peers wait for them.",
        ),
        lookalikes=(
            Lookalike("nic_dropout", "There the port is gone and stays so."),
            Lookalike("network_slow", "There the link has no errors: congestion, routing, or the other end."),
            Lookalike("pcie_downgrade", "There the slow link is inside the machine."),
        ),
        steps=(
            _LINKS,
            HandStep("Which counters grow? Run it twice, minutes apart.", "perfquery -x"),
            _MODULE,
            HandStep("Which ports of the fabric have errors above the others'?", "ibqueryerrors"),
            _DRAIN,
            HandStep(
                "Clean and reseat the connectors. Exchange the cable; errors that stay at the port mean NIC or switch."
            ),
        ),
    ),
    Runbook(
        "network_slow",
        signs=(
            "Every group that contains one rank moves data slower, all other groups are as before.",
            "Chunks of open transfers lie at the senders of one machine or of one switch.",
        ),
        lookalikes=(
            Lookalike("placement", "There all groups that cross switches are slower, and nothing is broken."),
            Lookalike(
                "another job's traffic",
                "All machines behind one leaf are slow and send pause frames: congestion, no machine.",
            ),
            Lookalike("pcie_downgrade", "There the path from GPU to NIC is slow; the NIC alone is fast."),
            Lookalike("cpu_contention", "There the process that feeds the NIC does not run."),
        ),
        steps=(
            _LINKS,
            HandStep(
                "Pause frames, discards, resends: compare with a peer (INTERFACE is the NIC's).",
                "ethtool -S INTERFACE | grep -iE 'pause|discard|out_of_seq|retrans'",
            ),
            HandStep("Does a GPU use its near NIC? Compare with a peer.", "nvidia-smi topo -m"),
            HandStep(
                "With the job gone, measure towards a good machine (GOOD_HOST: `ib_write_bw -d DEVICE` there first).",
                "ib_write_bw -d DEVICE --report_gbits GOOD_HOST",
            ),
            HandStep(
                "Slow towards all: cable, NIC, PCIe. Slow towards some: the switch between, its uplinks, its routes."
            ),
            _DRAIN,
        ),
    ),
)
