"""Write ``deploy/grafana/dashboards/``: ``python -m tests.tools.grafana``.

``tests/deploy/test_grafana.py`` fails while a file differs from the declaration.
"""

from __future__ import annotations

import sys

from tests.tools.grafana.boards import write


def main() -> int:
    """Write the files, and say which changed."""
    changed = write()
    print(f"dashboards: {len(changed)} changed {' '.join(changed)}".rstrip())
    return 0


if __name__ == "__main__":
    sys.exit(main())
