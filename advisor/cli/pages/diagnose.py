"""The page of a diagnosis: what failed first, the lines that say so, what follows from it, what to do."""

from __future__ import annotations

from collections.abc import Iterator

from advisor.cli.document import Block, Column, Document, Facts, Line, Table
from advisor.cli.figures import NONE, count
from advisor.diagnose.diagnosis import Diagnosis

LONGEST_CELL = 200


def diagnosis_document(found: Diagnosis, verbose: bool) -> Document:
    """A diagnosis for people, and its record for machines; in csv one row, its evidence left to JSON."""
    record = found.to_dict()
    row = {name: value for name, value in record.items() if not isinstance(value, list)}
    return Document(tuple(_blocks(found, verbose)), record, [row])


def _blocks(found: Diagnosis, verbose: bool) -> Iterator[Block]:
    yield Line(f"diagnose: {found.cause_id} ({found.confidence} confidence)", "heading")
    yield Line(f"{found.title}{f': {found.reason}' if found.reason else ''}", "bad" if found.found else "plain")
    yield Facts("first failure", tuple(_facts(found)))
    lines = (Column("line"), Column("file", "text"), Column("text", "text"))
    if found.evidence:
        rows = tuple((count(one.line), _short(one.file), _cut(one.text)) for one in found.evidence)
        yield Table("evidence", lines, rows)
    if found.cascade:
        columns = (Column("what", "name"), Column("times"), Column("first\nline"), Column("text", "text"))
        kinds = tuple(
            (one.kind, count(one.count), count(one.first.line), _cut(one.first.text)) for one in found.cascade
        )
        yield Table("what follows from it", columns, kinds)
    yield from (Line(f"not to blame: {one}", "dim") for one in found.not_to_blame)
    yield Line(f"fix: {found.fix}")
    yield from (Line(f"  plan: {one}") for one in found.advice)
    yield Line(f"next step: {found.next_step}")
    if verbose:
        columns = (Column("log", "text"), Column("lines"), Column("MB"), Column("problem", "text"))
        yield Table("read", columns, tuple(_source(one) for one in found.sources))


def _facts(found: Diagnosis) -> Iterator[tuple[str, str, str]]:
    yield ("rank", NONE if found.first_failing_rank is None else count(found.first_failing_rank), _of_world(found))
    yield ("node", found.first_failing_node or NONE, "")
    code = found.exit_code
    signal = f"signal {code - 128}" if code is not None and 128 < code < 160 else ""
    yield ("exit code", NONE if code is None else str(code), signal)
    if found.last_iteration is not None:
        yield ("last iteration", count(found.last_iteration), "")


def _of_world(found: Diagnosis) -> str:
    return f"of {count(found.world_size)}" if found.world_size else ""


def _short(name: str) -> str:
    parts = name.rsplit("/", 2)
    return "/".join(parts[-2:])


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_CELL else text[: LONGEST_CELL - 3] + "..."


def _source(one: dict[str, object]) -> tuple[str, ...]:
    lines, size = one["lines"], one["bytes"]
    return (
        str(one["name"]), count(lines) if isinstance(lines, int) else NONE,
        f"{size / 1e6:.1f}" if isinstance(size, int) else NONE, str(one["problem"] or ""),
    )  # fmt: skip
