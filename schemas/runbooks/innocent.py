"""Runbooks of causes that blame nobody: the work, what is shared, planned work, the monitoring."""

from __future__ import annotations

from typing import Final

from tocsin.schemas.runbooks.form import HandStep, Lookalike, Runbook

_PAGE = HandStep("Read what was seen, and on which machines.", "tocsin incidents show ID")

INNOCENT_RUNBOOKS: Final = (
    Runbook(
        "data_imbalance",
        signs=(
            "In each step some rank is slow, and it is another one in each step.",
            "The slow rank does more work in that step: longer samples, more tokens.",
        ),
        lookalikes=(
            Lookalike("software_jitter", "There the slow rank does no more work than the others."),
            Lookalike("power_cap", "There it is the same GPU every time."),
        ),
        steps=(
            _PAGE,
            HandStep("Compare tokens or pixels of each rank in a slow step."),
            HandStep("Give it to the job's owner: sort or pack samples by length, balance experts."),
        ),
    ),
    Runbook(
        "stage_imbalance",
        signs=("The ranks of one pipeline stage are slower than those of other stages, in every replica alike.",),
        lookalikes=(
            Lookalike("power_cap", "There one replica's rank of that stage is slow, the others' are not."),
            Lookalike("network_slow", "There the time goes into moving data, and not into computing."),
        ),
        steps=(
            _PAGE,
            HandStep("Compare the stage's layers with the others' (embedding, loss, uneven split)."),
            HandStep("Give it to the job's owner: split the layers anew. It is told once for each attempt."),
        ),
    ),
    Runbook(
        "communication",
        signs=(
            "Transfers take longer in some steps than in most, although all of their members have come.",
            "It is told where operations were traced. Waiting for a slow rank does not count.",
        ),
        lookalikes=(
            Lookalike("network_slow", "There it is every group of one machine, in every step."),
            Lookalike("stage_imbalance", "There transfers begin late, because a stage computes longer."),
            Lookalike("placement", "There the groups that cross switches are slower in every step."),
        ),
        steps=(
            _PAGE,
            HandStep(
                "Which operations take longer, and in which steps (META: a YAML file with dp_size and pp_size)?",
                "tocsin whatif ops.parquet --meta META --html page.html",
            ),
            HandStep("Does another job share the switches at these times? Pause frames and ECN marks tell."),
            HandStep("Give it to those who run the network. No machine has to be taken away."),
        ),
    ),
    Runbook(
        "placement",
        signs=(
            "Groups whose ranks lie behind different switches are slower than those behind one, all by about the same.",
        ),
        lookalikes=(
            Lookalike("network_slow", "There the groups of one machine are slow, wherever their peers are."),
            Lookalike(
                "common_component", "A leaf or spine that lost uplinks makes its own traffic slow, and no other."
            ),
        ),
        steps=(
            HandStep("Which leaf is each machine of the job behind?", "scontrol show topology"),
            HandStep(
                "Do the groups that talk most (tensor, then data) lie behind one switch?", "scontrol show job JOB"
            ),
            HandStep("At the next restart ask for machines of one leaf, or order the ranks by leaf."),
        ),
    ),
    Runbook(
        "shared_service",
        signs=(
            "All ranks wait together for storage, a loader service or a registry.",
            "No machine is slower than another.",
        ),
        lookalikes=(
            Lookalike("hdfs_error", "There one machine alone lost its mount."),
            Lookalike("workload_change", "There nobody waits for input or output."),
            Lookalike("a checkpoint", "It is written together and takes long. Announced, it is no incident."),
        ),
        steps=(
            _PAGE,
            HandStep(
                "Does the service answer from a machine outside the job (PATH is the job's data)?", "timeout 10 ls PATH"
            ),
            HandStep("Do other jobs wait, too?", "tocsin incidents list --since 1h"),
            HandStep("Call those who run the service. No machine has to be taken away; a restart would not help."),
        ),
    ),
    Runbook(
        "software_jitter",
        signs=(
            "Changing ranks pause for a moment, without more work: garbage collection, the allocator, a compilation.",
            "The more ranks, the more steps have one that pauses.",
        ),
        lookalikes=(
            Lookalike("data_imbalance", "There the slow rank has more work."),
            Lookalike("cpu_contention", "There the pauses stay on one machine."),
        ),
        steps=(
            _PAGE,
            HandStep(
                "Look for pauses of all Python threads in a slow step (PID is a rank's).",
                "py-spy record --gil -d 30 -o pauses.svg --pid PID",
            ),
            HandStep(
                "Collect garbage at the same step on all ranks: `gc.disable()`, then `gc.collect()` each N steps."
            ),
            HandStep("Give it to the job's owner. No machine has to be taken away."),
        ),
    ),
    Runbook(
        "workload_change",
        signs=(
            "All ranks became slower or faster together, and nobody waits for anybody.",
            "Typical: longer sequences, a larger batch, an evaluation, another phase of the schedule.",
        ),
        lookalikes=(
            Lookalike("shared_service", "There all wait for input or output."),
            Lookalike(
                "common_component", "Cooling or power that all share slows all GPUs at once; their clocks show it."
            ),
        ),
        steps=(
            HandStep("Did the job's owner change something then? If so, nothing is to be done."),
            HandStep("Are the clocks of the GPUs as before?", "nvidia-smi -q -d CLOCK,PERFORMANCE"),
            HandStep("Announce phases (evaluation, checkpoint, compilation) by the hook, and they are no incidents."),
        ),
    ),
    Runbook(
        "common_driver",
        signs=(
            "Many machines report the same error of driver or firmware, at once or over weeks: more than chance gives.",
            "The machines have the driver's version, the firmware or the GPU model in common.",
        ),
        lookalikes=(
            Lookalike("gpu_execution_error", "One machine, again and again: its part."),
            Lookalike("planned_work", "Resets and reboots during an upgrade report errors, too."),
            Lookalike("a rule that is too sharp", "The reports are there, and no job suffered anywhere."),
        ),
        steps=(
            _PAGE,
            HandStep(
                "Which versions do these machines have, and which the others?",
                "nvidia-smi --query-gpu=driver_version,vbios_version,name --format=csv,noheader | sort | uniq -c",
            ),
            HandStep("Stop the rollout, if one goes on. Take no machine away for this signal alone."),
            HandStep("Put the older version on a few of these machines, and see whether they stay well."),
            HandStep("Report it to the vendor.", "nvidia-bug-report.sh"),
        ),
    ),
    Runbook(
        "common_component",
        signs=(
            "Many machines report the same, more than chance gives. What they share is not known, or it is their leaf.",
            "Links of all machines behind one leaf went down within minutes, those of others did not.",
        ),
        lookalikes=(
            Lookalike("common_driver", "There the code of the error names the driver or its firmware."),
            Lookalike("nic_dropout", "One machine: its own port or cable."),
            Lookalike("monitoring_fault", "There nothing but the reports is missing; the jobs go on."),
        ),
        steps=(
            _PAGE,
            HandStep("What do the machines share: leaf, rack, feed, loop? Compare with your inventory."),
            HandStep(
                "Or a version, which the others do not have?",
                "nvidia-smi --query-gpu=driver_version,vbios_version,name --format=csv,noheader | sort | uniq -c",
            ),
            HandStep(
                "Is the switch there, and its uplinks (LEAF is its name, SWITCH_GUID is what that prints)?",
                "ibnetdiscover | grep -i LEAF; iblinkinfo -S SWITCH_GUID",
            ),
            HandStep("Heat or power: ask those who run the room.", "ipmitool sdr type Temperature"),
            HandStep(
                "Repair what is shared. The machines' own incidents are covered by this one; take none away for it."
            ),
        ),
    ),
    Runbook(
        "planned_work",
        signs=("Many machines report the same, and work on all of them is planned for this time.",),
        lookalikes=(
            Lookalike("common_component", "There machines without planned work report it, too."),
            Lookalike("machine_unreachable", "It is still away when the work is over."),
        ),
        steps=(
            HandStep("Who works there, and until when? The plan and the change calendar say so."),
            HandStep(
                "Is a machine named that the work does not concern? Treat that one by itself.",
                "tocsin incidents list --since 2h",
            ),
            HandStep("When the work is over: do all machines report again?", "tocsin status"),
        ),
    ),
    Runbook(
        "monitoring_fault",
        signs=(
            "The agents of many machines fell silent, or one of their collectors fails everywhere, and the jobs go on.",
            "For these machines nothing is known meanwhile: neither well nor ill.",
        ),
        lookalikes=(
            Lookalike("machine_unreachable", "There the peers wait: the machine is gone, and not its agent alone."),
            Lookalike("common_component", "A switch that died takes agents and jobs with it."),
        ),
        steps=(
            HandStep("Who reports, and who does not?", "tocsin status"),
            HandStep("What does the agent say on one of them?", "journalctl -u tocsin-agent -n 50"),
            HandStep("What do they share: a rollout of the agent, a network, a broker, an expired credential?"),
            HandStep("Is the driver's library well, where GPU collectors fail?", "nvidia-smi -L"),
            HandStep("Roll back or repair. Incidents of this time were judged on less than usual."),
        ),
    ),
)
