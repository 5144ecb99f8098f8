"""Run every bench, or those named: ``python -m tests.bench codec hook``."""

import importlib
import os
import platform
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

PREFIX = "bench_"


def bench_names(folder: Path) -> list[str]:
    """Return the names of the benches in a folder, without prefix and suffix."""
    return sorted(path.stem.removeprefix(PREFIX) for path in folder.glob(f"{PREFIX}*.py"))


def main(wanted: Sequence[str]) -> int:
    """Run them one after the other; one that fails does not keep the others from running."""
    names = bench_names(Path(__file__).parent)
    unknown = sorted(set(wanted) - set(names))
    if unknown:
        print(f"no such bench: {', '.join(unknown)}; there are: {', '.join(names)}", file=sys.stderr)
        return 2
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    failed = []
    for name in wanted or names:
        print(f"\n== {name}", flush=True)
        start = time.perf_counter()
        try:
            importlib.import_module(f"tests.bench.{PREFIX}{name}").main()
        except Exception:  # noqa: BLE001  # a supervising loop: the other benches still run
            traceback.print_exc()
            failed.append(name)
        print(f"-- {name}: {time.perf_counter() - start:.1f} s", flush=True)
    if failed:
        print(f"\nfailed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
