"""The wire codec and its bounds."""
