"""Rules of Megatron and of experience, in one form; asked over columns (`legality`) or for one row (`findings`)."""

from __future__ import annotations

from collections.abc import Sequence

from advisor.rules import experts, grid, lessons, offload, optimizer, pipeline, recompute, speed
from advisor.rules.rule import Case, Row, Rule, Verdicts, answers, judge
from advisor.rules.weights import document_lines
from advisor.spec.hardware import Cluster
from advisor.spec.layout import Columns, Knobs, Layout
from advisor.spec.model import Model
from advisor.spec.plan import Finding
from advisor.spec.split import PipelineSplit
from advisor.spec.workload import Workload

__all__ = ["RULES", "Rule", "Verdicts", "document_lines", "findings", "job_findings", "legality", "rule_of", "rules"]

_FAMILIES: tuple[Rule, ...] = (
    *grid.WORLD,
    *grid.SHAPES,
    *experts.SIZES,
    *pipeline.CONTEXT,
    *grid.BATCH,
    *pipeline.SPLIT,
    *experts.DISPATCH,
    *experts.OVERLAP,
    *recompute.RECOMPUTE,
    *recompute.GRAPHS,
    *offload.OFFLOAD,
    *optimizer.OPTIMIZER,
    *optimizer.PRECISION,
    *speed.SPEED,
    *lessons.LESSONS,
    *speed.NOTES,
)
RULES = tuple(sorted(_FAMILIES, key=lambda one: bool(one.fields)))
"""Rules about the job itself come first: what they refuse, no layout repairs, and no other rule should be blamed."""
STOP = tuple(one for one in RULES if one.severity == "stop")


def rules() -> tuple[Rule, ...]:
    """All rules, in the order in which they are asked."""
    return RULES


def rule_of(id: str) -> Rule:
    """The rule of that id; KeyError if there is none."""
    return {one.id: one for one in RULES}[id]


def legality(model: Model, cluster: Cluster, workload: Workload, columns: Columns) -> Verdicts:
    """The `stop` rules asked over every entry of a table: mask per rule, `legal` mask, counts of first broken rules."""
    return judge(STOP, Case(model, cluster, workload, columns))


def job_findings(model: Model, cluster: Cluster, workload: Workload) -> tuple[Finding, ...]:
    """The `stop` rules that the job itself breaks, whatever its layout."""
    split, gpus = PipelineSplit(1, 1, (model.num_layers,)), cluster.gpus
    sizes = dict.fromkeys(("tp", "pp", "vpp", "cp", "ep", "etp", "mbs"), 1)
    layout = Layout(**sizes, dp=gpus, edp=gpus, gbs=gpus, sp=False, split=split)
    (found,) = answers([one for one in STOP if not one.fields], [Row(model, cluster, workload, layout, Knobs())])
    return found


def findings(model: Model, cluster: Cluster, workload: Workload, layout: Layout, knobs: Knobs) -> tuple[Finding, ...]:
    """Everything that rules have to say about one layout, in rule order, with numbers and the nearest fix.

    `layout.dp` must be at least 1 (`max(1, gpus // (tp * pp * cp))` where they do not divide).
    """
    (found,) = findings_of_all(model, cluster, workload, [(layout, knobs)])
    return found


def findings_of_all(
    model: Model, cluster: Cluster, workload: Workload, chosen: Sequence[tuple[Layout, Knobs]]
) -> tuple[tuple[Finding, ...], ...]:
    """The `findings` about each of many layouts with knobs, asked at once."""
    return answers(RULES, [Row(model, cluster, workload, layout, knobs) for layout, knobs in chosen])
