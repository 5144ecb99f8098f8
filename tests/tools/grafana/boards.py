"""All dashboards, and their files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from tests.tools.grafana.board import Board, model
from tests.tools.grafana.fleet import FLEET
from tests.tools.grafana.job import JOB
from tests.tools.grafana.monitor import MONITOR

FOLDER: Final = Path(__file__).parents[3] / "deploy" / "grafana" / "dashboards"
BOARDS: Final[tuple[Board, ...]] = (FLEET, JOB, MONITOR)


def texts() -> dict[str, str]:
    """Return the text of each file by its name."""
    return {f"{board.name}.json": json.dumps(model(board), indent=2) + "\n" for board in BOARDS}


def write(folder: Path = FOLDER) -> list[str]:
    """Write the files whose text differs, remove those of no dashboard, and return the names of both."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = texts()
    changed = sorted(path.name for path in folder.glob("*.json") if path.name not in wanted)
    for name in changed:
        (folder / name).unlink()
    for name, text in wanted.items():
        path = folder / name
        if not path.exists() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")
            changed.append(name)
    return changed
