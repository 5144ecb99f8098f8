from pathlib import Path

import pytest

from tests.tools.check_sizes import FUNCTION_LINES, MODULE_LINES, main


def function_of(line_count: int, docstring: str = "", head: str = "def run() -> None:") -> str:
    return f"{head}\n{docstring}" + "    x = 1\n" * (line_count - 1)


def sentences(folder: Path, capsys: pytest.CaptureFixture[str], **sources: str) -> list[str]:
    """Check a folder with these modules and return the lines printed, the folder's name removed."""
    for name, source in sources.items():
        (folder / f"{name}.py").write_text(source)
    status = main([str(folder)])
    *lines, last = capsys.readouterr().out.splitlines()
    assert status == (1 if lines else 0)
    assert last.startswith(f"{len(lines)} found" if lines else f"sizes: {len(sources)} modules")
    return [line.removeprefix(f"{folder}/") for line in lines]


def test_a_module_of_the_most_lines_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sentences(tmp_path, capsys, full="x = 1\n" * MODULE_LINES) == []


def test_a_module_of_one_line_more_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = sentences(tmp_path, capsys, full="x = 1\n" * (MODULE_LINES + 1))

    assert line.startswith(f"full.py:{MODULE_LINES + 1}: the module has {MODULE_LINES + 1} lines")


def test_a_function_of_the_most_lines_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sentences(tmp_path, capsys, work=function_of(FUNCTION_LINES)) == []


@pytest.mark.parametrize("head", ["def run() -> None:", "async def run() -> None:"])
def test_a_function_of_one_line_more_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str], head: str) -> None:
    (line,) = sentences(tmp_path, capsys, work=function_of(FUNCTION_LINES + 1, head=head))

    assert line.startswith(f"work.py:1: run has {FUNCTION_LINES + 1} lines")


def test_a_docstring_does_not_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    docstring = '    """Run.\n\n    Long.\n    """\n'

    assert sentences(tmp_path, capsys, work=function_of(FUNCTION_LINES, docstring)) == []
    (line,) = sentences(tmp_path, capsys, work=function_of(FUNCTION_LINES + 1, docstring))
    assert line.startswith("work.py:1: run ")


def test_a_method_counts_like_a_function(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = "".join(f"    {line}\n" for line in function_of(FUNCTION_LINES + 1).splitlines())

    (line,) = sentences(tmp_path, capsys, work=f"class Work:\n{body}")

    assert line.startswith("work.py:2: run ")


@pytest.mark.parametrize("name", ["Run", "_Run"])
def test_a_class_name_that_stands_in_two_modules_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (line,) = sentences(tmp_path, capsys, first=f"class {name}: ...\n", second=f"\nclass {name}: ...\n")

    assert line.startswith(f"second.py:2: class {name} ")
    assert line.endswith("first.py:1")


def test_a_class_name_that_stands_twice_in_one_module_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = "class Outer:\n    class Row: ...\n\nclass Row: ...\n"

    (line,) = sentences(tmp_path, capsys, only=source)

    assert "class Row has the name" in line


def test_a_file_that_does_not_parse_is_a_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = sentences(tmp_path, capsys, broken="x = 1\nclass :\n")

    assert line.startswith("broken.py:2: does not parse")


def test_a_folder_that_does_not_exist_is_an_error_and_no_success(tmp_path: Path) -> None:
    assert main([str(tmp_path / "absent")]) == 2
