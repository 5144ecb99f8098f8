"""Normal form of PCI addresses, which every source writes differently."""

from __future__ import annotations

import re
from typing import Final


def normal_pci(text: str) -> str:
    """Return a PCI address as ``domain:bus:device.function`` in lower case, "" if the text is none.

    >>> normal_pci("00000000:9B:00.0"), normal_pci("0000:9b:00"), normal_pci("9b:00.0")
    ('0000:9b:00.0', '0000:9b:00.0', '0000:9b:00.0')
    """
    found = _PCI.fullmatch(text.strip().lower().removeprefix("pci:"))
    if not found:
        return ""
    domain = int(found["domain"] or "0", 16)
    return f"{domain:04x}:{found['bus']}:{found['device']}.{found['function'] or '0'}"


_PCI: Final = re.compile(
    r"(?:(?P<domain>[0-9a-f]{1,8}):)?(?P<bus>[0-9a-f]{2}):(?P<device>[0-9a-f]{2})(?:\.(?P<function>[0-7]))?"
)
