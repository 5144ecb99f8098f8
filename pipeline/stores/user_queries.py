"""Check user queries: they may only read, within limits, and nothing outside the database.

A query is not judged as typed. ClickHouse's own parser first rewrites it (``formatQuerySingleLine``) without comments
and heredocs, with uniform quoting, as one statement. The rewritten text is both judged and run, so the two cannot
differ.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from tocsin.pipeline.stores.incident_queries import is_incidents_query
from tocsin.pipeline.stores.messages import check_format
from tocsin.schemas.errors import StoreAwayError, StoreError, TocsinError

MAX_QUERY_SECONDS: Final = 60
"""Time after which a user query is stopped."""
MAX_QUERY_CHARACTERS: Final = 200_000
"""Maximum length of a user query."""
LIMITS: Final[Mapping[str, int | str]] = {
    "max_execution_time": MAX_QUERY_SECONDS,
    "timeout_overflow_mode": "throw",
    "max_memory_usage": 512 << 20,
    "max_result_rows": 1_000_000,
    "max_result_bytes": 64 << 20,
    "result_overflow_mode": "throw",
    "max_threads": 2,
    "max_temporary_data_on_disk_size_for_query": 1 << 30,
    "allow_introspection_functions": 0,
}
"""Settings of every user query; ``readonly = 1`` is set after them so that a query cannot change them."""

MAX_QUERIES_COUNT: Final = 4
"""Maximum number of concurrent user queries; further ones wait up to ``QUEUE_SECONDS``."""
MAX_INCIDENTS_COUNT: Final = 2
"""Maximum number of concurrent queries of ``tocsin incidents``, which have slots of their own."""
QUEUE_SECONDS: Final = 10.0

HARMLESS_TABLE_FUNCTIONS: Final = frozenset(
    {
        *("numbers", "numbers_mt", "zeros", "zeros_mt", "primes", "generateseries", "generate_series"),
        *("generaterandom", "null", "values", "sqlstandardvalues", "view", "viewexplain", "viewifpermitted"),
        *("format", "input", "fuzzquery", "fuzzjson"),
    }
)
"""Table functions that read nothing but their arguments; ``tests/`` checks that all others are forbidden."""

FORBIDDEN_FUNCTIONS: Final = frozenset(
    {
        # table functions: files, networks, other programs, other servers, objects of this process
        *("file", "filesystem", "filecluster", "url", "urlcluster", "executable", "python", "arrowstream", "sqlite"),
        *("s3", "s3cluster", "gcs", "oss", "cosn", "hdfs", "hdfscluster", "azureblobstorage", "bigquery"),
        *("azureblobstoragecluster", "mysql", "postgresql", "mongodb", "redis", "odbc", "jdbc", "ytsaurus"),
        *("remote", "remotesecure", "cluster", "clusterallreplicas", "loop", "merge", "dictionary", "eval"),
        *("hudi", "hudicluster", "deltalake", "deltalakecluster", "deltalakeazure", "deltalakeazurecluster"),
        *("deltalakelocal", "deltalakes3", "deltalakes3cluster", "iceberg", "icebergcluster", "icebergazure"),
        *("icebergazurecluster", "iceberghdfs", "iceberghdfscluster", "iceberglocal", "iceberglocalcluster"),
        *("icebergs3", "icebergs3cluster", "paimon", "paimoncluster", "paimonazure", "paimonazurecluster"),
        *("paimonhdfs", "paimonhdfscluster", "paimonlocal", "paimons3", "paimons3cluster"),
        *("mergetreeindex", "mergetreeprojection", "mergetreetextindex", "mergetreecodecblockcounts"),
        *("mergetreeanalyzeindexes", "mergetreeanalyzeindexesuuid"),
        *("prometheusquery", "prometheusqueryrange", "timeseriesselector", "timeseriesdata", "timeseriestags"),
        *("timeseriesmetrics", "timeseriesmetricfamilies", "timeseriessamples"),
        # sources of dictionaries
        *("http", "clickhouse", "cassandra", "yamlregexptree"),
        # functions: files, networks, libraries, the machine, other threads' time
        *("sleep", "sleepeachrow", "catboostevaluate", "reversednsquery", "getserversetting", "getserverport"),
        *("getclienthttpheader", "currentrequesturl", "getmacro", "logtrace", "trap", "generateserialid"),
        *("filesystemavailable", "filesystemcapacity", "filesystemunreserved", "getoskernelversion"),
        *("addresstoline", "addresstolinewithinlines", "addresstosymbol", "showcertificate", "tid"),
        *("hascolumnintable", "zookeepersessionuptime"),
        *("airedact", "aisimilarity", "aifilter", "aiclassify", "aiembed", "aiextract", "aigenerate", "aitranslate"),
    }
)
"""Lower-case names of functions that a user query may not call."""

SYSTEM_TABLES: Final = frozenset(
    {
        *("one", "numbers", "numbers_mt", "zeros", "zeros_mt", "tables", "columns", "databases", "functions"),
        *("table_functions", "formats", "data_type_families", "settings", "parts", "build_options", "time_zones"),
    }
)
"""Tables of ClickHouse's ``system`` database that a query may read.

Others show queries, users, keys or configuration.
"""

_READING: Final = frozenset({"SELECT", "WITH", "SHOW", "DESCRIBE", "EXISTS", "EXPLAIN"})
_SHOWING: Final = frozenset(
    {"TABLES", "DATABASES", "CREATE", "COLUMNS", "FULL", "EXTENDED", "INDEXES", "INDEX", "KEYS", "FUNCTIONS"}
)
_TOKEN: Final = re.compile(
    r"""(?P<text>'(?:[^'\\]|\\.|'')*')|(?P<quoted>`(?:[^`\\]|\\.|``)*`|"(?:[^"\\]|\\.|"")*")"""
    r"""|(?P<word>[^\W\d]\w*)|(?P<other>\d[\w.]*|\S)""",
    re.DOTALL,
)
_CANONICAL: Final = "SELECT formatQuerySingleLine(unhex('{}'))"


class QueryRefusedError(StoreError):
    """A user query does something that is not allowed."""

    reason = "query_refused"


@dataclass(frozen=True, slots=True)
class UserQuery:
    """A checked query that may run.

    Attributes:
        sql: the query as rewritten by ClickHouse's parser, without a FORMAT clause.
        fmt: the format in its FORMAT clause, or the one asked for beside it.
    """

    sql: str
    fmt: str


@dataclass(frozen=True, slots=True)
class _Token:
    """One token of a rewritten query: its kind (text, quoted, word or other), text and position."""

    kind: str
    text: str
    start: int

    @property
    def name(self) -> str:
        """The identifier without its quotes; "" if the token is no identifier."""
        if self.kind == "word":
            return self.text
        if self.kind != "quoted":
            return ""
        quote, inner = self.text[0], self.text[1:-1]
        return re.sub(r"\\(.)", r"\1", inner.replace(quote * 2, quote), flags=re.DOTALL)

    def is_word(self, *words: str) -> bool:
        """Return whether the token is one of these keywords (given in upper case)."""
        return self.kind == "word" and self.text.upper() in words


class QuerySlots:
    """Slots for concurrent user queries.

    ``tocsin incidents`` has slots of its own and never waits for other queries.
    """

    def __init__(self, queue_seconds: float = QUEUE_SECONDS) -> None:
        """Start with all slots free.

        Args:
            queue_seconds: how long a query waits for a slot.
        """
        self._queue_seconds = queue_seconds
        self._slots = threading.Semaphore(MAX_QUERIES_COUNT)
        self._incident_slots = threading.Semaphore(MAX_INCIDENTS_COUNT)

    @contextlib.contextmanager
    def slot(self, sql: str) -> Iterator[None]:
        """Hold a slot for the duration of the block.

        Raises:
            StoreAwayError: no slot became free in time.
        """
        slots = self._incident_slots if is_incidents_query(sql) else self._slots
        if not slots.acquire(timeout=self._queue_seconds):
            raise StoreAwayError(
                f"{MAX_QUERIES_COUNT} queries of users are running, and none ended within {self._queue_seconds:g} s:"
                " try again"
            )
        try:
            yield
        finally:
            slots.release()

    def is_idle(self) -> bool:
        """Return whether no query is running."""
        for slots, count in ((self._slots, MAX_QUERIES_COUNT), (self._incident_slots, MAX_INCIDENTS_COUNT)):
            free = 0
            while free < count and slots.acquire(blocking=False):
                free += 1
            if free:
                slots.release(free)
            if free < count:
                return False
        return True

    @contextlib.contextmanager
    def all_slots(self) -> Iterator[None]:
        """Wait until no query is running, and let none start during the block."""
        wanted = [self._slots] * MAX_QUERIES_COUNT + [self._incident_slots] * MAX_INCIDENTS_COUNT
        for slots in wanted:
            slots.acquire()
        try:
            yield
        finally:
            for slots in wanted:
                slots.release()


def checked_query(sql: str, fmt: str, ask: Callable[[str], str]) -> UserQuery:
    """Rewrite a user query with ClickHouse's parser, check that it is allowed, and return it with its format.

    Args:
        sql: the query as the user wrote it.
        fmt: the format to use if the query names none.
        ask: runs a statement of this program and returns its answer as text.

    Raises:
        ConfigError: the format is invalid.
        QueryRefusedError: the query does not only read, or does something that is not allowed.
        StoreError: the query is not valid SQL; the message is the parser's.
    """
    check_format(fmt)
    if is_incidents_query(sql):
        return UserQuery(sql, fmt)
    if len(sql) > MAX_QUERY_CHARACTERS:
        raise QueryRefusedError(f"a query has at most {MAX_QUERY_CHARACTERS} characters, this one {len(sql)}")
    try:
        canonical = ask(_CANONICAL.format(sql.encode("utf-8", "replace").hex())).strip()
    except TocsinError as error:  # the parser quotes our own call of it, which helps nobody
        raise type(error)(re.sub(r": In scope SELECT formatQuerySingleLine\(.*?\)\)\.", ".", str(error))) from error
    check_reading(canonical)
    check_calls(canonical)
    plain, named = _without_format(canonical)
    check_format(named or fmt)
    return UserQuery(plain, named or fmt)


def check_reading(canonical: str) -> None:
    """Check that a statement only reads, and only what a user may read.

    Args:
        canonical: the statement as rewritten by ClickHouse's parser.

    Raises:
        QueryRefusedError: it does something else.
    """
    tokens = list(_tokens(canonical))
    first = next((index for index, token in enumerate(tokens) if token.text != "("), len(tokens))
    word = tokens[first].text.upper() if first < len(tokens) else ""
    if word not in _READING:
        raise QueryRefusedError(f"{word or 'an empty query'}: a query is one SELECT, SHOW, DESCRIBE, EXISTS or EXPLAIN")
    following = tokens[first + 1] if first + 1 < len(tokens) else _Token("other", "", 0)
    if word == "SHOW" and not following.is_word(*_SHOWING):
        raise QueryRefusedError(f"SHOW {following.text}: only tables, columns, databases, functions and DDL are shown")
    for before, after in pairwise(tokens):
        if before.is_word("PARALLEL") and after.is_word("WITH"):
            raise QueryRefusedError("PARALLEL WITH: a query is one statement")
    for one, two, three in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if one.is_word("SETTINGS") and two.name and three.text == "=":
            raise QueryRefusedError(f"SETTINGS {two.name}: a query runs with readonly = 1 and changes no setting")
        if one.name.lower() == "system" and two.text == "." and three.name.lower() not in SYSTEM_TABLES:
            shown = ", ".join(sorted(SYSTEM_TABLES))
            raise QueryRefusedError(f"system.{three.name}: of the database system a query reads {shown}")
        if one.text == "{" and two.name and three.text == ":":
            raise QueryRefusedError(f"{{{two.name}: …}}: a query has no parameters")


def check_calls(canonical: str) -> None:
    """Check that a statement calls no function that reaches outside the database.

    Args:
        canonical: any statement as rewritten by ClickHouse's parser.

    Raises:
        QueryRefusedError: it calls one, or reads or writes a file.
    """
    for before, after in pairwise(_tokens(canonical)):
        if before.name.lower() in FORBIDDEN_FUNCTIONS and after.text == "(":
            raise QueryRefusedError(
                f"{before.name}(): it reaches outside the database, or holds others up: no query may call it"
            )
        if before.is_word("INTO") and after.is_word("OUTFILE"):
            raise QueryRefusedError("INTO OUTFILE: a query writes no file; redirect the command's output instead")
        if before.is_word("FROM") and after.is_word("INFILE"):
            raise QueryRefusedError("FROM INFILE: a query reads no file")


def _without_format(canonical: str) -> tuple[str, str]:
    """Return the query without its FORMAT clause, and the format that it named ("" = none)."""
    tokens = list(_tokens(canonical))
    if len(tokens) > 2 and tokens[-2].is_word("FORMAT") and tokens[-1].name:
        return canonical[: tokens[-2].start].rstrip(), tokens[-1].name
    return canonical, ""


def _tokens(canonical: str) -> Iterator[_Token]:
    """Yield the tokens of a rewritten query."""
    for found in _TOKEN.finditer(canonical):
        yield _Token(str(found.lastgroup), found[0], found.start())
