"""Lint: modules and functions stay small, and a class name stands for one class.

A module has at most ``MODULE_LINES`` lines. A function has at most ``FUNCTION_LINES`` lines, its
docstring not counted. No two classes of the rooms share a name, private ones included.

Usage: ``python -m tests.tools.check_sizes [FOLDER ...]``; by default the rooms and the command
line. Prints ``file:line: sentence`` for each violation and exits with 1 when there is one.
"""

import ast
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.tools.python_files import Finding, check, shown

ROOMS = ("schemas", "models", "pipeline", "collectors", "src/tocsin")

MODULE_LINES = 400
"""Lines of a module, at most."""
FUNCTION_LINES = 40
"""Lines of a function without its docstring, at most; decorators are not counted."""

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


class Definition(NamedTuple):
    """A class definition and where it stands."""

    name: str
    path: Path
    line: int


def docstring_line_count(node: FunctionNode) -> int:
    """Return the number of lines of a function's docstring, 0 where it has none."""
    first = node.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        return line_count(first)
    return 0


def line_count(node: ast.stmt) -> int:
    """Return the number of lines from a statement's first line to its last one."""
    return (node.end_lineno or node.lineno) - node.lineno + 1


def long_functions(tree: ast.Module) -> Iterator[tuple[int, str, int]]:
    """Yield line, name and length of each function of a module that has too many lines."""
    for node in ast.walk(tree):
        if isinstance(node, FunctionNode):
            count = line_count(node) - docstring_line_count(node)
            if count > FUNCTION_LINES:
                yield node.lineno, node.name, count


def size_findings(path: Path, source: str, tree: ast.Module) -> Iterator[Finding]:
    """Yield what is too long in one module: the module itself, then its functions."""
    count = len(source.splitlines())
    if count > MODULE_LINES:
        yield Finding(path, MODULE_LINES + 1, f"the module has {count} lines, at most {MODULE_LINES} are allowed")
    for line, name, count in long_functions(tree):
        limit = f"at most {FUNCTION_LINES} are allowed"
        yield Finding(path, line, f"{name} has {count} lines without its docstring, {limit}")


def definitions(path: Path, tree: ast.Module) -> Iterator[Definition]:
    """Yield all classes that a module defines, nested ones included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield Definition(node.name, path, node.lineno)


def name_findings(classes: Iterable[Definition]) -> Iterator[Finding]:
    """Yield each class whose name an earlier class has already."""
    first: dict[str, Definition] = {}
    for found in classes:
        earlier = first.setdefault(found.name, found)
        if earlier is not found:
            where = f"{shown(earlier.path)}:{earlier.line}"
            yield Finding(found.path, found.line, f"class {found.name} has the name of the one at {where}")


def findings(paths: Iterable[Path]) -> Iterator[Finding]:
    """Yield all that is wrong in the files; one that does not parse is wrong too."""
    classes: list[Definition] = []
    for path in paths:
        source = path.read_text(encoding="utf-8")
        try:
            tree = ast.parse(source)
        except SyntaxError as error:
            yield Finding(path, error.lineno or 0, f"does not parse: {error.msg}")
            continue
        yield from size_findings(path, source, tree)
        classes += definitions(path, tree)
    yield from name_findings(classes)


def main(arguments: Sequence[str]) -> int:
    """Check the folders, print what is wrong, return the exit status."""
    wrong = "{count} found; the limits: tests/tools/check_sizes.py"
    right = "sizes: {count} modules, modules and functions are small enough, each class name stands once"
    return check(arguments, ROOMS, findings, (wrong, right))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
