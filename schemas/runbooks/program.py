"""Runbooks of faults of the program and its data: no machine is to blame."""

from __future__ import annotations

from typing import Final

from tocsin.schemas.runbooks.form import HandStep, Lookalike, Runbook

_PAGE = HandStep("Read who was first, and its last words.", "tocsin incidents show ID")
_DUMPS = HandStep("Compare the ranks' dumps (FOLDER holds one for each rank).", "tocsin flight-recorder FOLDER")

PROGRAM_RUNBOOKS: Final = (
    Runbook(
        "process_exit",
        signs=(
            "One rank's process ended: an error, a signal, or the kernel for lack of memory. All others wait.",
            "The others' errors (lost connection, time-out) come later and are its consequence.",
        ),
        lookalikes=(
            Lookalike("machine_unreachable", "There the whole machine went, and its agent with it."),
            Lookalike("cuda_execution_error", "There the last words are those of CUDA."),
            Lookalike(
                "workload_change", "The job was stopped by its owner or the scheduler; all ranks ended together."
            ),
        ),
        steps=(
            _PAGE,
            HandStep(
                "Did the kernel kill it for memory, or did it crash?",
                "dmesg -T | grep -iE 'out of memory|oom-kill|segfault'",
            ),
            HandStep(
                "What did the scheduler see (exit code, memory limit)?",
                "sacct -j JOB -o JobID,State,ExitCode,MaxRSS,NodeList",
            ),
            HandStep("Restart from the last checkpoint. The same rank and line again: give it to the job's owner."),
            HandStep(
                "Another rank of the same machine next time: treat it as a fault of the machine, and test it.",
                "dcgmi diag -r 3",
            ),
        ),
    ),
    Runbook(
        "cuda_execution_error",
        signs=(
            "The last words are a CUDA error (illegal address, device-side assert), mostly with XID 13, 31 or 43.",
            "The other ranks wait in a collective or are torn down with it.",
        ),
        lookalikes=(
            Lookalike(
                "gpu_execution_error", "The driver reports more than XID 13, 31 or 43, or the GPU must be reset."
            ),
            Lookalike("ecc_error", "XID 48, 94 or 95, or a count of uncorrected errors that moved."),
            Lookalike("process_exit", "There the last words are not CUDA's."),
        ),
        steps=(
            _PAGE,
            HandStep("Is there more than XID 13, 31, 43?", "dmesg -T | grep -E 'Xid|SXid'"),
            HandStep("Restart with errors reported at the line that makes them (slow).", "CUDA_LAUNCH_BLOCKING=1"),
            HandStep("A small case of it (PROGRAM) under the checker names the access.", "compute-sanitizer PROGRAM"),
            HandStep(
                "The same physical GPU again, with another program: drain the machine and test it.", "dcgmi diag -r 3"
            ),
        ),
    ),
    Runbook(
        "process_frozen",
        signs=(
            "The process of one rank exists and does not run: stopped by a signal, or stuck where no peer waits.",
            "All others wait in a collective that it has not entered.",
        ),
        lookalikes=(
            Lookalike("machine_unreachable", "There the agent is silent, too."),
            Lookalike("hdfs_error", "There the process is in state D, in a file system."),
            Lookalike("loader_stall", "There it waits for its next batch."),
        ),
        steps=(
            HandStep(
                "Its state (PID is its process): T is stopped, D waits in the kernel, t has a debugger.",
                "ps -o pid,stat,wchan:32,cmd -p PID",
            ),
            HandStep("Where does it stand?", "py-spy dump --pid PID"),
            HandStep("Stopped by a signal: let it go on, if the others have not timed out.", "kill -CONT PID"),
            _DUMPS,
            HandStep("Else end it, and restart the job from its last checkpoint.", "scancel --signal=KILL --full JOB"),
        ),
    ),
    Runbook(
        "collective_mismatch",
        signs=(
            "At the same place of the order one rank stands in another collective, size or type than its peers.",
            "The job hangs, and every machine is well.",
        ),
        lookalikes=(
            Lookalike("process_frozen", "There the rank has entered no collective."),
            Lookalike("nan_gradient", "A rank that skips a step for a bad number skips its collectives with it."),
        ),
        steps=(
            _PAGE,
            _DUMPS,
            HandStep("Look for a branch by rank or data around a collective (last batch, skipped step, evaluation)."),
            HandStep("Restart with PyTorch's checks: they name both calls (slow).", "TORCH_DISTRIBUTED_DEBUG=DETAIL"),
            HandStep("Give it to the job's owner. No machine has to be taken away."),
        ),
    ),
    Runbook(
        "loader_stall",
        signs=(
            "One rank waits for its own data loader while the others have their batches.",
            "Its GPUs idle at the begin of a step; all wait for it at the end.",
        ),
        lookalikes=(
            Lookalike("shared_service", "There all ranks wait for data together."),
            Lookalike("cpu_contention", "There something else takes the CPU that the loader's workers need."),
            Lookalike("hdfs_error", "There the kernel log names the file server."),
        ),
        steps=(
            HandStep("Where do the loader's workers stand (PID is one worker's)?", "py-spy dump --pid PID"),
            HandStep(
                "Do they wait for a disk, a CPU or memory?",
                "cat /proc/pressure/io /proc/pressure/cpu /proc/pressure/memory",
            ),
            HandStep("Is one shard much larger or on a slower store than the others'?"),
            HandStep("Give it to the job's owner: more workers, more prefetch, even shards."),
            HandStep("The same machine with other jobs, too: look at its disk.", "iostat -x 5 3"),
        ),
    ),
    Runbook(
        "nan_gradient",
        signs=(
            "One rank's loss or gradient was the first that is no number, or its values jump alone, again and again.",
            "Soon after, all ranks have the same bad numbers, through the gradient's sum.",
        ),
        lookalikes=(
            Lookalike("bad data", "The same step is bad again after a restart, on another machine."),
            Lookalike("a diverging model", "All ranks lose their numbers in the same step, after a growing loss."),
            Lookalike("ecc_error", "The machine reports it, mostly with XID 94 or 95."),
        ),
        steps=(
            HandStep("Stop the job before it writes a checkpoint with bad numbers."),
            _PAGE,
            HandStep("Start from the last checkpoint before the onset, with the named machine left out."),
            HandStep(
                "The same step is bad again elsewhere: look at that batch and the learning rate, not at the machine."
            ),
            HandStep(
                "It is well without the machine: replay the same steps on it and on a good one, compare the numbers."
            ),
            HandStep(
                "Test the machine. A GPU that computes wrongly may pass it: ask the vendor for field diagnostics.",
                "dcgmi diag -r 3",
            ),
        ),
    ),
    Runbook(
        "divergence",
        signs=(
            "Loss or gradient norm of all ranks rose to five times their past. No rank differs from the others.",
            "The job goes on at its usual pace.",
        ),
        lookalikes=(
            Lookalike("nan_gradient", "There a loss is no finite number; one rank had it first."),
            Lookalike("silent data corruption", "There one machine's numbers differ from those of its peers."),
        ),
        steps=(
            _PAGE,
            HandStep("Was the learning rate, the data or the code changed at that step? Ask the job's owner."),
            HandStep("Roll back to the checkpoint before the rise. The same rise at the same step: data or program."),
            HandStep("Another rise on the same machines only: test them under load.", "dcgmi diag -r 3"),
        ),
    ),
    Runbook(
        "gradual_slowdown",
        signs=(
            "The steps of all ranks became longer little by little. No rank is slower than the others.",
            "It may have gone on for hours before it is told.",
        ),
        lookalikes=(
            Lookalike("workload_change", "There the pace changed at one step: a new stage, a longer sequence."),
            Lookalike("software_jitter", "There single steps are long, and the others are as before."),
        ),
        steps=(
            _PAGE,
            HandStep("Do the steps become longer by plan (sequence length, batch)? Then nothing is wrong."),
            HandStep(
                "Does memory of the processes grow, or do caches and logs?", "ps -eo pid,rss,etime,cmd --sort -rss"
            ),
            HandStep("Does the storage of the data become slower?", "iostat -x 5"),
            HandStep("Restart from the last checkpoint: the old pace comes back where the program leaks."),
        ),
    ),
)
