"""Runbooks of faults of a GPU, its memory, its bus and its NVLinks.

Sources: NVIDIA's XID catalogue and its guide to memory errors, DCGM's table of errors and actions.
"""

from __future__ import annotations

from typing import Final

from tocsin.schemas.runbooks.form import HandStep, Lookalike, Runbook

_XIDS = HandStep("Read what the driver said, and when.", "dmesg -T | grep -E 'Xid|SXid'")
_DRAIN = HandStep("Let no new job onto the machine.", 'scontrol update NodeName=HOST State=DRAIN Reason="tocsin ID"')
_DIAG = HandStep("Test the idle machine; what fails names the part.", "dcgmi diag -r 3")
_REPORT = HandStep("Collect what the vendor asks for, before a reboot.", "nvidia-bug-report.sh")

GPU_RUNBOOKS: Final = (
    Runbook(
        "ecc_error",
        signs=(
            "The kernel log has XID 48, 63, 64, 94, 95, 140, 171 or 172 of one GPU, or its uncorrected errors grow.",
            "After XID 94 the process that touched the page is gone. After XID 95 all on that GPU are at risk.",
            "A row remapping that is pending is done at the next reset; a failed one means no spare rows are left.",
        ),
        lookalikes=(
            Lookalike("cuda_execution_error", "A wrong index gives XID 13 or 31 and no ECC count moves."),
            Lookalike("gpu_card_drop", "After XID 79 the counts cannot be read at all."),
            Lookalike("corrected errors", "A few a day are normal and cost nothing. They accuse nobody by themselves."),
        ),
        steps=(
            _XIDS,
            HandStep(
                "Are uncorrected errors there, a remapping pending or failed?", "nvidia-smi -q -d ECC,ROW_REMAPPER"
            ),
            _DRAIN,
            HandStep("No process left and a remapping pending: reset the GPU (N is its index).", "nvidia-smi -r -i N"),
            _DIAG,
            HandStep(
                "A remapping failed, the SRAM threshold is exceeded, or it comes again after the reset: replace it."
            ),
        ),
    ),
    Runbook(
        "pcie_downgrade",
        signs=(
            "One GPU's or NIC's link runs at a lower generation or width than both ends can.",
            "Copies between host and GPU are slow on that machine, and its steps are longer than its peers'.",
        ),
        lookalikes=(
            Lookalike(
                "an idle GPU", "An idle GPU lowers its link's generation to save power. Look under load; width stays."
            ),
            Lookalike("network_slow", "There the link is at full width, and the NIC's counters or its switch show it."),
            Lookalike("cpu_contention", "There the copies wait for a process that does not run."),
        ),
        steps=(
            HandStep(
                "Compare present and possible, while the job runs.",
                "nvidia-smi --query-gpu=index,pci.bus_id,pcie.link.gen.current,pcie.link.gen.max,"
                "pcie.link.width.current,pcie.link.width.max --format=csv",
            ),
            HandStep(
                "Which end holds it back (BUS is the device's address)?", "lspci -vv -s BUS | grep -E 'LnkCap:|LnkSta:'"
            ),
            HandStep("Errors of the link say that it is the link itself.", "dmesg -T | grep -iE 'AER|pcieport'"),
            _DRAIN,
            HandStep("Power the machine off and on; a reboot alone may not train the link anew."),
            HandStep(
                "Still below: reseat or replace card, riser or cable; compare the BIOS setting with a good machine."
            ),
        ),
    ),
    Runbook(
        "gpu_card_drop",
        signs=(
            "The kernel log has XID 79 (fallen off the bus), or the driver lists fewer GPUs than before.",
            "Processes on that GPU fail at once, and the others of the job wait in a collective.",
        ),
        lookalikes=(
            Lookalike("machine_unreachable", "There the whole machine answers nobody."),
            Lookalike("gpu_execution_error", "There the GPU is still listed and answers."),
            Lookalike("planned_work", "Somebody takes the driver or the GPU out of service on purpose."),
        ),
        steps=(
            _XIDS,
            HandStep("Which GPU is missing?", "nvidia-smi -L"),
            HandStep(
                "Is it on the bus at all? A revision of `ff` means that nothing answers.", "lspci -nn | grep -i nvidia"
            ),
            _REPORT,
            HandStep(
                "Take the machine out and restart it; a reset of the GPU does not bring it back.",
                "ipmitool chassis power cycle",
            ),
            HandStep("Read the board's log for power and heat. Twice the same GPU: replace it.", "ipmitool sel elist"),
        ),
    ),
    Runbook(
        "nvlink_error",
        signs=(
            "The kernel log has XID 74 or 144 to 150, an SXID of an NVSwitch, or error counters of one link grow.",
            "Collectives inside the machine are slow or hang, those between machines are as before.",
        ),
        lookalikes=(
            Lookalike("network_slow", "There the traffic between machines is slow."),
            Lookalike(
                "the fabric manager", "If it stopped, all GPUs of the machine lose their links, and no counter grows."
            ),
            Lookalike(
                "corrected errors",
                "Replays and corrected CRC errors happen on good links; what counts is a rate above the peers'.",
            ),
        ),
        steps=(
            _XIDS,
            HandStep("Which links are down or slow?", "nvidia-smi nvlink -s"),
            HandStep("Which counters grow? Run it twice, a minute apart.", "nvidia-smi nvlink -e"),
            HandStep(
                "Does the fabric manager run (machines with NVSwitches)?", "systemctl status nvidia-fabricmanager"
            ),
            _DRAIN,
            HandStep(
                "Reset all GPUs of the machine together, then test it. The same link again: replace GPU or baseboard.",
                "dcgmi diag -r 3",
            ),
        ),
    ),
    Runbook(
        "gpu_execution_error",
        signs=(
            "The kernel log has XID 46, 62, 109, 119, 120, 143, 151 or 158, or the driver asks for a reset (XID 154).",
            "CUDA calls fail with an unspecified or launch error, and the same program works elsewhere.",
        ),
        lookalikes=(
            Lookalike(
                "cuda_execution_error",
                "XID 13 and 31 are mostly the program's. The same GPU again with other programs is not.",
            ),
            Lookalike("ecc_error", "An uncorrected memory error ends kernels, too; its XIDs and counts are there."),
            Lookalike("common_driver", "Several machines with one driver report it together (GSP timeouts, XID 119)."),
        ),
        steps=(
            _XIDS,
            HandStep("What does the driver ask for (reset, reboot)?", "nvidia-smi -q | grep -i 'recovery action'"),
            _DRAIN,
            HandStep(
                "Reset the GPU when no process is left (N is its index); reboot where that fails.", "nvidia-smi -r -i N"
            ),
            _DIAG,
            HandStep("It comes again on this GPU: replace it. On GPUs of many machines: look at the driver's version."),
        ),
    ),
    Runbook(
        "power_cap",
        signs=(
            "One GPU draws less power or has lower clocks than its peers at the same load, and is not hotter.",
            "Its steps are longer by about the same factor all the time.",
        ),
        lookalikes=(
            Lookalike("thermal_throttle", "There the temperature is high and a thermal slowdown is active."),
            Lookalike(
                "a GPU at full load",
                "It stands at its power limit by design. Only peers with the same limit tell a fault.",
            ),
            Lookalike("data_imbalance", "There the slowest rank changes, and clocks are equal."),
        ),
        steps=(
            HandStep("Compare the limit now with the default and with a peer.", "nvidia-smi -q -d POWER"),
            HandStep(
                "Which reason holds the clocks? A power brake comes from the power supply.",
                "nvidia-smi -q -d PERFORMANCE,CLOCK",
            ),
            HandStep(
                "Somebody set a lower limit or clock: set it back (N is the GPU, WATTS the default).",
                "nvidia-smi -i N -pl WATTS",
            ),
            HandStep(
                "XID 54, a power brake or a lost supply: read the board's log and its supplies.",
                "ipmitool sdr type 'Power Supply'",
            ),
            _DRAIN,
        ),
    ),
    Runbook(
        "thermal_throttle",
        signs=(
            "One GPU is hotter than its peers at the same load, and a thermal slowdown holds its clocks down.",
            "Its steps are longer, often for minutes at a time.",
        ),
        lookalikes=(
            Lookalike("power_cap", "There the temperature is as its peers'."),
            Lookalike("common_component", "Many machines of one rack are hot together: air or water of that rack."),
            Lookalike("more work", "A machine that has more to do is warmer; it does more work a second meanwhile."),
        ),
        steps=(
            HandStep(
                "How hot is it, and at which temperature does it slow down?", "nvidia-smi -q -d TEMPERATURE,PERFORMANCE"
            ),
            HandStep(
                "Fans, inlet air, coolant: compare with a neighbour in the rack.",
                "ipmitool sdr type Fan; ipmitool sdr type Temperature",
            ),
            HandStep("The neighbours are hot, too: call those who run the room before anything is taken out."),
            _DRAIN,
            HandStep("Clean or replace fan, filter, cold plate or paste; then test it under load.", "dcgmi diag -r 3"),
        ),
    ),
)
