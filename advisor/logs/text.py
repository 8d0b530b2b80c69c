"""Bytes of a log line made readable: colour codes, NUL bytes and progress bars go, bad UTF-8 is replaced."""

from __future__ import annotations

import re

LONGEST_LINE_BYTES = 1 << 16
SHOWN_CHARACTERS = 600

_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_USUAL = bytes(byte for byte in range(256) if byte >= 32 and byte != 127) + b"\n\r\x1b"
_ODD = re.compile(r"(?![\x00-\x7f])[\s\d]")
_PRINTED = re.compile(rb"[!-~]")


def clean(raw: bytes) -> str:
    """One line as text without escape sequences and control characters; of a redrawn line (CR) the last state stays."""
    text = raw[:LONGEST_LINE_BYTES].decode("utf-8", errors="replace")
    text = without_escapes(text)
    text = text.rstrip("\r\n ")
    if "\r" in text:
        parts = [part for part in text.split("\r") if part.strip()]
        text = parts[-1] if parts else ""
    return _CONTROLS.sub("", text)


def is_usual(raw: bytes) -> bool:
    """Whether lines are printable text, escape sequences and line ends, with no blanks or digits beyond ASCII."""
    return not raw.translate(None, _USUAL) and not _ODD.search(raw.decode("utf-8", errors="replace"))


def last_states(text: str) -> str:
    """Whole lines of which `is_usual` holds, each without what a redrawn line (CR) showed before.

    Escape sequences stay where no line is redrawn.
    """
    if "\r" not in text:
        return text
    lines = without_escapes(text).split("\n")
    return "\n".join([line.rstrip("\r ").rpartition("\r")[2] for line in lines])


def without_escapes(text: str) -> str:
    """Text without escape sequences: colours, cursor moves, links."""
    return _ESCAPES.sub("", text) if "\x1b" in text else text


def last_state(shape: bytes) -> bytes:
    """The part of a line's shape that `clean` leaves of a redrawn line; all of it where that is not plain to see."""
    tail = shape.rstrip(b"\r").rpartition(b"\r")[2]
    return tail if b"\x1b" not in shape and _PRINTED.search(tail) else shape


def shown(text: str) -> str:
    """A line as evidence: cut to a readable length."""
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 3] + "..."
