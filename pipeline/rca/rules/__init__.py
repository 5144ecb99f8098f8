"""Rules that weigh evidence against machines."""
