"""Training of models: the only package of ``models`` that needs torch and scikit-learn (``tocsin[train]``).

An engine never imports it (a contract in ``pyproject.toml``). Its results are plain numpy weights and lists of
names.
"""
