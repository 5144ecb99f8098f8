"""The distributed engine against the embedded one: the same verdicts (``parity``), whatever dies (``chaos``)."""
