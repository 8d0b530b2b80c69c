"""Plots; matplotlib is imported when a plot is asked for, never before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from advisor.report.colours import term_colour
from advisor.spec.plan import Candidate
from advisor.units import gib

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def memory_figure(candidate: Candidate) -> Figure:
    """Memory of the worst stage at its worst moment: one bar of GiB per term, the sum and the budget as lines.

    The figure belongs to no window (matplotlib.figure.Figure, not pyplot), so notebooks show it exactly once.
    """
    from matplotlib.figure import Figure

    memory = candidate.memory
    terms = [(name, term) for name, term in memory.terms.items() if term.value > 0]
    figure = Figure(figsize=(8, 0.5 + 0.32 * (len(terms) + 1)), layout="constrained")
    axes = figure.add_subplot()
    left = 0.0
    for row, (name, term) in enumerate(terms):
        size = gib(term.value)
        axes.barh(row, size, left=left, color=term_colour(name))
        axes.annotate(f"{size:.2f} {term.kind}", (left + size, row), xytext=(4, 0), textcoords="offset points",
                      va="center", fontsize=8)  # fmt: skip
        left += size
    axes.set_yticks(range(len(terms)), [name.replace("_", " ") for name, _ in terms])
    axes.invert_yaxis()
    budget = gib(memory.budget_bytes)
    axes.axvline(budget, color="crimson", linewidth=1.2, label=f"budget {budget:.1f} GiB")
    axes.axvline(gib(memory.peak_device_bytes), color="black", linewidth=1.2, linestyle=":",
                 label=f"peak {gib(memory.peak_device_bytes):.1f} GiB")  # fmt: skip
    axes.set_xlim(0, 1.15 * max(budget, left))
    axes.set_xlabel("GiB")
    layout = candidate.layout
    axes.set_title(
        f"tp{layout.tp} pp{layout.pp} vpp{layout.vpp} cp{layout.cp} ep{layout.ep} etp{layout.etp} mbs{layout.mbs}: "
        f"stage {memory.worst_stage}, {memory.worst_moment.replace('_', ' ')}",
        fontsize=9,
    )
    axes.legend(fontsize=8, loc="lower right")
    return figure
