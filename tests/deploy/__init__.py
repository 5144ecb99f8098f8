"""What deploy/ holds is checked as far as it can be where no container runs."""
