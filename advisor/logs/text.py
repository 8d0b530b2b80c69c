"""Bytes of a log line made readable: colour codes, NUL bytes and progress bars go, bad UTF-8 is replaced."""

from __future__ import annotations

import re

LONGEST_LINE_BYTES = 1 << 16
SHOWN_CHARACTERS = 600

_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def clean(raw: bytes) -> str:
    """One line as text without escape sequences and control characters; of a redrawn line (CR) the last state stays."""
    text = raw[:LONGEST_LINE_BYTES].decode("utf-8", errors="replace")
    if "\x1b" in text:
        text = _ESCAPES.sub("", text)
    text = text.rstrip("\r\n ")
    if "\r" in text:
        parts = [part for part in text.split("\r") if part.strip()]
        text = parts[-1] if parts else ""
    return _CONTROLS.sub("", text)


def shown(text: str) -> str:
    """A line as evidence: cut to a readable length."""
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 3] + "..."
