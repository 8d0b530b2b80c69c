"""Answers as HTML for notebooks: a table, and for every layout a memory bar against the budget."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from advisor.report.colours import term_colour
from advisor.search.dials import recompute_names
from advisor.search.request import Request
from advisor.spec.plan import Candidate, Finding, MemoryEstimate
from advisor.units import gib

if TYPE_CHECKING:
    from advisor.report.answers import Estimate, Explanation, Plan, Scaling

HEADINGS = (
    "#", "layout", "mbs", "recompute", "dispatcher", "peak GiB", "headroom", "step s", "80 % interval",
    "tokens/s/GPU", "TFLOP/s", "MFU", "exposed s", "bubble s", "memory",
)  # fmt: skip


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """An HTML table; cells are HTML already."""
    head = "".join(f"<th>{heading}</th>" for heading in headings)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def layout_words(candidate: Candidate) -> str:
    """A layout in short: tp2 pp4 vpp2 ep8 dp8, leaving out what is 1."""
    layout = candidate.layout
    sizes = ("tp", "pp", "vpp", "cp", "ep", "etp", "dp")
    return " ".join(f"{name}{getattr(layout, name)}" for name in sizes if getattr(layout, name) > 1) or "single GPU"


def memory_bar(memory: MemoryEstimate, width_px: int = 260) -> str:
    """The terms of the worst moment side by side, to the scale of the larger of budget and peak, the budget marked."""
    scale = width_px / max(memory.budget_bytes, memory.peak_device_bytes)
    parts = "".join(
        f'<span title="{escape(name)} {gib(term.value):.2f} GiB ({term.kind})" style="display:inline-block;'
        f'height:12px;width:{term.value * scale:.1f}px;background:{term_colour(name)}"></span>'
        for name, term in memory.terms.items()
        if term.value > 0
    )
    mark = f'<span style="position:absolute;left:{memory.budget_bytes * scale:.1f}px;height:16px;border-left:2px solid crimson"></span>'  # noqa: E501
    return f'<div style="position:relative;white-space:nowrap;font-size:0;width:{width_px}px">{parts}{mark}</div>'


def _candidate_cells(candidate: Candidate, label: str) -> list[str]:
    memory, step, knobs = candidate.memory, candidate.step, candidate.knobs
    figures = ["-"] * 7
    if step is not None:
        figures = [
            f"{step.step_s:.3f}",
            f"{step.low_s:.3f} - {step.high_s:.3f}",
            f"{step.tokens_per_s_per_gpu:,.0f}",
            f"{step.tflops_per_gpu:.0f}",
            f"{step.mfu:.1%}",
            f"{sum(step.exposed_s.values()):.3f}",
            f"{step.bubble_s:.3f}",
        ]
    return [
        escape(label),
        layout_words(candidate),
        str(candidate.layout.mbs),
        escape(", ".join(recompute_names(knobs)) or "none"),
        knobs.dispatcher.name,
        f"{gib(memory.peak_device_bytes):.1f}",
        f"{gib(memory.budget_bytes - memory.peak_device_bytes):.1f}",
        *figures,
        memory_bar(memory),
    ]


def _candidates(rows: Iterable[tuple[str, Candidate]]) -> str:
    return _table(HEADINGS, [_candidate_cells(candidate, label) for label, candidate in rows])


def _request(request: Request) -> str:
    said = ", ".join(
        f"{name} {escape(str(setting.value))} <small>({escape(setting.origin)})</small>"
        for name, setting in request.settings.items()
        if str(setting.value)
    )
    return f"<p>{said}</p>"


def _findings(found: Iterable[Finding]) -> str:
    items = "".join(
        f"<li><b>{escape(one.rule)}</b> ({one.severity}): {escape(one.message)}"
        f"{' <i>' + escape(one.fix) + '</i>' if one.fix else ''}</li>"
        for one in found
    )
    return f"<ul>{items}</ul>" if items else ""


def plan_html(plan: Plan) -> str:
    """The request, the counts and the table of candidates with the baseline below."""
    rows = [(str(candidate.rank), candidate) for candidate in plan.candidates]
    if plan.baseline is not None:
        rows.append((f"vendor: {plan.baseline_name}", plan.baseline))
    counts = f"<p>{plan.searched:,} searched, {plan.feasible:,} feasible</p>"
    return _request(plan.request) + counts + (_candidates(rows) if rows else "<p>nothing fits</p>")


def estimate_html(estimate: Estimate) -> str:
    """The verdict, the candidate as a table of one row and the findings."""
    rows = [] if estimate.candidate is None else [("1", estimate.candidate)]
    table = _candidates(rows) if rows else ""
    return f"{_request(estimate.request)}<p><b>{estimate.verdict}</b></p>{table}{_findings(estimate.findings)}"


def explanation_html(found: Explanation) -> str:
    """The estimate, its reasons, the nearest layout that fits and the single changes."""
    reasons = "".join(f"<li>{escape(reason.message)}</li>" for reason in found.reasons)
    rows = [(label, one) for label, one in (("nearest", found.nearest), ("best", found.best)) if one is not None]
    dials = _table(
        ("dial", "before", "after", "verdict", "tokens/s/GPU"),
        [
            (dial.name, escape(dial.before), escape(dial.after), dial.verdict,
             "-" if dial.gain is None else f"{dial.gain:+.1%}")
            for dial in found.dials
        ],
    )  # fmt: skip
    table = _candidates(rows) if rows else ""
    return f"{estimate_html(found.estimate)}<ul>{reasons}</ul>{table}{dials if found.dials else ''}"


def scaling_html(scaling: Scaling) -> str:
    """The best layout per GPU count."""
    rows = [
        (
            f"{point.gpus:,}",
            f"{point.gbs:,}",
            "nothing fits" if point.candidate is None else layout_words(point.candidate),
            "-" if point.efficiency is None else f"{point.efficiency:.1%}",
            escape(", ".join(point.changed)),
            escape(point.grown_term),
        )
        for point in scaling.points
    ]
    return _request(scaling.request) + _table(("GPUs", "gbs", "layout", "efficiency", "changed", "grown most"), rows)
