"""Checks from its text that a PostgreSQL statement only reads.

In a read-only transaction the server refuses writes to tables, but not other changes: COPY to a file, EXPLAIN
ANALYZE of a statement that makes a table, functions that end a session, take a lock, change a setting or
write a large object. PostgreSQL marks these functions as volatile.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from sqlalchemy import Connection, text

READING = ("SELECT", "WITH", "EXPLAIN", "SHOW", "VALUES", "TABLE")
# volatile functions that change nothing: only their results differ from call to call
_HARMLESS = frozenset(
    {
        "clock_timestamp",
        "gen_random_uuid",
        "pg_database_size",
        "pg_indexes_size",
        "pg_relation_size",
        "pg_sleep",
        "pg_table_size",
        "pg_tablespace_size",
        "pg_total_relation_size",
        "random",
        "timeofday",
    }
)
# options of EXPLAIN, before the explained statement
_OPTIONS = (
    *(
        "ANALYZE",
        "ANALYSE",
        "VERBOSE",
        "COSTS",
        "SETTINGS",
        "BUFFERS",
        "WAL",
        "TIMING",
        "SUMMARY",
        "FORMAT",
        "GENERIC_PLAN",
        "MEMORY",
    ),
    *("SERIALIZE", "ON", "OFF", "TRUE", "FALSE", "TEXT", "XML", "JSON", "YAML", "NONE", "BINARY"),
)
_TOKEN = re.compile(
    r"""
    (?P<blank>      \s+ | --[^\n]* )
  | (?P<comment>    /\* )
  | (?P<escaped>    [eE]'(?:[^'\\]|\\.|'')*' )
  | (?P<unicode>    [uU]&["'] )
  | (?P<text>       '(?:[^']|'')*' )
  | (?P<dollar>     \$(?:[^\W\d]\w*)?\$ )
  | (?P<quoted>     "(?:[^"]|"")*" )
  | (?P<word>       [^\W\d][\w$]* )
  | (?P<other>      . )
    """,
    re.VERBOSE | re.DOTALL,
)
_COMMENT_EDGE = re.compile(r"/\*|\*/")


def refusal(connection: Connection, sql: str) -> str | None:
    """Why `sql` is refused; None if it may be run. Functions are looked up on the server."""
    tokens = list(_tokens(sql))
    words = [token.upper() for kind, token in tokens if kind == "word"]
    if words[:1] == ["EXPLAIN"]:  # EXPLAIN ANALYZE runs the statement, which may write
        words = [word for word in words[1:] if word not in _OPTIONS]
    if words and words[0] not in READING:
        return f"{words[0][:60]} is not a reading statement; begin with one of: {', '.join(READING)}"
    if any(kind == "unicode" for kind, _ in tokens):
        return "text and names in Unicode escapes (U&) are not taken; write the characters themselves"
    called = sorted(set(_called(tokens)) - _HARMLESS)
    known = text(
        "SELECT proname FROM pg_proc WHERE provolatile = 'v' AND proname = ANY(:names) ORDER BY proname "
        "LIMIT 1"
    )
    found = connection.execute(known, {"names": called}).scalar() if called else None
    return None if found is None else f"the function {found} may do more than read"


def _called(tokens: list[tuple[str, str]]) -> Iterator[str]:
    """The names before opening brackets, in the catalogue's spelling."""
    for (kind, token), (_, following) in pairwise(tokens):
        if following == "(" and kind in ("word", "quoted"):
            yield token.lower() if kind == "word" else token[1:-1].replace('""', '"')


def _tokens(sql: str) -> Iterator[tuple[str, str]]:
    """Kind and text of each token, white space and comments left out."""
    at = 0
    while at < len(sql):
        match = _TOKEN.match(sql, at)
        assert match is not None  # `other` takes any character
        kind, token, at = str(match.lastgroup), match[0], match.end()
        if kind == "comment":
            at = _end_of_comment(sql, at)
        elif kind == "dollar":
            end = sql.find(token, at)
            at = len(sql) if end < 0 else end + len(token)
        elif kind != "blank":
            yield kind, token


def _end_of_comment(sql: str, at: int) -> int:
    """The end of a comment; comments may be nested."""
    depth = 1
    while depth:
        edge = _COMMENT_EDGE.search(sql, at)
        if edge is None:
            return len(sql)
        depth += 1 if edge[0] == "/*" else -1
        at = edge.end()
    return at
