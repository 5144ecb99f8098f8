"""Everything that crosses a process boundary: types, wire codec, column tables, errors, DDL, pure parsers."""
