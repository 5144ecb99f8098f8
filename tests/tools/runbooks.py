"""The pages in ``docs/runbooks/``, made from ``tocsin.schemas.runbooks``: ``python -m tests.tools.runbooks``.

It writes every page, and removes those of causes that are no more. ``tests/schemas/test_runbooks.py`` fails while a
page differs from the declaration.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from tocsin.schemas.causes import CAUSES, Cause
from tocsin.schemas.runbooks import ACTION_BY_HAND, RUNBOOKS, HandStep, Runbook, telling_steps

FOLDER = Path(__file__).parents[2] / "docs" / "runbooks"
INDEX = "index.md"
BLAMES: Mapping[str, str] = {
    "machine": "the machine",
    "program": "the program or its data, no machine",
    "nobody": "nobody",
}
_MADE = "<!-- Made by `make runbooks` from schemas/runbooks/. -->"


def pages() -> dict[str, str]:
    """Return the text of each page by its file's name, the index included."""
    found = {f"{name}.md": "\n".join(_page(CAUSES[name], RUNBOOKS[name])) + "\n" for name in CAUSES}
    return {INDEX: "\n".join(_index()) + "\n", **found}


def write(folder: Path = FOLDER) -> list[str]:
    """Write the pages whose text differs, remove those of no cause, and return the names of both."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = pages()
    changed = [path.name for path in folder.glob("*.md") if path.name not in wanted]
    for name in changed:
        (folder / name).unlink()
    for name, text in wanted.items():
        path = folder / name
        if not path.exists() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")
            changed.append(name)
    return changed


def _index() -> Iterator[str]:
    """Yield the lines of the index."""
    yield from ("# Runbooks", "", _MADE, "")
    yield "One page for each cause: what it looks like, what it is confused with, what to do by hand."
    yield "`tocsin incidents show ID` prints the same steps, with the names of the incident filled in."
    yield ""
    yield "In the commands `HOST`, `JOB` and `ID` are the incident's machine, job and id. Commands run on the named"
    yield "machine, except those that begin with `tocsin`, `scontrol`, `sacct`, `scancel`, `ping` or `ipmitool -H`."
    yield "Slurm's commands are examples. On Kubernetes `kubectl cordon HOST` and `kubectl drain HOST` do what the"
    yield "drain does. None of these commands was run by tocsin's tests, except tocsin's own."
    yield from ("", "| cause | means | to blame | proposed at most |", "|---|---|---|---|")
    for cause in CAUSES.values():
        link = f"[{cause.name}]({cause.name}.md)"
        yield f"| {link} | {cause.meaning} | {BLAMES[cause.blames]} | `{cause.action.value}` |"


def _page(cause: Cause, runbook: Runbook) -> Iterator[str]:
    """Yield the lines of one cause's page."""
    yield from (f"# {cause.name}", "", _MADE, "")
    yield from (_sentence(cause.meaning), f"To blame: {BLAMES[cause.blames]}. [All causes]({INDEX})")
    yield from ("", "## What it looks like", "")
    yield from (f"- {sign}" for sign in runbook.signs)
    yield from ("", "## What it is confused with", "", "| | how to tell |", "|---|---|")
    for one in runbook.lookalikes:
        name = f"[{one.name}]({one.name}.md)" if one.name in CAUSES else one.name
        yield f"| {name} | {one.difference} |"
    yield from ("", "## What to do by hand", "")
    for number, step in enumerate(runbook.steps, 1):
        yield from _step(number, step)
    yield from ("", "## What to tell tocsin", "")
    for number, step in enumerate(telling_steps(cause.blames), 1):
        yield from _step(number, step)
    yield from ("", "## What tocsin proposes", "", *_proposal(cause))


def _step(number: int, step: HandStep) -> Iterator[str]:
    """Yield the lines of one step; its command follows on a line of its own."""
    yield f"{number}. {step.text}"
    if step.command:
        yield f"   `{step.command}`"


def _proposal(cause: Cause) -> Iterator[str]:
    """Yield what tocsin proposes for a cause, and when less."""
    yield f"`{cause.action.value}`: {ACTION_BY_HAND[cause.action]}."
    if cause.blames == "machine":
        yield "While it is unconfirmed, or too few other hosts saw it, a milder action (`probe`, `restart`, `notify`)."
    elif cause.blames == "program":
        yield "While it is unconfirmed, `notify`. It never proposes to take a machine away for this cause."
    else:
        yield "It names no machine, and never proposes to take one away."


def _sentence(text: str) -> str:
    """Return a meaning as a sentence."""
    return f"{text[0].upper()}{text[1:]}."


def main() -> int:
    """Write the pages, and say which changed."""
    changed = write()
    print(f"runbooks: {len(pages())} pages, {len(changed)} changed {' '.join(changed)}".rstrip())
    return 0


if __name__ == "__main__":
    sys.exit(main())
