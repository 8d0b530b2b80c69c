"""Streams the `traceEvents` array of a Chrome trace in pieces of whole events, so that a file is never held at once.

A piece ends where a `}` meets the next `{`. That place is only a guess near the end of what was read (it may lie inside
a string or a nested list), so it is proved: the piece begins between two events, hence it is cut between two events
exactly when the JSON parser accepts it as a list. Where the parser does not accept it, or the array ends, quotes and
brackets are counted instead, and events that are no JSON are dropped one by one and counted.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Callable, Generator, Iterator
from io import BufferedIOBase
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np

from advisor.errors import InputError

T = TypeVar("T")

CHUNK_BYTES = 1 << 22
HEAD_BYTES = 1 << 26
OUTER_BYTES = 1 << 26
EVENT_BYTES = 1 << 26
BETWEEN = b", \t\r\n"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
GZIP_MAGIC = b"\x1f\x8b"
_GUESS_BYTES = 1 << 16
_BETWEEN = re.compile(rb"\}\s*,\s*\{")
_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_NOT_A_NUMBER = re.compile(rb"(?<=[:,\[\s])-?(?:nan|inf|infinity)(?=[\s,}\]])", re.IGNORECASE)
_DEPTH = np.zeros(256, np.int8)
_DEPTH[[ord("{"), ord("[")]] = 1
_DEPTH[[ord("}"), ord("]")]] = -1


def opened(path: Path) -> BufferedIOBase:
    """The bytes of a file, unpacked when it is gzip (by content, not by name)."""
    try:
        with path.open("rb") as file:
            packed = file.read(2) == GZIP_MAGIC
        return gzip.open(path, "rb") if packed else path.open("rb")
    except OSError as problem:
        raise InputError(f"{path}: {problem.strerror}") from problem


class NoTraceError(InputError):
    """A file that is no Chrome trace (exit 2)."""


class EventStream(Generic[T]):
    """Lists of decoded events of one file, in order; afterwards what lies around the array and what was wrong.

    `decode` turns the bytes of a JSON list into events and raises `msgspec.DecodeError` where it cannot;
    `convert` does the same for one event that is a mapping already (the way of events that had to be repaired).
    `outer` is the file's top object without its events; `truncated` says that the file ends within the array;
    `damaged` counts the events that were dropped.
    """

    def __init__(
        self, stream: BufferedIOBase, decode: Callable[[bytes], list[T]], convert: Callable[[dict[str, Any]], T]
    ) -> None:
        self.stream = stream
        self.decode = decode
        self.convert = convert
        self.outer: dict[str, Any] = {}
        self.truncated = False
        self.damaged = 0
        self.ended = False

    def __iter__(self) -> Iterator[list[T]]:
        head, rest = self._head()
        tail = yield from self._events(rest)
        self.outer = _outer(head, b"]}" if tail is None else tail)

    def _read(self, size: int) -> bytes:
        """Up to `size` bytes; a gzip file that breaks off gives what could be unpacked before it does."""
        parts: list[bytes] = []
        missing = size
        while missing > 0 and not self.ended:
            try:
                got = self.stream.read1(missing)
            except (EOFError, zlib.error, gzip.BadGzipFile):
                self.truncated, got = True, b""
            except OSError as problem:
                raise InputError(f"the file cannot be read: {problem.strerror or problem}") from problem
            self.ended = not got
            parts.append(got)
            missing -= len(got)
        return b"".join(parts)

    def _head(self) -> tuple[bytes, bytes]:
        """Everything up to and with the `[` of the events, and the first bytes behind it."""
        text = b""
        while len(text) < HEAD_BYTES and not self.ended:
            text = (text + self._read(max(CHUNK_BYTES, len(text)))).removeprefix(BYTE_ORDER_MARK)
            first = text.lstrip()[:1]
            if first == b"[":
                return b"", text[text.index(b"[") + 1 :]
            if first not in {b"{", b""}:
                break
            for match in _KEY.finditer(text):
                if _depth_at(text, match.start()) == 1:
                    return text[: match.end()], text[match.end() :]
        raise NoTraceError("no list named traceEvents in it")

    def _events(self, rest: bytes) -> Generator[list[T], None, bytes | None]:
        """The events; returns what follows the array, or None when it never ends."""
        size = CHUNK_BYTES
        while True:
            rest = rest.lstrip(BETWEEN)
            more = self._read(size - len(rest))
            rest = rest + more if rest else more.lstrip(BETWEEN)
            guess = None if self.ended else _last_between(rest)
            events = None if guess is None else self._tried(memoryview(rest)[:guess])
            if guess is not None and events is not None:
                rest = rest[guess:]
                yield events
                continue
            ends, stop = _structure(rest)
            yield self._whole(rest, ends)
            if stop is not None:
                return rest[stop:] + self._read(OUTER_BYTES)
            if self.ended or (len(rest) > EVENT_BYTES and not ends):
                self.truncated = True
                return None
            # An event longer than what was read: ask for more, twice as much each time.
            size = CHUNK_BYTES if ends else 2 * len(rest) + CHUNK_BYTES
            rest = rest[ends[-1] :] if ends else rest

    def _tried(self, text: bytes | memoryview) -> list[T] | None:
        try:
            return self.decode(b"".join((b"[", text, b"]")))
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None

    def _whole(self, text: bytes, ends: list[int]) -> list[T]:
        """The events that end at `ends`, one by one where they are no JSON together."""
        if not ends:
            return []
        whole = self._tried(text[: ends[-1]])
        if whole is not None:
            return whole
        found: list[T] = []
        for low, high in zip([0, *ends[:-1]], ends, strict=True):
            one = text[low:high].lstrip(BETWEEN)
            event = self._tried(one) or self._repaired(one)
            found += event
            self.damaged += not event
        return found

    def _repaired(self, text: bytes) -> list[T]:
        """An event with bytes that are no UTF-8 or with nan and inf for numbers; nothing when that is not all."""
        try:
            event = json.loads(_NOT_A_NUMBER.sub(b"null", text).decode("utf-8", "replace"), strict=False)
            return [self.convert(event)]
        except (ValueError, TypeError, RecursionError, msgspec.ValidationError):
            return []


def _last_between(text: bytes) -> int | None:
    """Where, near the end of the text, one event seems to end and another to begin."""
    places = [match.start() for match in _BETWEEN.finditer(text, max(len(text) - _GUESS_BYTES, 0))]
    return places[-1] + 1 if places else None


def _marks(text: bytes) -> tuple[Any, Any, Any]:
    """Positions of brackets outside strings, what stands there, and the depth behind each."""
    letters = np.frombuffer(text, np.uint8)
    quotes = np.flatnonzero(letters == ord('"'))
    if b'\\"' in text:
        quotes = np.array([at for at in quotes.tolist() if not _escaped(text, at)], np.int64)
    places = np.flatnonzero(_DEPTH[letters])
    places = places[np.searchsorted(quotes, places) % 2 == 0]
    return places, letters[places], np.cumsum(_DEPTH[letters[places]], dtype=np.int64)


def _escaped(text: bytes, at: int) -> bool:
    back = at
    while back > 0 and text[back - 1] == ord("\\"):
        back -= 1
    return (at - back) % 2 == 1


def _structure(text: bytes) -> tuple[list[int], int | None]:
    """Ends of the whole events of a text that begins between two events, and where the array's `]` is, if it is."""
    places, letters, depth = _marks(text)
    below = np.flatnonzero(depth < 0)
    stop = int(places[below[0]]) if len(below) else None
    ends = places[(depth == 0) & (letters == ord("}"))] + 1
    return [int(end) for end in ends if stop is None or end <= stop], stop


def _depth_at(text: bytes, at: int) -> int:
    places, _, depth = _marks(text[:at])
    return int(depth[-1]) if len(places) else 0


def _outer(head: bytes, tail: bytes) -> dict[str, Any]:
    """The top object around the events; empty where it is no JSON."""
    try:
        found = json.loads((head + tail).decode("utf-8", "replace"), strict=False)
    except (ValueError, RecursionError):
        return {} if tail == b"]}" else _outer(head, b"]}")
    return found if isinstance(found, dict) else {}
