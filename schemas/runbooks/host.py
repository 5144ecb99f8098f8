"""Runbooks of faults of a machine that are neither GPU nor network."""

from __future__ import annotations

from typing import Final

from tocsin.schemas.runbooks.form import HandStep, Lookalike, Runbook

_DRAIN = HandStep("Let no new job onto the machine.", 'scontrol update NodeName=HOST State=DRAIN Reason="tocsin ID"')

HOST_RUNBOOKS: Final = (
    Runbook(
        "hdfs_error",
        signs=(
            "One machine's file server does not answer: stale handles, reconnects, time-outs in its kernel log.",
            "Its ranks stand in input or output while all others wait for them.",
        ),
        lookalikes=(
            Lookalike("shared_service", "There all machines wait for the same server."),
            Lookalike("loader_stall", "There the storage is well, and one loader's workers are slow or dead."),
            Lookalike("nic_dropout", "There the port that carries the storage is down."),
        ),
        steps=(
            HandStep(
                "What does the kernel say of the mount?",
                "dmesg -T | grep -iE 'nfs|lustre|ceph|fuse|not responding|stale'",
            ),
            HandStep("Does the mount answer (PATH is the job's data)?", "timeout 10 ls PATH; df -h PATH"),
            HandStep("Which processes hang in it (state D)?", "ps -eo pid,stat,wchan:32,cmd | grep ' D'"),
            HandStep("Ask a second machine the same. If it hangs, too, the server is to blame, no machine."),
            HandStep("Mount it anew, or reboot the machine if processes in state D hold it; then restart the job."),
        ),
    ),
    Runbook(
        "machine_unreachable",
        signs=(
            "The agent of one machine fell silent, and its peers stopped making steps or lost their connections to it.",
            "Nothing on the machine itself said why before it went.",
        ),
        lookalikes=(
            Lookalike("monitoring_fault", "There the peers go on making steps: only the agent or its network is gone."),
            Lookalike("nic_dropout", "There the agent still reports over another network."),
            Lookalike("planned_work", "Somebody reboots it. The scheduler or the change calendar says so."),
        ),
        steps=(
            HandStep("Does it answer at all?", "ping -c 3 HOST; ssh -o ConnectTimeout=5 HOST uptime"),
            HandStep(
                "Is it powered, and what did its board log (BMC is its management address)?",
                "ipmitool -H BMC sel elist; ipmitool -H BMC chassis power status",
            ),
            HandStep(
                "Look at the console for a kernel panic before a power cycle erases it.",
                "ipmitool -H BMC -I lanplus sol activate",
            ),
            HandStep(
                "Take it out, and restart the job without it.",
                'scontrol update NodeName=HOST State=DOWN Reason="tocsin ID"',
            ),
            HandStep("After it is back: read the log of the boot before.", "journalctl -k -b -1 -n 200"),
            HandStep("Test it under load before it takes a job again.", "dcgmi diag -r 3"),
        ),
    ),
    Runbook(
        "cpu_contention",
        signs=(
            "The rank's process waits for a CPU: pressure is high, or its share is smaller than its peers'.",
            "Its GPUs idle between kernels, and its steps are longer.",
        ),
        lookalikes=(
            Lookalike("loader_stall", "There the loader's own workers take the CPU or are too few."),
            Lookalike("software_jitter", "There the rank that pauses changes."),
            Lookalike("power_cap", "There the GPU is busy all the time, and slower."),
        ),
        steps=(
            HandStep("Who takes the CPU?", "top -b -n 1 | head -30"),
            HandStep("How much is waited for it?", "cat /proc/pressure/cpu"),
            HandStep(
                "Is the rank bound to few cores, or to cores of the other socket (PID is the rank's)?",
                "taskset -cp PID",
            ),
            HandStep(
                "Is its control group throttled?",
                "grep -H throttled /sys/fs/cgroup/$(cut -d: -f3 /proc/PID/cgroup | head -1)/cpu.stat",
            ),
            HandStep(
                "Stop what does not belong there (a backup, a scan, a process of an earlier job). The job recovers."
            ),
            HandStep(
                "Nothing is there: compare the CPU's frequency with a peer's, then drain the machine.",
                "grep MHz /proc/cpuinfo | sort -u | head",
            ),
        ),
    ),
    Runbook(
        "startup_slow",
        signs=(
            "One machine is still in a stage of the job's start that its peers have ended; all wait for it.",
            "The verdict says the stage, and how long the others took for it.",
        ),
        lookalikes=(
            Lookalike("shared_service", "There all machines are slow in the stage, or many at once."),
            Lookalike("process_frozen", "There its process does not run at all."),
            Lookalike("a first start", "A machine without the image or the packages in its cache loads all of them."),
        ),
        steps=(
            HandStep("Which stage, and by how much?", "tocsin incidents show ID"),
            HandStep("Image or packages: how fast are its disk and its network?", "iostat -x 1 5; ip -s link"),
            HandStep("Does a name or a mirror answer late there and not on a peer?", "getent hosts MIRROR"),
            HandStep("Model or checkpoint: is its storage slow (PATH is the checkpoint)?", "timeout 60 ls -l PATH"),
            HandStep(
                "MIRROR is the package mirror. One late start needs a look; after three of the last five, drain it.",
                'scontrol update NodeName=HOST State=DRAIN Reason="tocsin ID"',
            ),
        ),
    ),
    Runbook(
        "unknown",
        signs=(
            "The evidence names a machine and not why: it is slower than its peers, or the others wait for it.",
            "No event of its hardware explains it. The page of the incident says what was seen, and by whom.",
        ),
        lookalikes=(
            Lookalike("data_imbalance", "A rank with longer samples is slow for a while, then another one is."),
            Lookalike("stage_imbalance", "The same pipeline stage is slow in every replica."),
            Lookalike("a profiler or a debugger", "Somebody looks at this rank alone."),
        ),
        steps=(
            HandStep(
                "Read the evidence and its numbers; the page has a plot beside the peers.",
                "tocsin incidents show ID --html incident.html",
            ),
            HandStep("What has the kernel to say?", "dmesg -T | tail -100"),
            HandStep(
                "GPUs: clocks, power, heat, ECC, links, beside those of a peer.",
                "nvidia-smi -q -d CLOCK,POWER,TEMPERATURE,PERFORMANCE,ECC",
            ),
            HandStep("Where does the rank stand (PID is its process)?", "py-spy dump --pid PID"),
            HandStep("Has this machine been named before?", "tocsin incidents list --host HOST --since 90d"),
            HandStep(
                "Test it when the job has left it. Let it go back only if the test and a second job are well.",
                "dcgmi diag -r 3",
            ),
        ),
    ),
)
