"""The servers that tocsin starts on one machine: for ``tocsin cluster`` and for tests."""
