"""Which of many texts are in a line, and which lines of a block hold any of them, without looking for every text.

Digits and blanks count for nothing: texts and lines are compared as shapes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

DROPPED = b"0123456789 \t\0"
PIECE_BYTES = 4
STRIDE = 4
# Blocks are looked through by pieces of six bytes at every second place.
_GRAM_BYTES = 6
_GRAM_STRIDE = 2
_GRAM_TEXT_BYTES = _GRAM_BYTES + _GRAM_STRIDE - 1
_MASK = np.uint64((1 << 8 * _GRAM_BYTES) - 1)
_TABLE_BITS = 18
_SHIFT = np.uint64(64 - _TABLE_BITS)
# 2^64 / golden ratio, shifted so that the bytes beyond a gram fall out of the product (Knuth, TAOCP 3, 6.4).
_FACTOR = np.uint64((0x9E3779B97F4A7C15 << 8 * (8 - _GRAM_BYTES)) & (2**64 - 1))


def shape_of(raw: bytes) -> bytes:
    """What is left of a line, or of a block of lines, when digits and blanks go."""
    return raw.translate(None, DROPPED)


class Gate:
    """Finds lines by the texts that are in them; `texts` are pairs of a mark and a shape."""

    def __init__(self, texts: Iterable[tuple[int, bytes]]) -> None:
        self._texts: dict[bytes, list[tuple[int, bytes]]] = {}
        self._short: list[tuple[int, bytes]] = []
        words: set[bytes] = set()
        for mark, text in texts:
            words.add(text)
            if len(text) < PIECE_BYTES + STRIDE - 1:
                self._short.append((mark, text))
                continue
            for at in range(STRIDE):
                self._texts.setdefault(text[at : at + PIECE_BYTES], []).append((mark, text))
        self._words = tuple(sorted(word for word in words if len(word) < _GRAM_TEXT_BYTES))
        grams = {gram for word in words if len(word) >= _GRAM_TEXT_BYTES for gram in _grams(word)}
        self._grams = np.array(sorted(grams), np.uint64)
        self._table = np.zeros(1 << _TABLE_BITS, np.bool_)
        self._table[_hash(self._grams)] = True

    def marks(self, shape: bytes) -> tuple[int, ...]:
        """Marks of the texts that are in the shape of a line, ascending.

        Every `STRIDE`-th piece of the line is looked up; the first `STRIDE` pieces of every text are known, so that one
        of them is met wherever the text begins. Texts too short for that are looked for one by one.
        """
        found = {mark for mark, text in self._short if text in shape}
        met = {shape[at : at + PIECE_BYTES] for at in range(0, len(shape), STRIDE)} & self._texts.keys()
        for piece in met:
            found.update(mark for mark, text in self._texts[piece] if text in shape)
        return tuple(sorted(found))

    def candidates(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Index and shape of the lines that hold a text; a few others may be among them.

        Each line of `data` ends with a line feed.
        """
        shapes = shape_of(data)
        places = np.concatenate([self._gram_places(shapes), np.array(list(self._word_places(shapes)), np.int64)])
        if len(places):
            ends = np.flatnonzero(np.frombuffer(shapes, np.uint8) == 10)
            met = np.zeros(len(ends) + 1, np.bool_)
            met[np.searchsorted(ends, places)] = True
            index = np.flatnonzero(met[:-1])
            starts = np.where(index > 0, ends[index - 1] + 1, 0)
            lines = map(slice, starts.tolist(), ends[index].tolist())
            yield from zip(index.tolist(), map(shapes.__getitem__, lines), strict=True)

    def _gram_places(self, shapes: bytes) -> NDArray[np.int64]:
        """Where a known gram begins."""
        if not len(self._grams):
            return np.empty(0, np.int64)
        padded, count = shapes + b"\n" * 16, len(shapes) // 8 + 1
        found = []
        for offset in range(0, 8, _GRAM_STRIDE):
            words = np.frombuffer(padded, np.dtype("<u8"), count, offset)
            at = np.flatnonzero(self._table.take(_hash(words).view(np.int64)))
            grams = words[at] & _MASK
            exact = self._grams.take(np.searchsorted(self._grams, grams), mode="clip") == grams
            found.append(at[exact] * 8 + offset)
        return np.concatenate(found)

    def _word_places(self, shapes: bytes) -> Iterator[int]:
        """Where a text too short for grams is, once a line."""
        for word in self._words:
            at = shapes.find(word)
            while at >= 0:
                yield at
                end = shapes.find(b"\n", at)
                at = shapes.find(word, end) if end >= 0 else -1


def _hash(grams: NDArray[np.uint64]) -> NDArray[np.uint64]:
    return (grams * _FACTOR) >> _SHIFT


def _grams(text: bytes) -> Iterator[int]:
    """Grams of the rarest part of a text: one of them is at an even place wherever the text begins."""
    starts = range(len(text) - _GRAM_TEXT_BYTES + 1)
    best = max(starts, key=lambda at: (_rarity(text[at : at + _GRAM_TEXT_BYTES]), -at))
    for at in range(best, best + _GRAM_STRIDE):
        yield int.from_bytes(text[at : at + _GRAM_BYTES], "little")


def _rarity(part: bytes) -> int:
    """How many bytes are no small letters: prose is made of these."""
    return sum(not 97 <= byte <= 122 for byte in part)
