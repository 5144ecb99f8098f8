"""The numbered DDL: numbering, splitting, and that a crash half way does no harm."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.schemas.errors import SchemaError
from tocsin.schemas.migrations import migrations, parse_migration, split_statements


def test_numbers_have_no_gaps() -> None:
    assert [m.number for m in migrations()] == list(range(1, len(migrations()) + 1))


def test_every_statement_may_run_again() -> None:
    again = re.compile(r"CREATE (DATABASE|TABLE) IF NOT EXISTS |CREATE OR REPLACE VIEW |ALTER TABLE .* IF ", re.DOTALL)
    for migration in migrations():
        for statement in migration.statements:
            assert again.match(statement), f"{migration.number}: {statement[:60]}"


def test_semicolons_in_quotes_and_comments_end_nothing() -> None:
    text = """-- a; b
SELECT ';', "x;", `y;` /* c;
d */ ; SELECT 'it''s; \\'; ok';;
"""
    assert split_statements(text) == ("SELECT ';', \"x;\", `y;`", "SELECT 'it''s; \\'; ok'")


@pytest.mark.parametrize("text", ["SELECT 'a", "SELECT 1;\n/* never", 'SELECT "a;'])
def test_what_is_not_closed_is_named_with_its_line(text: str) -> None:
    with pytest.raises(SchemaError, match=r"line \d+: .* is never closed"):
        split_statements(text)


@given(st.lists(st.text(alphabet="ab \n(),", min_size=1).filter(str.strip), max_size=5))
def test_joined_statements_split_again(statements: list[str]) -> None:
    assert split_statements(";\n".join(statements)) == tuple(s.strip() for s in statements)


def test_a_file_with_a_wrong_name_is_refused() -> None:
    with pytest.raises(SchemaError, match="0007_new_table"):
        parse_migration("7_x.sql", "SELECT 1")


def test_the_checksum_does_not_depend_on_line_ends() -> None:
    one, other = (parse_migration("0001_x.sql", text).sha256 for text in ("SELECT 1;\n", "SELECT 1;\r\n"))
    assert one == other
