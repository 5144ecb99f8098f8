"""Lint: numeric fields of public frozen dataclasses carry their unit in the name.

``duration`` of what: seconds, milliseconds, nanoseconds? A reader of the type must not have to
look it up. So the name of each ``int`` or ``float`` field (also ``| None``) ends in a unit of
``UNITS``, or in a word of ``UNITLESS``, where each word says why it has none.

Usage: ``python -m tests.tools.check_units [FOLDER ...]``; by default the four rooms. Prints
``file:line: Class.field`` for each violation and exits with 1 when there is one.
"""

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from tests.tools.python_files import Finding, check

ROOMS = ("schemas", "models", "pipeline", "collectors")

UNITS = (
    # base units
    "seconds",
    "ns",
    "bytes",
    "watts",
    "joules",
    "volts",
    "amperes",
    "hertz",
    "celsius",
    "ratio",
    "sigmas",
    "days",
    # compounds: the word before it says what of (bytes_per_second)
    "per_second",
    "per_machine_day",
    # numbers of things and places in an order
    "count",
    "index",
    "size",
    "ticks",
    "steps",
    "slices",
)
"""What a name may end in. No ``ms``, ``us``, ``percent``, ``mhz``: convert at the edge."""

UNITLESS: Mapping[str, str] = MappingProxyType(
    {
        # addresses and ordinals
        "attempt": "ordinal: the job's restarts, from 0",
        "channel": "ordinal of a collective's channel",
        "gpu": "index on its host; no key",
        "id": "a name that happens to be a number",
        "figure": "its unit is the field beside it",
        "median": "the same: of figures",
        "level": "ordinal of a ladder or of a codec's effort",
        "peer": "a rank",
        "pid": "the kernel's process number",
        "port": "a TCP port",
        "priority": "ordinal",
        "rank": "ordinal in the job",
        "seed": "start of a random sequence",
        "row": "position in an array",
        "column": "position in an array",
        "side": "high or low",
        "seq": "sequence number",
        "uid": "the kernel's user number",
        "step": "the training step's own number",
        "epoch": "ordinal of the active process among its predecessors",
        "revision": "ordinal of an action's change",
        "update": "ordinal of a verdict's update",
        "version": "ordinal of a format or a schema",
        # parallel coordinates, named by the recording format
        "cp": "coordinate",
        "dp": "coordinate",
        "ep": "coordinate",
        "pp": "coordinate",
        "tp": "coordinate",
        "stage": "coordinate: pp",
        # model chunks and microbatches, named by the public what-if traces
        "mc": "ordinal of a chunk in its stage",
        "gmc": "ordinal of a chunk in the model",
        # codes
        "code": "an exit code or an XID",
        "errno": "the kernel's error number",
        "signal": "a signal's number",
        "status": "an exit or HTTP status",
        # pure numbers
        "floor": "in the units of the metric that it belongs to",
        "sum": "of distances in standard deviations",
        "confidence": "probability, 0 to 1",
        "factor": "times something",
        "norm": "in the units of the weights",
        "loss": "in the units of the user's objective",
        "quantile": "0 to 1",
        "score": "1.0 is the detector's alarm line",
        "threshold": "in the units of the score that it bounds",
        "weight": "relative",
        # values of a metric that is itself named, unit included, in a field beside it
        "high": "in the unit of the metric",
        "low": "in the unit of the metric",
        "value": "in the unit of the metric",
        # numbers of things whose names the recording format fixes
        "total_chunks": "number of chunks",
        "gpu_ready": "number of chunks",
        "rdma_transmitted": "number of chunks",
        "rdma_done": "number of chunks",
    }
)
"""Last words of names that have no unit -> why."""

ALLOWED = (*UNITS, *UNITLESS)


class Violation(NamedTuple):
    """A numeric field without a unit."""

    line: int
    class_name: str
    field: str


def has_unit(name: str) -> bool:
    """Tell whether a field's name ends in a unit or in a word that needs none."""
    return any(name == word or name.endswith(f"_{word}") for word in ALLOWED)


def is_numeric(annotation: ast.expr) -> bool:
    """Tell whether an annotation is int or float, with or without None."""
    match annotation:
        case ast.Name(id=name):
            return name in {"int", "float"}
        case ast.Constant(value=str(text)):
            return is_numeric(ast.parse(text, mode="eval").body)
        case ast.BinOp(op=ast.BitOr(), left=left, right=right):
            sides = [side for side in (left, right) if not is_none(side)]
            return all(map(is_numeric, sides))
        case ast.Subscript(value=ast.Name(id="Optional"), slice=inner):
            return is_numeric(inner)
    return False


def is_none(expression: ast.expr) -> bool:
    """Tell whether an expression is the literal None."""
    return isinstance(expression, ast.Constant) and expression.value is None


def is_frozen_dataclass(node: ast.ClassDef) -> bool:
    """Tell whether a class is decorated with ``dataclass(frozen=True)``."""
    for decorator in node.decorator_list:
        if not isinstance(decorator, ast.Call):
            continue
        function = decorator.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        frozen = any(
            keyword.arg == "frozen" and isinstance(keyword.value, ast.Constant) and keyword.value.value is True
            for keyword in decorator.keywords
        )
        if name == "dataclass" and frozen:
            return True
    return False


def violations(source: str) -> Iterator[Violation]:
    """Yield the numeric fields without a unit in the text of one module."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.ClassDef) or node.name.startswith("_") or not is_frozen_dataclass(node):
            continue
        for statement in node.body:
            match statement:
                case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation):
                    if not name.startswith("_") and is_numeric(annotation) and not has_unit(name):
                        yield Violation(statement.lineno, node.name, name)


def findings(paths: Iterable[Path]) -> Iterator[Finding]:
    """Yield all that is wrong in the files; one that does not parse is wrong too."""
    for path in paths:
        try:
            for line, class_name, field in violations(path.read_text(encoding="utf-8")):
                yield Finding(path, line, f"{class_name}.{field} is a number without a unit in its name")
        except SyntaxError as error:
            yield Finding(path, error.lineno or 0, f"does not parse: {error.msg}")


def main(arguments: Sequence[str]) -> int:
    """Check the folders, print what is wrong, return the exit status."""
    wrong = "{count} found; units and names that need none: tests/tools/check_units.py"
    right = "units: {count} modules, every numeric field of a public type carries its unit"
    return check(arguments, ROOMS, findings, (wrong, right))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
