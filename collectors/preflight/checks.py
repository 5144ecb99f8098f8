"""The checks of this host, in the order of a stop-time flow, each bounded in time."""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tocsin.collectors.preflight.bounded import ChildAnswer, module_command, number_of, run_all
from tocsin.collectors.preflight.clocks import CpuClocks, GpuClocks
from tocsin.collectors.preflight.vendor import dcgm_check, smi_check
from tocsin.collectors.sources.nvml import nvml_library
from tocsin.schemas import preflight_limits as limits
from tocsin.schemas.errors import NothingHere
from tocsin.schemas.preflight import CheckName, CheckOutcome, CheckReason, HostAnswer, PreflightResult, failed, skipped

BYTES_PER_SECOND: Final = "bytes_per_second"
_NVIDIA: Final = "0x10de"
_DISPLAYS: Final = frozenset({"0x0300", "0x0302"})
"""Classes of PCI devices: a VGA controller, a 3D controller."""
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class PreflightConfig:
    """What is checked, and for how long.

    Attributes:
        host: name under which the host answers.
        seconds: load of each check.
        grace_seconds: time beyond its load after which a check is ended and counts as failed.
        folder: folder on the disk that is checked.
        disk_bytes: most that is written to it.
        memory_bytes: size of the copied memory, all cores together.
        left_out: checks that do not run.
        ends_at_failure: whether the first failure skips the checks after it.
        nvml: gives pynvml or a fake.
        sys_root: mount point of sysfs.
    """

    host: str
    seconds: float = limits.SECONDS_PER_CHECK
    grace_seconds: float = limits.GRACE_SECONDS
    folder: str = "/var/tmp"  # noqa: S108  # on a disk; /tmp may be memory. The file has no name
    disk_bytes: int = limits.DISK_BYTES
    memory_bytes: int = limits.MEMORY_BYTES
    left_out: frozenset[CheckName] = frozenset()
    ends_at_failure: bool = False
    nvml: Callable[[], Any] = nvml_library
    sys_root: str = "/sys"


class HostChecks:
    """Runs the checks of this host, one after the other."""

    def __init__(self, config: PreflightConfig) -> None:
        """Read the clocks' settings; no load yet."""
        self._config = config
        self._cores = sorted(os.sched_getaffinity(0))
        self._cpu_clocks = CpuClocks(config.sys_root)
        self._gpu_clocks: GpuClocks | None = None
        self._no_gpu = ""
        self._loaded_count = 0
        """Number of GPUs that worked under load."""
        try:
            self._gpu_clocks = GpuClocks(config.nvml)
        except NothingHere as error:
            self._no_gpu = str(error)

    @property
    def gpu_count(self) -> int:
        """Number of GPUs that answer."""
        return self._gpu_clocks.count if self._gpu_clocks is not None else 0

    def run(self, exchange: Callable[[], Iterable[PreflightResult]] | None = None) -> HostAnswer:
        """Run all checks and return the answer.

        Args:
            exchange: the checks between hosts; called after the host's own checks; None: there is no other host.
        """
        start = time.monotonic()
        found: list[PreflightResult] = []
        for names, check in self._stages(exchange or one_host):
            found += self._stage(names, check, has_failed=any(one.outcome is CheckOutcome.FAILED for one in found))
        if self._gpu_clocks is not None:
            self._gpu_clocks.close()
        seconds, known = time.monotonic() - start, max(self.gpu_count, pci_gpu_count(self._config.sys_root))
        return HostAnswer(self._config.host, tuple(found), seconds, boot_id(), self._loaded_count, known)

    def _stages(
        self, exchange: Callable[[], Iterable[PreflightResult]]
    ) -> list[tuple[tuple[CheckName, ...], Callable[[], Iterable[PreflightResult]]]]:
        """Return the checks in their order: the names of a stage's results, and what gives them."""
        name, bound = CheckName, self._config.seconds + self._config.grace_seconds
        return [
            ((name.NVIDIA_SMI,), lambda: (smi_check(bound),)),
            ((name.DCGM,), lambda: (dcgm_check(bound),)),
            ((name.MEMORY_BANDWIDTH,), self._memory),
            ((name.DISK_WRITE_BANDWIDTH, name.DISK_READ_BANDWIDTH), self._disk),
            ((name.GROUP_ALL_REDUCE, name.PAIR_ALL_REDUCE), exchange),
            ((name.COMPUTATION,), self._computation),
            ((name.TENSOR_COMPUTATION, name.GPU_MEMORY_BANDWIDTH), self._tensors),
            ((name.CPU_CLOCKS,), lambda: (self._cpu_clocks.result(),)),
            ((name.GPU_CLOCKS,), self._gpu_result),
        ]

    def _stage(
        self, names: Sequence[CheckName], check: Callable[[], Iterable[PreflightResult]], *, has_failed: bool
    ) -> list[PreflightResult]:
        """Return the results of one stage, or why it was left out."""
        wanted = [name for name in names if name not in self._config.left_out]
        out = [skipped(name, CheckReason.NOT_ASKED) for name in names if name not in wanted]
        if wanted and has_failed and self._config.ends_at_failure:
            out += [skipped(name, CheckReason.EARLIER_FAILURE) for name in wanted]
        elif wanted:
            out += [result for result in check() if result.name in wanted]
        return out

    def _run(self, commands: Sequence[Sequence[str]], watch: Callable[[], None] | None = None) -> list[ChildAnswer]:
        """Run children for one check's time."""
        return run_all(commands, self._config.seconds + self._config.grace_seconds, while_running=watch)

    def _computation(self) -> list[PreflightResult]:
        """Repeat work with a known result on every core at once."""
        commands = [module_command("_exact_work", core, self._config.seconds) for core in self._cores]
        answers = self._run(commands, self._cpu_clocks.sample)
        name = CheckName.COMPUTATION
        broken = first_broken(name, answers, [f"core {core}" for core in self._cores])
        if broken is not None:
            return [broken]
        wrong = [(core, answer) for core, answer in zip(self._cores, answers, strict=True) if _wrong(answer)]
        figure = min(number_of(answer.values, "blocks_per_second") for answer in answers)
        unit, kind = "blocks_per_second", f"{len(self._cores)} cores, {processor()}"
        if wrong:
            shown = ", ".join(
                f"core {core}: {_wrong(answer)} of {answer.values['blocks_count']}" for core, answer in wrong
            )
            return [
                PreflightResult(
                    name, CheckOutcome.FAILED, CheckReason.WRONG_RESULT, figure, unit, detail=shown, kind=kind
                )
            ]
        return [PreflightResult(name, CheckOutcome.PASSED, CheckReason.EXACT, figure, unit, kind=kind)]

    def _memory(self) -> list[PreflightResult]:
        """Copy memory on every core at once."""
        share = max(2**20, self._config.memory_bytes // len(self._cores))
        commands = [module_command("_copy_work", core, self._config.seconds, share) for core in self._cores]
        answers = self._run(commands)
        name = CheckName.MEMORY_BANDWIDTH
        broken = first_broken(name, answers, [f"core {core}" for core in self._cores])
        if broken is not None:
            return [broken]
        figure = sum(number_of(answer.values, BYTES_PER_SECOND) for answer in answers)
        kind = f"{len(self._cores)} cores, {processor()}"
        wrong = sum(_wrong(answer) for answer in answers)
        if wrong:
            text = f"{wrong} copies differ from their source"
            return [
                PreflightResult(
                    name, CheckOutcome.FAILED, CheckReason.WRONG_RESULT, figure, BYTES_PER_SECOND, detail=text
                )
            ]
        return [
            PreflightResult(name, CheckOutcome.PASSED, CheckReason.TOO_FEW_PEERS, figure, BYTES_PER_SECOND, kind=kind)
        ]

    def _disk(self) -> list[PreflightResult]:
        """Write a file and read it back."""
        config = self._config
        command = module_command(
            "_disk_work", config.folder, config.seconds, config.disk_bytes, limits.DISK_BLOCK_BYTES
        )
        return disk_results(self._run([command])[0])

    def _tensors(self) -> list[PreflightResult]:
        """Repeat exact products and a reference training step on every GPU at once, or on the CPU."""
        names = (CheckName.TENSOR_COMPUTATION, CheckName.GPU_MEMORY_BANDWIDTH)
        if importlib.util.find_spec("torch") is None:
            return [skipped(name, CheckReason.NO_TORCH) for name in names]
        devices = [f"cuda:{index}" for index in range(self.gpu_count)] or ["cpu"]
        commands = [module_command("_tensor_work", device, self._config.seconds) for device in devices]
        watch = self._gpu_clocks.sample if self._gpu_clocks is not None else None
        results = tensor_results(devices, self._run(commands, watch), self._no_gpu)
        if all(one.outcome is not CheckOutcome.SKIPPED for one in results):
            self._loaded_count = self.gpu_count
        return results

    def _gpu_result(self) -> list[PreflightResult]:
        """Return what the load did to the GPUs' clocks."""
        if self._gpu_clocks is None:
            return [skipped(CheckName.GPU_CLOCKS, CheckReason.NO_GPU, self._no_gpu)]
        return [self._gpu_clocks.result()]


def one_host() -> list[PreflightResult]:
    """Return the results of the exchanges for a host that is checked alone."""
    names = (CheckName.GROUP_ALL_REDUCE, CheckName.PAIR_ALL_REDUCE)
    return [skipped(name, CheckReason.ONE_HOST) for name in names]


def disk_results(answer: ChildAnswer) -> list[PreflightResult]:
    """Return the results of the disk's child: of writing, and of reading."""
    write, read = CheckName.DISK_WRITE_BANDWIDTH, CheckName.DISK_READ_BANDWIDTH
    values = answer.values
    refusal = values.get("refusal")
    if answer.reason is not None or refusal is not None:
        reason = answer.reason or CheckReason.DISK_REFUSES
        return [failed(name, reason, str(refusal or answer.detail)) for name in (write, read)]
    kind = f"{values.get('disk') or 'no disk'}, {'direct' if values.get('is_direct') else 'page cache'}"
    own, others = number_of(values, "own_bytes"), number_of(values, "others_bytes")
    detail = f"{others / 2**20:.0f} MiB by others beside {own / 2**20:.0f} MiB" if own else ""
    is_shared = others > limits.OTHER_WRITES_RATIO * own
    wrong = int(number_of(values, "wrong_count"))
    return [
        PreflightResult(
            write,
            CheckOutcome.FAILED if is_shared else CheckOutcome.PASSED,
            CheckReason.OTHER_WRITER if is_shared else CheckReason.TOO_FEW_PEERS,
            number_of(values, "write_bytes_per_second"),
            BYTES_PER_SECOND,
            detail=detail,
            kind=kind,
        ),
        PreflightResult(
            read,
            CheckOutcome.FAILED if wrong else CheckOutcome.PASSED,
            CheckReason.READ_BACK_DIFFERS if wrong else CheckReason.TOO_FEW_PEERS,
            number_of(values, "read_bytes_per_second"),
            BYTES_PER_SECOND,
            detail=f"{wrong} blocks differ" if wrong else "",
            kind=kind,
        ),
    ]


def tensor_results(devices: Sequence[str], answers: Sequence[ChildAnswer], no_gpu: str) -> list[PreflightResult]:
    """Return the results of the devices' children: computation, and memory bandwidth of the GPUs."""
    compute, memory = CheckName.TENSOR_COMPUTATION, CheckName.GPU_MEMORY_BANDWIDTH
    broken = first_broken(compute, answers, devices)
    if broken is not None:
        return [broken, skipped(memory, CheckReason.EARLIER_FAILURE)]
    if any("missing" in answer.values for answer in answers):
        return [skipped(name, CheckReason.NO_TORCH) for name in (compute, memory)]
    out = [_tensor_result(devices, answers)]
    if devices[0] == "cpu":
        return [*out, skipped(memory, CheckReason.NO_GPU, no_gpu)]
    figure = min(number_of(answer.values, "memory_bytes_per_second") for answer in answers)
    wrong = int(sum(number_of(answer.values, "memory_wrong_count") for answer in answers))
    kind = str(answers[0].values.get("kind", ""))
    outcome = CheckOutcome.FAILED if wrong else CheckOutcome.PASSED
    reason = CheckReason.WRONG_RESULT if wrong else CheckReason.TOO_FEW_PEERS
    detail = f"{wrong} copies differ from their source" if wrong else ""
    return [*out, PreflightResult(memory, outcome, reason, figure, BYTES_PER_SECOND, detail=detail, kind=kind)]


def _tensor_result(devices: Sequence[str], answers: Sequence[ChildAnswer]) -> PreflightResult:
    """Return the result of the devices' computation; like devices of one host must have one digest."""
    name, kinds = CheckName.TENSOR_COMPUTATION, [str(answer.values.get("kind", "")) for answer in answers]
    figure, unit = min(number_of(answer.values, "flop_per_second") for answer in answers), "flop_per_second"
    digests = [sorted(_digests(answer)) for answer in answers]
    for device, answer, own in zip(devices, answers, digests, strict=True):
        if _wrong(answer):
            text = f"{device}: {_wrong(answer)} of {answer.values.get('compared_count')} products"
            return PreflightResult(name, CheckOutcome.FAILED, CheckReason.WRONG_RESULT, figure, unit, detail=text)
        if len(own) != 1:
            text = f"{device}: the training step gave {len(own)} results"
            return PreflightResult(name, CheckOutcome.FAILED, CheckReason.NOT_REPEATABLE, figure, unit, detail=text)
    most = max(digests, key=digests.count)
    odd = [
        device for device, own, kind in zip(devices, digests, kinds, strict=True) if own != most and kind == kinds[0]
    ]
    if odd:
        text = f"{', '.join(odd)}: another result of the training step than the other devices here"
        return PreflightResult(name, CheckOutcome.FAILED, CheckReason.DIFFERS_FROM_PEERS, figure, unit, detail=text)
    return PreflightResult(
        name, CheckOutcome.PASSED, CheckReason.EXACT, figure, unit, detail=devices[0], digest=most[0], kind=kinds[0]
    )


def first_broken(name: CheckName, answers: Sequence[ChildAnswer], places: Sequence[str]) -> PreflightResult | None:
    """Return the failure of the first child without an answer, None if all answered."""
    for answer, place in zip(answers, places, strict=True):
        if answer.reason is not None:
            return failed(name, answer.reason, f"{place}: {answer.detail}".strip(": "))
    return None


def boot_id() -> str:
    """Return the boot id of this machine's kernel, "" where it has none."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def pci_gpu_count(sys_root: str = "/sys") -> int:
    """Return the number of NVIDIA's GPUs on the PCI bus, whether or not the driver can speak to them."""
    places = Path(sys_root, "bus/pci/devices").glob("*")
    return sum(_pci_word(one / "vendor") == _NVIDIA and _pci_word(one / "class")[:6] in _DISPLAYS for one in places)


def _pci_word(path: Path) -> str:
    """Return what sysfs says of a device, "" where it says nothing."""
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def processor() -> str:
    """Return the processor's model, family and stepping as the kernel names them; hosts with the same are compared."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            for line in file:
                key, _, value = line.partition(":")
                if key.strip() in {"model name", "CPU part"}:
                    return value.strip()
    except OSError:
        pass
    return os.uname().machine


def _wrong(answer: ChildAnswer) -> int:
    """Return the number of wrong results in an answer."""
    return int(number_of(answer.values, "wrong_count"))


def _digests(answer: ChildAnswer) -> Iterable[str]:
    """Return the digests in an answer."""
    found = answer.values.get("digests")
    return found if isinstance(found, dict) else ()
