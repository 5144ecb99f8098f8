"""Training: the only place of this room that needs torch and scikit-learn (``tocsin[train]``).

An engine never imports it (a contract in ``pyproject.toml``): what comes out of it are plain numpy
weights and lists of names.
"""
