"""Training: the only place of ``models`` that imports torch and scikit-learn; no engine imports it."""
