"""FLOPs of a transformer's step, peaks of GPUs by their names, and what a step made use of."""

from __future__ import annotations

import pytest

from tocsin.models.mfu import mfu_ratio, peak_flops_per_second, transformer_flops


def test_each_token_takes_six_operations_for_each_parameter() -> None:
    assert transformer_flops(7e9, 4e6) == 6 * 7e9 * 4e6


def test_attention_adds_twelve_for_each_layer_element_and_position() -> None:
    without = transformer_flops(175e9, 2048)
    whole = transformer_flops(175e9, 2048, layers=96, hidden_size=12288, sequence_length=2048)
    assert whole - without == 12 * 96 * 12288 * 2048 * 2048


def test_it_gives_the_utilization_that_palm_published() -> None:
    """PaLM 540B: 118 layers, 48 heads of 256, sequences of 2048; 238.3e3 tokens a second on 6144 chips of 275e12."""
    flops = transformer_flops(540.35e9, 238.3e3, layers=118, hidden_size=48 * 256, sequence_length=2048)
    assert mfu_ratio(flops, 1.0, 6144 * 275e12) == pytest.approx(0.462, abs=0.003)


@pytest.mark.parametrize(
    ("name", "tera"),
    [
        ("NVIDIA H100 80GB HBM3", 989.4),
        ("NVIDIA H100 PCIe", 756.0),
        ("NVIDIA H100 NVL", 835.5),
        ("NVIDIA H200", 989.4),
        ("NVIDIA H20", 148.0),
        ("NVIDIA A100-SXM4-80GB", 312.0),
        ("Tesla V100-SXM2-32GB", 125.0),
        ("Tesla V100-PCIE-16GB", 112.0),
        ("NVIDIA L40S", 362.0),
        ("NVIDIA L4", 121.0),
        ("NVIDIA GB200", 2500.0),
        ("AMD Instinct MI300X", 1307.4),
    ],
)
def test_a_known_gpu_has_its_data_sheet_s_peak(name: str, tera: float) -> None:
    assert peak_flops_per_second(name) == pytest.approx(tera * 1e12)


@pytest.mark.parametrize("name", ["", "NVIDIA GeForce RTX 4090", "NVIDIA H1000", "NVIDIA H100 80GB HBM3 MIG 1g.10gb"])
def test_another_gpu_has_none(name: str) -> None:
    assert peak_flops_per_second(name) is None
