"""The servers that tocsin starts itself on one machine: for ``tocsin cluster``, and for tests."""
