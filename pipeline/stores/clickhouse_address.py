"""Parse the URL of ``--clickhouse``: a ClickHouse server's address and the credentials for it.

``clickhouse://USER@HOST:PORT`` is unencrypted, ``clickhouses://`` uses TLS. Passwords never appear in log lines, errors
or the ``str`` of an address.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from tocsin.schemas.errors import ConfigError, StoreRefusedError

DATABASE = "tocsin"
"""Name of the database; it stands in the migrations, so an address cannot choose another."""
PORT = 9000
TLS_PORT = 9440
PASSWORD_VARIABLE = "TOCSIN_CLICKHOUSE_PASSWORD"  # noqa: S105  # the variable's name

_FORM = (
    f"clickhouse://[USER[:PASSWORD]@]HOST[:{PORT}][?password_file=FILE], or clickhouses:// for TLS (port {TLS_PORT};"
    " options ca_file, cert_file, key_file)"
)
_FILE_OPTIONS = ("password_file", "ca_file", "cert_file", "key_file")
_TLS_OPTIONS = frozenset({"ca_file", "cert_file", "key_file"})


@dataclass(frozen=True, slots=True)
class ClickHouseAddress:
    """A ClickHouse server and the credentials for it.

    Attributes:
        host: host name or IP address.
        port: port of the native protocol.
        user: user name.
        tls: whether the connection is encrypted and the server's certificate checked.
        password_file: file that the password is read from at each connect; None: ``password`` is used.
        ca_file: certificates to trust instead of the system's.
        cert_file: client certificate, for servers that ask for one.
        key_file: private key of the client certificate.
        password: password from the URL or the environment.
    """

    host: str
    port: int
    user: str = "default"
    tls: bool = False
    password_file: Path | None = None
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    password: str = field(default="", repr=False)

    def __str__(self) -> str:
        scheme = "clickhouses" if self.tls else "clickhouse"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{self.user}@{host}:{self.port}"

    def read_password(self) -> str:
        """Return the current password; a password file is read anew each time, because it may have been rotated.

        Raises:
            StoreRefusedError: the file cannot be read.
        """
        if self.password_file is None:
            return self.password
        try:
            return self.password_file.read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise StoreRefusedError(f"cannot read the password of {self} from {self.password_file}: {error}") from error


def parse_address(url: str, environment: Mapping[str, str] | None = None) -> ClickHouseAddress:
    """Parse the URL of ``--clickhouse``.

    The password is taken from, in this order: ``password_file``, the URL, the environment variable
    ``TOCSIN_CLICKHOUSE_PASSWORD``.

    Args:
        url: the URL.
        environment: environment variables, None = those of the process.

    Raises:
        ConfigError: the URL is invalid; the message shows it without a password.
    """
    known = os.environ if environment is None else environment
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:  # its text may quote a password with a slash in it
        raise _wrong(url, f"{_FORM}; a port is a number, / and @ in a password are written %2F and %40") from None
    tls = parts.scheme == "clickhouses"
    if parts.scheme not in {"clickhouse", "clickhouses"} or not parts.hostname or parts.fragment:
        raise _wrong(url, _FORM)
    if parts.path.strip("/") not in {"", DATABASE}:
        raise _wrong(url, f"without a database, or with {DATABASE}: the migrations name it")
    options = _options(url, parts.query, tls=tls)
    password = unquote(parts.password) if parts.password is not None else known.get(PASSWORD_VARIABLE, "")
    return ClickHouseAddress(
        host=parts.hostname,
        port=port or (TLS_PORT if tls else PORT),
        user=unquote(parts.username) if parts.username else "default",
        tls=tls,
        password=password,
        **options,
    )


def _options(url: str, query: str, *, tls: bool) -> dict[str, Path]:
    """Return the file options in the URL's query string, by name; raise ``ConfigError`` if one is invalid."""
    options: dict[str, Path] = {}
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True) if query else []
    except ValueError:
        raise _wrong(url, _FORM) from None
    for name, value in pairs:
        if name not in _FILE_OPTIONS or not value or name in options:
            raise _wrong(url, f"an address with each option once and with a value, of: {', '.join(_FILE_OPTIONS)}")
        if name in _TLS_OPTIONS and not tls:
            raise _wrong(url, f"clickhouses://… where {name} is given: without TLS nothing is checked")
        options[name] = Path(value).expanduser()
    if "key_file" in options and "cert_file" not in options:
        raise _wrong(url, "an address with cert_file where it has key_file")
    return options


def without_password(url: str) -> str:
    """Return a URL with its passwords masked: before the host, and in the values of unknown options.

    >>> without_password("clickhouse://u:secret@h:9000/?ca_file=b&word=secret")
    'clickhouse://u:***@h:9000/?ca_file=b&word=***'
    >>> without_password("u:secret://@h")
    'u:***@h'
    """
    scheme, separator, rest = url.partition("://")
    if not separator or not scheme.isalpha():
        scheme, separator, rest = "", "", url
    credentials, at, host = rest.rpartition("@")  # the last one: an unescaped / or @ may stand in a password
    user, colon, _ = credentials.partition(":")
    place, question, query = host.partition("?")
    shown = "&".join(pair if pair.partition("=")[0] in _FILE_OPTIONS else _hidden(pair) for pair in query.split("&"))
    return f"{scheme}{separator}{user}{':***' if colon else ''}{at}{place}{question}{shown}"


def _hidden(pair: str) -> str:
    """Mask the value of one ``name=value`` option."""
    name, equals, _ = pair.partition("=")
    return f"{name}{equals}***" if equals else name and "***"


def _wrong(url: str, must: str) -> ConfigError:
    """Return a ``ConfigError`` for ``--clickhouse`` that shows the URL without passwords."""
    return ConfigError("--clickhouse", without_password(url), must)
