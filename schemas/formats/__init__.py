"""Pure parsers and writers of other programs' formats."""
