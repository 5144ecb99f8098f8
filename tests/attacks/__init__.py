"""What an attacker tried against tocsin, each kept as an attack that must fail (``SECURITY.md``)."""
