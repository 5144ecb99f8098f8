"""Pure parsers of foreign formats."""
