"""The URL of ``--clickhouse``: what it may say, and that it never shows a password."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.pipeline.stores.clickhouse_address import ClickHouseAddress, parse_address, without_password
from tocsin.schemas.errors import ConfigError, StoreRefusedError


def test_an_address_is_read() -> None:
    assert parse_address("clickhouse://db", {}) == ClickHouseAddress("db", 9000)
    assert parse_address("clickhouses://db/", {}) == ClickHouseAddress("db", 9440, tls=True)
    reported = parse_address("clickhouses://a%40b:p%2Fq@[::1]:1234/tocsin?ca_file=/ca&password_file=/pw", {})
    assert (reported.host, reported.port, reported.user, reported.password) == ("::1", 1234, "a@b", "p/q")
    assert (reported.ca_file, reported.password_file) == (Path("/ca"), Path("/pw"))
    assert str(reported) == "clickhouses://a@b@[::1]:1234"


def test_the_password_comes_from_file_then_url_then_environment(tmp_path: Path) -> None:
    (tmp_path / "pw").write_text("filed\n")
    environment = {"TOCSIN_CLICKHOUSE_PASSWORD": "known"}
    assert parse_address("clickhouse://u@h", environment).read_password() == "known"
    assert parse_address("clickhouse://u:said@h", environment).read_password() == "said"
    filed = parse_address(f"clickhouse://u:said@h?password_file={tmp_path}/pw", environment)
    assert filed.read_password() == "filed"
    (tmp_path / "pw").unlink()
    with pytest.raises(StoreRefusedError, match="cannot read the password of clickhouse://u@h:9000 from"):
        filed.read_password()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "db:9000",
        "http://u:secret@db:8123",
        "clickhouse://",
        "clickhouse://u:secret@db:port",
        "clickhouse://u:sec/ret@db",
        "clickhouse://u:secret@db/other",
        "clickhouse://u:secret@db?what=1",
        "clickhouse://u:secret@db?password_file=",
        "clickhouse://u:secret@db?password_file",
        "clickhouse://u:secret@db?ca_file=/ca",
        "clickhouses://u:secret@db?ca_file=/a&ca_file=/b",
        "clickhouses://u:secret@db?key_file=/k",
        "clickhouse://u:secret@db#x",
        "clickhouse://u:secret@[db",
    ],
)
def test_a_wrong_address_is_refused_and_shows_no_password(url: str) -> None:
    with pytest.raises(ConfigError, match=r"--clickhouse = .*: must be ") as caught:
        parse_address(url, {})
    assert "sec" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["u:hunter2@h:9000", "u:hun://ter2@h", "clickhouse://h:9000/?password=hunter2", "clickhouse://h/?hunter2"]
)
def test_nor_is_one_in_the_wrong_place(url: str) -> None:
    with pytest.raises(ConfigError) as reported:
        parse_address(url)
    assert "ter2" not in str(reported.value)


@given(st.text())
def test_no_password_is_ever_shown(password: str) -> None:
    shown = without_password(f"clickhouse://user:{password.replace('@', '')}@host:9000/tocsin")
    assert shown == "clickhouse://user:***@host:9000/tocsin"
    assert "hidden" not in repr(ClickHouseAddress("h", 1, password="hidden"))
