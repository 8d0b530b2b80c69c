"""Text, YAML and JSON that somebody hands over: bounded in size, depth and expansion, one clear error each."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any, NoReturn

import yaml

from advisor.errors import InputError

DEEPEST = 60
MOST_NODES = 200_000
_MARKS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}
_ARCHIVES = (
    (b"PK\x03\x04", 0, "a zip archive"), (b"ustar", 257, "a tar archive"), (b"\x1f\x8b", 0, "packed (gz)"),
    (b"\x89HDF", 0, "a HDF5 file"), (b"%PDF", 0, "a PDF"),
)  # fmt: skip
# What constructors of YAML raise for scalars that do not fit their tag, beside YAMLError.
_BROKEN = (yaml.YAMLError, ValueError, RecursionError, OverflowError, TypeError, AttributeError, LookupError)
_OPENED = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")


class SafeLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Builds plain values only; libyaml where it is there."""


def read_text(path: str | Path, most_bytes: int, kind: str, larger: str = "") -> str:
    """Text of a regular file without its byte order mark, with line feeds alone at the ends of lines.

    `kind` says in messages what was expected, `larger` what a larger file may be. Raises InputError for what is
    missing, no regular file (what a shell has opened for `<(...)` may be a pipe), larger than `most_bytes`, or no text
    in UTF-8.
    """
    name = str(path)
    try:
        require_file(name, os.stat(name).st_mode, kind)
        with open(name, "rb") as stream:
            content = stream.read(most_bytes + 1)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {name!r}: {getattr(error, 'strerror', None) or error}") from None
    if len(content) > most_bytes:
        size = f"{most_bytes >> 20} MiB" if most_bytes >= 1 << 20 else f"{most_bytes} bytes"
        raise InputError(f"{name!r} is larger than {size}: not a {kind}", hint=larger or None)
    return decoded(name, content, kind)


def decoded(name: str, content: bytes, kind: str) -> str:
    """Bytes as text, in the form of `read_text`. Raises InputError where they are none."""
    if content[:2] in _MARKS and len(content) % 2 == 0 and content.count(b"\0") * 3 > len(content):
        raise InputError(f"{name!r} is text in {_MARKS[content[:2]]}", hint="convert it: iconv -f UTF-16 -t UTF-8")
    archive = next((form for magic, at, form in _ARCHIVES if content[at : at + len(magic)] == magic), None)
    if archive is not None:
        raise InputError(f"{name!r} is {archive}, not a {kind}", hint=f"give the {kind} inside")
    if b"\0" in content:
        raise InputError(f"{name!r} is not a text file (NUL bytes)", hint=f"give a {kind}")
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        where = f"byte {error.start}"
        raise InputError(f"{name!r} is not a text file (not UTF-8, {where})", hint=f"give a {kind}") from None


def require_file(name: str, mode: int, kind: str) -> None:
    """Raises InputError for what is no regular file by its `mode`, but for pipes that the shell has opened."""
    if stat.S_ISDIR(mode):
        raise InputError(f"{name!r} is a directory, not a {kind}")
    if stat.S_ISFIFO(mode) and not name.startswith(_OPENED):
        raise InputError(f"{name!r} is a named pipe, not a {kind}", hint="give a file, or <(cat ...)")
    if not stat.S_ISREG(mode) and not stat.S_ISFIFO(mode):
        raise InputError(f"{name!r} is no regular file", hint=f"give a {kind}")


def read_yaml(name: str, text: str, loader: type[Any] = SafeLoader) -> Any:
    """What a YAML text holds, plain values only; None for an empty one.

    Raises InputError for text that does not parse, that nests deeper than `DEEPEST`, or that its aliases make larger
    than `MOST_NODES` values: this is known before any of them is built.
    """
    try:
        reader = loader(text)
        try:
            node = reader.get_single_node()
            if node is None:
                return None
            _require_bounded(name, node)
            return reader.construct_document(node)
        finally:
            reader.dispose()
    except InputError:
        raise
    except _BROKEN as error:
        _refuse(name, "YAML", error)


def read_json(name: str, text: str) -> Any:
    """What a JSON text holds. Raises InputError for text that does not parse."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        _refuse(name, "JSON", error)


def _refuse(name: str, form: str, error: BaseException) -> NoReturn:
    mark = getattr(error, "problem_mark", None)
    line = getattr(error, "lineno", None) or (mark.line + 1 if mark is not None else None)
    if isinstance(error, RecursionError) or "maximum nesting depth" in str(error):
        raise InputError(f"{name!r} nests too deeply: more than {DEEPEST} levels") from None
    why = getattr(error, "problem", None) or getattr(error, "msg", None)
    said = f": {' '.join(str(why).split())[:160]}" if why else ""
    raise InputError(f"{name!r} is not valid {form}{f' (line {line})' if line else ''}{said}") from None


def _require_bounded(name: str, root: yaml.Node) -> None:
    """Sizes of all nodes with their aliases written out, children first; what is shared is counted once and added."""
    known: dict[int, tuple[int, int]] = {}
    above: set[int] = set()
    waiting = [(root, False)]
    while waiting:
        node, done = waiting.pop()
        if isinstance(node, yaml.ScalarNode) or (not done and id(node) in known):
            continue
        inner = _inner(node)
        if done:
            above.discard(id(node))
            sizes = [known.get(id(one), (1, 1)) for one in inner]
            size, depth = 1 + sum(one for one, _ in sizes), 1 + max((one for _, one in sizes), default=0)
            known[id(node)] = (size, depth)
            if size > MOST_NODES:
                raise InputError(
                    f"{name!r} writes out to more than {MOST_NODES} values (aliases, line {node.start_mark.line + 1})",
                    hint="write the values out",
                )
            if depth > DEEPEST:
                raise InputError(f"{name!r} nests too deeply: more than {DEEPEST} levels")
        elif id(node) in above:
            raise InputError(f"{name!r} holds an alias of what it is part of (line {node.start_mark.line + 1})")
        else:
            above.add(id(node))
            waiting.append((node, True))
            waiting.extend((one, False) for one in inner)


def _inner(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [one for pair in node.value for one in pair]
    return list(node.value)
