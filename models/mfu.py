"""Model FLOPs utilization (MFU): the share of its GPUs' peak that a training job's model makes use of.

MFU counts what the model needs for a step, however the program computes it: recomputed activations count once
(PaLM, arXiv:2204.02311, appendix B).
"""

from __future__ import annotations

import re
from typing import Final

_TERA: Final = 1e12
_PEAKS: Final[tuple[tuple[tuple[str, ...], float], ...]] = (
    (("GB200",), 2500.0),
    (("B200",), 2250.0),
    (("GH200",), 989.4),
    (("H200", "NVL"), 835.5),
    (("H200",), 989.4),
    (("H100", "NVL"), 835.5),
    (("H100", "PCIE"), 756.0),
    (("H100",), 989.4),
    (("H800", "PCIE"), 756.0),
    (("H800",), 989.4),
    (("H20",), 148.0),
    (("A100",), 312.0),
    (("A800",), 312.0),
    (("A40",), 149.7),
    (("A30",), 165.0),
    (("A10",), 125.0),
    (("L40S",), 362.0),
    (("L40",), 181.0),
    (("L20",), 119.5),
    (("L4",), 121.0),
    (("V100", "PCIE"), 112.0),
    (("V100",), 125.0),
    (("T4",), 65.0),
    (("MI325X",), 1307.4),
    (("MI300X",), 1307.4),
    (("MI250X",), 191.5),
)
"""Words of a GPU's name -> its peak in teraFLOP/s: dense bfloat16 (float16 for V100 and T4), without sparsity.

The figures are those of the vendors, as tables of other projects give them; they were not compared with the data
sheets. A line with more words stands before one with fewer. NVIDIA's sheets of Hopper and
later print the figure with sparsity, which is twice the dense one. MI250X: each of its two dies is a device.
"""
_NO_WHOLE_GPU: Final = "MIG"
"""Word in the name of a part of a GPU, whose peak depends on the part."""


def peak_flops_per_second(gpu_name: str) -> float | None:
    """Return a GPU's peak of dense 16-bit matrix products in FLOP/s; None for a GPU that the table does not have.

    Args:
        gpu_name: the name that its driver tells, such as ``NVIDIA H100 80GB HBM3``.
    """
    words = set(re.split(r"[^A-Z0-9]+", gpu_name.upper()))
    if _NO_WHOLE_GPU in words:
        return None
    return next((peak * _TERA for wanted, peak in _PEAKS if words.issuperset(wanted)), None)


def transformer_flops(
    parameters: float, tokens: float, *, layers: int = 0, hidden_size: int = 0, sequence_length: int = 0
) -> float:
    """Return the floating point operations of one training step of a transformer, forward and backward.

    Each token takes 6 operations for each parameter (Kaplan et al., arXiv:2001.08361, 2.1), and 12 for each layer,
    each element of the hidden state and each position that it attends to (PaLM, arXiv:2204.02311, appendix B). Causal
    attention is not halved, as in PaLM.

    Args:
        parameters: parameters that work on each token; of a mixture of experts, the active ones.
        tokens: tokens of the step.
        layers: number of layers; 0 leaves the attention out.
        hidden_size: attention heads times their size.
        sequence_length: length of each sequence.
    """
    return tokens * (6.0 * parameters + 12.0 * layers * hidden_size * sequence_length)


def mfu_ratio(flops_per_step: float, step_seconds: float, peak_per_second: float) -> float:
    """Return the model FLOPs utilization, 0 to 1.

    Args:
        flops_per_step: what the model needs in a step, of one GPU or of all.
        step_seconds: length of the step.
        peak_per_second: peak of the same GPUs in FLOP/s.
    """
    return flops_per_step / (step_seconds * peak_per_second)
