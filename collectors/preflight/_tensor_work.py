"""Child process: exact matrix products and a reference training step on one device, and its memory's bandwidth.

Matrices hold -1, 0 and 1. All partial sums are integers that each number type holds exactly, so a product has one right
result in any order of addition; it is computed once with integers on the CPU. The training step (attention, layer norm,
backward) with fixed weights and input is compared with itself, and by its digest with like hosts: the bitwise alignment
of ByteRobust (SOSP 2025).

Usage: ``python -m tocsin.collectors.preflight._tensor_work DEVICE SECONDS``; prints one JSON object.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, Final

_BASE: Final = 512
_SIGNS: Final = (1, -1, 1, -1, 1, -1, 1)
"""Signs of the copies along the summed side: the copies cancel, and the sum is that of one of them."""
_BATCH: Final = 20
_GPU_TILES: Final = 8
_GPU_COPY_BYTES: Final = 2**30
_FLOATS: Final = {"cpu": ("float32", "float64"), "cuda": ("bfloat16", "float16", "float32", "float64")}


class TensorLoad:
    """The work of one device.

    Attributes:
        counts: results that were compared and those that were wrong, by number type.
        digests: digests of the training step -> how often each came.
    """

    def __init__(self, torch: Any, device: str) -> None:
        """Make weights, inputs and the known product."""
        self._torch = torch
        self._device = torch.device(device)
        self._tiles = _GPU_TILES if self._device.type == "cuda" else 1
        signs = _SIGNS if self._device.type == "cuda" else _SIGNS[:3]
        self.counts: dict[str, list[int]] = {}
        self.digests: dict[str, int] = {}
        make = torch.Generator().manual_seed(20_26)
        left, right = (torch.randint(-1, 2, (_BASE, _BASE), generator=make) for _ in range(2))
        self._known = (left @ right).repeat(self._tiles, self._tiles).to(self._device)
        self._left = torch.cat([sign * left for sign in signs], 1).repeat(self._tiles, 1).to(self._device)
        self._right = torch.cat([right] * len(signs), 0).repeat(1, self._tiles).to(self._device)
        self._flop_per_product = 2 * self._left.shape[0] * self._left.shape[1] * self._right.shape[1]
        self._weights = [torch.randn(256, 256, generator=make).to(self._device) / 16 for _ in range(4)]
        self._input = torch.randn(8, 128, 256, generator=make).to(self._device)

    def run(self, seconds: float) -> dict[str, object]:
        """Repeat products and steps for some seconds and return what was found."""
        rates: dict[str, list[float]] = {}
        until = time.monotonic() + seconds
        while not rates or time.monotonic() < until:
            for name in _FLOATS[self._device.type]:
                rates.setdefault(name, []).append(self._products(name))
            digest = self._step_digest()
            self.digests[digest] = self.digests.get(digest, 0) + 1
        fastest = next(iter(rates))
        return {
            "compared_count": sum(compared for compared, _ in self.counts.values()),
            "wrong_count": sum(wrong for _, wrong in self.counts.values()),
            "wrong_types": sorted(name for name, (_, wrong) in self.counts.items() if wrong),
            "digests": self.digests,
            "flop_per_second": sorted(rates[fastest])[len(rates[fastest]) // 2],
            "number_type": fastest,
        }

    def _products(self, name: str) -> float:
        """Compare a batch of products in one number type with the known one; return operations a second."""
        torch = self._torch
        kind = getattr(torch, name)
        left, right, known = self._left.to(kind), self._right.to(kind), self._known.to(kind)
        repeat = _BATCH if self._device.type == "cuda" else 1
        seconds = self._timed(lambda: [left @ right for _ in range(repeat)])
        counts = self.counts.setdefault(name, [0, 0])
        found = [left @ right for _ in range(2)]
        counts[0] += len(found)
        counts[1] += sum(not torch.equal(one, known) for one in found)
        return float(repeat * self._flop_per_product / max(seconds, 1e-9))

    def _timed(self, run: Callable[[], object]) -> float:
        """Return the seconds that a call takes on the device; all earlier work is done before it begins."""
        self._wait()
        start = time.perf_counter()
        run()
        self._wait()
        return time.perf_counter() - start

    def _wait(self) -> None:
        """Wait until the device has done everything."""
        if self._device.type == "cuda":
            self._torch.cuda.synchronize(self._device)

    def _step_digest(self) -> str:
        """Return the digest of the gradients of the reference step."""
        torch = self._torch
        weights = [weight.clone().requires_grad_() for weight in self._weights]
        query, key, value, out = (self._input @ weight for weight in weights)
        attended = torch.softmax(query @ key.transpose(1, 2) / 16, -1) @ value
        loss = torch.nn.functional.layer_norm(attended * out, (256,)).square().mean() + attended.sin().mean()
        loss.backward()
        hashed = hashlib.sha256()
        for weight in weights:
            gradient = weight.grad.cpu().contiguous()
            hashed.update(ctypes.string_at(gradient.data_ptr(), gradient.nbytes))
        return hashed.hexdigest()

    def memory_bandwidth(self, seconds: float) -> tuple[float, int]:
        """Copy the device's memory to and fro; return bytes read and written a second, and the wrong copies."""
        torch = self._torch
        source = torch.randint(-128, 127, (_GPU_COPY_BYTES,), dtype=torch.int8, device=self._device)
        target = torch.empty_like(source)
        target.copy_(source)
        until = time.monotonic() + seconds
        rates: list[float] = []
        wrong_count = 0
        while not rates or time.monotonic() < until:
            took = self._timed(lambda: [target.copy_(source) for _ in range(_BATCH)])
            rates.append(2 * _BATCH * _GPU_COPY_BYTES / took)
            wrong_count += not torch.equal(source, target)
            target.zero_()
        return sorted(rates)[len(rates) // 2], wrong_count


def work(device: str, seconds: float) -> dict[str, object]:
    """Load one device for some seconds and return what was found, or ``{"missing": "torch"}``."""
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # makes cuBLAS repeatable (PyTorch, "Reproducibility")
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return {"missing": "torch"}
    torch.use_deterministic_algorithms(True)
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    load = TensorLoad(torch, device)
    is_gpu = device.startswith("cuda")
    found = load.run(seconds / 2 if is_gpu else seconds)
    kind = f"torch {torch.__version__}"
    if is_gpu:
        rate, wrong_count = load.memory_bandwidth(seconds / 2)
        found.update(memory_bytes_per_second=rate, memory_wrong_count=wrong_count)
        kind += f", {torch.cuda.get_device_name(device)}, CUDA {torch.version.cuda}"
    else:
        kind += f", {torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads"
    return {**found, "kind": kind}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(work(sys.argv[1], float(sys.argv[2]))) + "\n")
