"""The page of communication overlap: requested and effective, user buffers, what each overlap brings, environment."""

from __future__ import annotations

from collections.abc import Iterator

from advisor.cli.document import Block, Column, Document, Line, Style, Table
from advisor.cli.figures import NONE, count, figure
from advisor.cli.pages.parts import findings_table, layout_label, request_facts
from advisor.cli.pages.prices import ends, reasons, saves, signed, worth
from advisor.configure.answer import OverlapAnswer
from advisor.configure.gain import Gain
from advisor.configure.interleaving import Interleaving
from advisor.configure.resolved import Field, Value
from advisor.units import gib

WORDS = {"asked": "as asked", "automatic": "automatic", "silent": "SILENT", "stop": "STOP"}
SEARCH = ("objective", "top", "fix", "allow", "headroom", "target_tokens_per_s")


def overlap_document(answer: OverlapAnswer, explain: bool) -> Document:
    """Overlap of one layout for people, and its record for machines."""
    record = answer.to_dict()
    return Document(tuple(_blocks(answer, explain)), record, record["fields"], _hints(answer))


def _blocks(answer: OverlapAnswer, explain: bool) -> Iterator[Block]:
    request, job = answer.request, answer.overlap.job
    yield Line(
        f"overlap: {request.model.name} on {count(request.cluster.gpus)} x {request.cluster.gpu.name},"
        f" {layout_label(job.layout)}, Megatron-Bridge {answer.overlap.asked.target}",
        "heading",
    )
    yield _verdict(answer)
    if explain:
        yield request_facts(request, without=SEARCH)
    yield _fields(answer)
    yield from _buffers(answer, explain)
    if answer.gains:
        yield _gains(answer, explain)
        yield Line(
            "80 % interval: how wrong predicted ratios were on pairs of measured runs that differ in one dial (assumed"
            " for these: the pairs turn others); in brackets: not priced, it acts on so many seconds of the step",
            "dim",
        )
    if explain:
        yield from _explained(answer)
    yield from findings_table(answer.findings)


def _verdict(answer: OverlapAnswer) -> Line:
    lost = [one.path for one in answer.overlap.fields if one.outcome == "silent"]
    stopped = [one.path for one in answer.overlap.fields if one.outcome == "stop"]
    illegal = sum(one.severity == "stop" for one in answer.findings)
    if illegal:
        return Line(f"illegal: {count(illegal)} rule{'s' if illegal != 1 else ''} broken", "bad")
    style: Style = "bad" if stopped or lost else "good"
    parts = [f"refused: {', '.join(stopped)}"] if stopped else []
    parts += [f"silently lost: {', '.join(lost)}"] if lost else []
    step = f"; step {figure(answer.step.step_s)} s" if answer.step is not None else ""
    return Line(("; ".join(parts) or "everything asked for takes effect") + step, style)


def _shown(value: Value) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "on", False: "off", None: NONE}[value]
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or NONE
    if isinstance(value, int) and value > 9999:
        return count(value)
    return str(value)


def _fields(answer: OverlapAnswer) -> Table:
    columns = (Column("field", "name"), Column("requested", "text"), Column("effective", "text"),
               Column("", "name"), Column("saves s"), Column("why", "text"))  # fmt: skip
    rows = tuple(
        (
            one.path,
            "auto" if one.requested is None else _shown(one.requested),
            _shown(one.effective),
            WORDS[one.outcome],
            saves(answer.prices.get(one.path)),
            one.reason,
        )
        for one in answer.overlap.fields
    )
    return Table("requested and effective", columns, rows)


def _sources(fields: tuple[Field, ...]) -> Iterator[Line]:
    """Which code decides which fields."""
    by_source: dict[str, list[str]] = {}
    for one in fields:
        by_source.setdefault(one.source, []).append(one.path)
    for source, paths in by_source.items():
        yield Line(f"source: {source}: {', '.join(paths)}", "dim")


def _buffers(answer: OverlapAnswer, explain: bool) -> Iterator[Block]:
    found = answer.overlap.buffers
    yield Line(f"user buffers: {found.match}{' ' + found.name if found.name else ''} - {found.reason}")
    gemms, title = found.gemms, "user buffers by GEMM"
    if not gemms and found.custom:
        gemms, title = found.custom, "a generated configuration (assumed; --tp-comm-overlap-cfg custom takes it)"
    if not gemms or not (explain or found.custom):
        return
    columns = (Column("GEMM", "name"), Column("method", "name"), Column("SMs"), Column("CGA"), Column("splits"))
    rows = tuple(
        (gemm, str(row["method"]), str(row["num_sm"]), str(row["cga_size"]), str(row.get("num_splits", NONE)))
        for gemm, row in gemms.items()
    )
    yield Table(title, columns, rows)


def _gains(answer: OverlapAnswer, explain: bool) -> Table:
    columns = (Column("overlap", "name"), Column("now", "name"), Column("step s\nwith"), Column("step s\nwithout"),
               Column("saves s"), Column("80 %\ninterval"), Column("", "text"))  # fmt: skip
    shown = [one for one in answer.gains if explain or one.saved_s is not None]
    return Table("what each overlap brings, all else equal", columns, tuple(map(_gain, shown)))


def _gain(one: Gain) -> tuple[str, ...]:
    saved = NONE if one.saved_s is None else signed(one.saved_s)
    state = "on" if one.now else "off"
    return (one.name, state, figure(one.with_s), figure(one.without_s), saved, ends(one), one.note)


def _explained(answer: OverlapAnswer) -> Iterator[Block]:
    if answer.interleavings:
        columns = (Column("", "name"), Column("VPP"), Column("split", "name"), Column("heaviest rank\nover mean"),
                   Column("step s"), Column("bubble s"), Column("exposed\np2p s"), Column("peak\nGiB"),
                   Column("", "name"))  # fmt: skip
        yield Table("virtual stages: p2p overlap and bubble against memory", columns,
                    tuple(map(_interleaving, answer.interleavings)))  # fmt: skip
    yield from _unpriced(answer)
    yield _environment(answer)
    yield from _sources(answer.overlap.fields)


def _unpriced(answer: OverlapAnswer) -> Iterator[Table]:
    """Fields that the cost model cannot turn on and off, each with the reason."""
    columns = (Column("field", "name"), Column("saves s"), Column("why", "text"))
    found = [(one.path, answer.prices[one.path]) for one in answer.overlap.fields if one.path in answer.prices]
    rows = tuple((path, saves(price), price.why) for path, price in found if price.gain is None)
    if rows:
        yield Table("fields without a price", columns, rows)


def _environment(answer: OverlapAnswer) -> Table:
    columns = (Column("variable", "name"), Column("value", "text"), Column("saves s"), Column("80 %\ninterval"),
               Column("why", "text"))  # fmt: skip
    rows = tuple(
        (one.name, one.value, *worth(answer.prices.get(one.name)), reasons(one.reason, answer.prices.get(one.name)))
        for one in answer.environment
    )
    return Table("environment of every rank (no configuration field can say it)", columns, rows)


def _interleaving(one: Interleaving) -> tuple[str, ...]:
    return (
        "✓" if one.chosen else "",
        count(one.vpp),
        one.form,
        figure(one.imbalance),
        figure(one.step_s),
        figure(one.bubble_s),
        figure(one.exposed_pp_s),
        figure(gib(one.peak_bytes)),
        "fits" if one.fits else "out of memory",
    )


def _hints(answer: OverlapAnswer) -> tuple[str, ...]:
    for one in answer.overlap.fields:
        if one.outcome in ("stop", "silent"):
            return (f"{one.path}: {one.reason}",)
    return ()
