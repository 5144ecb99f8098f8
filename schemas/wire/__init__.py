"""The wire codec of records, and the limits of their fields."""
