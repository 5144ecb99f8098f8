import textwrap
from pathlib import Path

import pytest

from tests.tools.check_units import UNITLESS, has_unit, main, violations


def fields_without_unit(body: str, decorator: str = "@dataclass(frozen=True)", name: str = "Thing") -> list[str]:
    source = f"{decorator}\nclass {name}:\n{textwrap.indent(textwrap.dedent(body).strip(), '    ')}\n"
    return [violation.field for violation in violations(source)]


@pytest.mark.parametrize(
    "annotation",
    ["int", "float", "int | None", "None | float", "int | float | None", "Optional[float]", '"int | None"'],
)
def test_a_number_without_a_unit_is_found_however_it_is_annotated(annotation: str) -> None:
    assert fields_without_unit(f"timeout: {annotation} = 1") == ["timeout"]


@pytest.mark.parametrize(
    "annotation", ["str", "bool", "bytes", "tuple[int, ...]", "None", "ClassVar[int]", "int | str"]
)
def test_what_is_not_a_plain_number_needs_no_unit(annotation: str) -> None:
    assert fields_without_unit(f"timeout: {annotation}") == []


@pytest.mark.parametrize(
    "name",
    [
        "ts_ns",
        "duration_seconds",
        "gpu_util_ratio",
        "pcie_bytes_per_second",
        "count",
        "rank",
        "src_rank",
        "op_seq",
    ],
)
def test_a_unit_or_a_word_that_needs_none_ends_the_name(name: str) -> None:
    assert has_unit(name)


@pytest.mark.parametrize("name", ["timeout", "duration_ms", "util_percent", "sm_clock_mhz", "seconds_left", "frank"])
def test_prefixed_scales_and_units_in_the_middle_do_not_count(name: str) -> None:
    assert not has_unit(name)


@pytest.mark.parametrize(
    ("decorator", "name"),
    [
        ("@dataclass", "Mutable"),
        ("@dataclass(slots=True)", "Mutable"),
        ("@dataclass(frozen=False)", "Mutable"),
        ("@final", "NoDataclass"),
        ("@dataclass(frozen=True)", "_Private"),
    ],
)
def test_only_public_frozen_dataclasses_are_read(decorator: str, name: str) -> None:
    assert fields_without_unit("timeout: int", decorator, name) == []


def test_the_decorator_may_be_written_with_its_module() -> None:
    assert fields_without_unit("timeout: int", "@dataclasses.dataclass(frozen=True, slots=True)") == ["timeout"]


def test_private_fields_and_class_attributes_are_left_alone() -> None:
    assert fields_without_unit("_timeout: int\nLIMIT = 3") == []


def test_a_violation_is_printed_with_file_and_line_and_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.py").write_text("@dataclass(frozen=True)\nclass Step:\n    rank: int\n    duration: float\n")

    assert main([str(tmp_path)]) == 1
    assert f"{tmp_path}/bad.py:4: Step.duration " in capsys.readouterr().out


def test_a_clean_folder_passes_and_says_how_much_was_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "good.py").write_text("@dataclass(frozen=True)\nclass Step:\n    duration_seconds: float\n")

    assert main([str(tmp_path)]) == 0
    assert "1 modules" in capsys.readouterr().out


def test_a_file_that_does_not_parse_is_a_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "broken.py").write_text("x = 1\nclass :\n")

    assert main([str(tmp_path)]) == 1
    assert f"{tmp_path}/broken.py:2: does not parse" in capsys.readouterr().out


def test_a_folder_that_does_not_exist_is_an_error_and_no_success(tmp_path: Path) -> None:
    assert main([str(tmp_path / "absent")]) == 2


def test_each_word_without_a_unit_has_a_reason() -> None:
    assert all(UNITLESS.values())
