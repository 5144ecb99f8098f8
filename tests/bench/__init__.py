"""Measurements: ``make bench`` runs the ``main()`` of every ``bench_*.py`` here."""
