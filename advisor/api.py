"""The Python functions: plan, estimate, why and scale. Each returns a frozen value (advisor.report.answers).

Every keyword is optional except the model and the GPUs; what is left out comes from ADVISOR_* variables, then
./advisor.toml or [tool.advisor] of ./pyproject.toml, then the user's file, then the default - `answer.request` tells
which. Names of the keywords and their meaning: `advisor.search.options`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Unpack

from advisor.errors import InputError
from advisor.report.answers import Estimate, Explanation, Plan, Scaling
from advisor.search.options import EstimateOptions, PlanOptions

if TYPE_CHECKING:
    from advisor.fit.anchor import Anchor
    from advisor.fit.references import Measured
    from advisor.search.request import Request
    from advisor.search.routing import Imbalance
    from advisor.spec.plan import Candidate, Finding


def plan(model: str | Path, gpus: int | Literal["auto"], **options: Unpack[PlanOptions]) -> Plan:
    """Search every layout of `model` on `gpus` GPUs and rank what fits.

    `model` is a preset name or the path of a Hugging Face config.json. `gpus="auto"` takes the fewest GPUs that fit,
    or that reach `target_tokens_per_s`. An empty `candidates` means that nothing fits; nothing is raised for it.
    Raises InputError (and its kinds) for input that cannot be used.
    """
    from advisor.search.plan import find_plan

    anchor, reached = options.pop("anchor", None), options.pop("measured_tflops", None)
    found = find_plan(model, gpus, options)
    ranking = found.ranking
    answer = Plan(
        request=found.request,
        searched=ranking.searched,
        feasible=ranking.feasible,
        rejected=ranking.rejected,
        candidates=ranking.candidates,
        baseline=found.baseline,
        baseline_name=found.baseline_name,
        pareto=ranking.pareto,
        families=ranking.families,
        offers=found.offers,
        findings=found.findings,
    )
    answer = _routed_plan(answer if anchor is None else _anchored_plan(answer, anchor))
    return replace(answer, measured=_measured(answer.request, answer.best, reached))


def _measured(request: Request, candidate: Candidate | None, tflops: object) -> Measured | None:
    """What a measured rate says; None where none is given."""
    if tflops is None:
        return None
    from advisor.fit.references import measured
    from advisor.search.values import real

    return measured(request, candidate, real("measured_tflops", tflops, 1e-3, 1e6))


def _routing(request: Request, candidate: Candidate | None) -> tuple[tuple[Finding, ...], Imbalance | None]:
    from advisor.search.routing import assumption, imbalance

    found = imbalance(request, candidate)
    one = assumption(request, candidate) if found is None else found.finding()
    return () if one is None else (one,), found


def _routed_plan(answer: Plan) -> Plan:
    """A plan with what the routing of tokens, measured or assumed, means for its best layout."""
    said, found = _routing(answer.request, answer.best)
    if answer.best is None:
        return answer
    best = replace(answer.best, findings=(*answer.best.findings, *said))
    return replace(answer, candidates=(best, *answer.candidates[1:]), imbalance=found)


def _routed_estimate(answer: Estimate) -> Estimate:
    """An estimate with what the routing of tokens, measured or assumed, means for its layout."""
    said, found = _routing(answer.request, answer.candidate)
    if answer.candidate is None:
        return answer
    findings = (*answer.findings, *said)
    return replace(answer, candidate=replace(answer.candidate, findings=findings), findings=findings, imbalance=found)


def _anchors(anchor: str | Sequence[str]) -> list[Anchor]:
    from advisor.fit.anchor import read_anchors

    return read_anchors([anchor] if isinstance(anchor, str) else list(anchor))


def _anchored_plan(answer: Plan, anchor: str | Sequence[str]) -> Plan:
    from advisor.fit.anchor import anchor_finding, anchored, anchored_ranking

    anchors = _anchors(anchor)
    request = answer.request
    ranked = anchored_ranking(request, answer.candidates, anchors)
    for best in ranked[:1]:
        ranked[0] = replace(best, findings=(*best.findings, anchor_finding(request, best, anchors)))
    baseline = None if answer.baseline is None else anchored(request, answer.baseline, anchors)
    return replace(
        answer,
        candidates=tuple(ranked),
        baseline=baseline,
        pareto=tuple(anchored(request, one, anchors) for one in answer.pareto),
        families=tuple(anchored(request, one, anchors) for one in answer.families),
    )


def _anchored_estimate(answer: Estimate, candidate: Candidate, anchors: Sequence[Anchor]) -> Estimate:
    from advisor.fit.anchor import anchor_finding, anchored

    findings = (*answer.findings, anchor_finding(answer.request, candidate, anchors))
    found = replace(anchored(answer.request, candidate, anchors), findings=findings)
    return replace(answer, candidate=found, findings=findings)


def scale(
    model: str | Path,
    gpus: Sequence[int],
    batch_rule: Literal["fixed", "scaled"] = "scaled",
    **options: Unpack[PlanOptions],
) -> Scaling:
    """Best layout per GPU count, and where and why efficiency is lost.

    `batch_rule` "fixed" keeps the global batch of the smallest count, "scaled" grows it with the GPUs.
    """
    from advisor.search.scaling import Corrected, scaling_curve

    if options.pop("measured_tflops", None) is not None:
        raise InputError("a measured rate is one of one number of GPUs", "plan with a single number of GPUs")
    anchor = options.pop("anchor", None)
    corrected: Corrected | None = None
    if anchor is not None:
        from advisor.fit.anchor import anchored_ranking

        anchors = _anchors(anchor)
        corrected = lambda request, found: anchored_ranking(request, found, anchors)  # noqa: E731
    request, points = scaling_curve(model, gpus, batch_rule, options, corrected)
    return Scaling(request, batch_rule, points)


def estimate(
    model: str | Path | None = None,
    gpus: int | None = None,
    *,
    megatron_args: str | Path | None = None,
    **options: Unpack[EstimateOptions],
) -> Estimate:
    """Memory and step time of one layout.

    With `megatron_args` (a YAML/JSON mapping or a shell script with Megatron-LM flags) model, layout and knobs come
    from that file; options given here win over it. Without it `model` and `gpus` are required.
    """
    from advisor.search.single import judge, single_request

    anchor, reached = options.pop("anchor", None), options.pop("measured_tflops", None)
    request, choice = single_request(model, gpus, megatron_args, options)
    answer = Estimate(request, *judge(request, choice))
    if anchor is not None and answer.candidate is not None:
        answer = _anchored_estimate(answer, answer.candidate, _anchors(anchor))
    answer = _routed_estimate(answer)
    return replace(answer, measured=_measured(request, answer.candidate, reached))


def why(model: str | Path, gpus: int, **options: Unpack[EstimateOptions]) -> Explanation:
    """Why the layout is rejected or slower than the best, the nearest that fits, and which single change helps."""
    from advisor.search.explain import explain
    from advisor.search.single import single_request

    request, choice = single_request(model, gpus, None, options, keep_free=True)
    found = explain(request, choice)
    return Explanation(
        request=request,
        estimate=_routed_estimate(Estimate(request, *found.judged)),
        reasons=found.reasons,
        nearest=found.nearest,
        changes=found.changes,
        dials=found.dials,
        best=found.best,
    )
