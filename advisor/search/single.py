"""One layout that somebody names: from options or a Megatron argument file to a verdict."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from advisor.errors import InputError
from advisor.rules import document_lines, findings
from advisor.search.candidates import make_candidates
from advisor.search.dials import knob_fields
from advisor.search.options import EstimateOptions
from advisor.search.request import Request, resolve
from advisor.search.sources import Setting, merge
from advisor.search.stages import balanced_split, parse_layout_string
from advisor.search.values import switch, whole
from advisor.spec.layout import Dispatcher, Knobs, Layout
from advisor.spec.model import Model
from advisor.spec.plan import Candidate, Finding
from advisor.spec.split import PipelineSplit
from advisor.spec.workload import Workload

if TYPE_CHECKING:
    from advisor.spec.load.megatron import MegatronJob

Verdict = Literal["fits", "oom", "illegal"]
ARGUMENT_FILE = "megatron arguments"
SIZES = ("tp", "pp", "vpp", "cp", "ep", "etp", "mbs")


@dataclass(frozen=True, slots=True)
class Choice:
    """A layout with its knobs; `remarks` are findings of whoever read it."""

    layout: Layout
    knobs: Knobs
    remarks: tuple[Finding, ...] = ()


def make_layout(model: Model, workload: Workload, gpus: int, gbs: int, fields: Mapping[str, Any]) -> Layout:
    """A layout from its free fields; what follows from them is filled in, legal or not.

    `fields` may hold tp, pp, vpp, cp, ep, etp, mbs (1 when absent), sp (tp > 1 when absent), and pipeline_layout or a
    `split` in place of a balanced one.
    """
    size = {name: int(fields.get(name) or 1) for name in SIZES}
    split, text = fields.get("split"), fields.get("pipeline_layout")
    if text:
        split = parse_layout_string(text, size["pp"], model.num_layers, workload.mtp_depth or None)
    elif split is None:
        split = _split(model, workload, size["pp"], size["vpp"])
    size["vpp"] = split.vpp
    dp = max(1, gpus // (size["tp"] * size["pp"] * size["cp"]))
    edp = max(1, gpus // (size["etp"] * size["ep"] * size["pp"]))
    return Layout(**size, dp=dp, edp=edp, gbs=gbs, sp=bool(fields.get("sp", size["tp"] > 1)), split=split)


def _split(model: Model, workload: Workload, pp: int, vpp: int) -> PipelineSplit:
    """The balanced split; for more chunks than layers one with empty chunks, which a rule then judges.

    With two chunks more than layers Megatron's account_for_* flags leave the embedding and the loss alone on theirs.
    """
    found = balanced_split(model, workload, pp, vpp, workload.mtp_depth)
    if found is not None:
        return found
    if pp * vpp > 4 * (model.num_layers + 2):
        raise InputError(
            f"pp {pp} x vpp {vpp} = {pp * vpp} chunks for the {model.num_layers} layers of {model.name}",
            f"pp x vpp <= {model.num_layers}",
        )
    mtp_chunk = pp * vpp - 1 if workload.mtp_depth else None
    if pp * vpp == model.num_layers + 2:
        layers = (0, *([1] * model.num_layers), 0)
        return PipelineSplit(pp, vpp, layers, "account", mtp_chunk, account_embedding=True, account_loss=True)
    each, more = divmod(model.num_layers, pp * vpp)
    return PipelineSplit(pp, vpp, tuple(each + (chunk < more) for chunk in range(pp * vpp)), mtp_chunk=mtp_chunk)


def single_request(
    model: str | Path | None,
    gpus: int | None,
    megatron_args: str | Path | None,
    options: EstimateOptions,
    keep_free: bool = False,
) -> tuple[Request, Choice]:
    """The request and the layout of an estimate; `megatron_args` fills in what the options leave out.

    An estimate may use the whole card unless told otherwise; with `keep_free` the headroom is that of a plan, so that
    the layout is judged as a plan would judge it.
    """
    given: dict[str, object] = dict(options)
    given_by = str(given.pop("given_by", "argument"))
    given.update(model=model, gpus=gpus)
    allowed = frozenset({"model", "gpus", *EstimateOptions.__annotations__} - {"given_by"})
    found = merge(given, allowed, given_by)
    if not keep_free:
        found.setdefault("headroom", Setting("0%", "default", "an estimate keeps nothing free unless told"))
    job = None if megatron_args is None else _read(megatron_args)
    if job is not None:
        fill_from(job, found, given_by)
    return settled(found, job, given_by)


def settled(
    found: Mapping[str, Setting], job: MegatronJob | None = None, given_by: str = "", model: Model | None = None
) -> tuple[Request, Choice]:
    """The request and the layout of settings by name, whoever made them; knobs that nobody sets are those of `job`.

    The pipeline split of `job` holds unless whoever is called `given_by` states sizes of the pipeline. `model` stands
    in for the setting of that name.
    """
    request = resolve(found, model=model) if job is None else resolve(found, model=job.model, workload=job.workload)
    for name in ("batch", "context"):
        if name in found and request.workload.mode == "train":
            raise InputError(f"{name}={found[name].value} counts for serving only", "add mode=inference")
    fields = _layout_fields(found)
    if job is not None and not {"pp", "vpp", "pipeline_layout"} & {n for n, s in found.items() if s.origin == given_by}:
        fields["split"] = job.split
    request = _with_batch(request, fields)
    knobs = _knobs(found, request, job)
    layout = make_layout(request.model, request.workload, request.cluster.gpus, request.gbs, fields)
    return request, Choice(layout, knobs, () if job is None else job.findings)


def _read(megatron_args: str | Path) -> MegatronJob:
    """A Megatron argument file; its reader is imported only where there is one, which keeps a plan quick to start."""
    from advisor.spec.load.megatron import read_megatron_args

    return read_megatron_args(str(megatron_args))


def fill_from(job: MegatronJob, found: dict[str, Setting], given_by: str) -> None:
    """Settings that a Megatron argument file makes; only those of the call itself win over it."""
    said: dict[str, object] = {
        "precision": job.workload.precision.name,
        "seq_len": job.workload.seq_len,
        "rank_order": job.rank_order,
        "gpus": job.gpus,
        **job.layout_request,
    }
    for name, value in said.items():
        if value is not None and (name not in found or found[name].origin != given_by):
            found[name] = Setting(value, ARGUMENT_FILE)


def _layout_fields(found: Mapping[str, Setting]) -> dict[str, Any]:
    fields: dict[str, Any] = {name: whole(name, found[name].value, 1, 10**7) for name in SIZES if name in found}
    if "sp" in found:
        fields["sp"] = switch("sp", found["sp"].value)
    if "pipeline_layout" in found:
        fields["pipeline_layout"] = found["pipeline_layout"].value
    return fields


def _with_batch(request: Request, fields: Mapping[str, Any]) -> Request:
    """A batch that nobody asked for is made to fit the layout, and is one microbatch outside training."""
    per_rank = fields.get("tp", 1) * fields.get("pp", 1) * fields.get("cp", 1)
    unit = fields.get("mbs", 1) * max(1, request.cluster.gpus // per_rank)
    setting = request.settings["gbs"]
    if request.workload.mode != "train":
        return request.replaced(gbs=unit)
    if setting.origin != "default" or request.gbs % unit == 0:
        return request
    gbs = unit * max(1, round(request.gbs / unit))
    note = f"{setting.note}; then a multiple of mbs x dp = {unit}"
    return request.with_setting("gbs", Setting(gbs, "default", note), gbs=gbs)


def _knobs(found: Mapping[str, Setting], request: Request, job: MegatronJob | None) -> Knobs:
    fields = knob_fields({name: setting.value for name, setting in found.items()})
    if job is not None:
        return dataclasses.replace(job.knobs, **fields)
    if request.model.is_moe:
        fields.setdefault("dispatcher", Dispatcher.alltoall)
    if not fields.get("distributed_optimizer", True):
        fields.setdefault("overlap_param_gather", False)
    return Knobs(**fields)


def judge(request: Request, choice: Choice) -> tuple[Verdict, Candidate | None, tuple[Finding, ...]]:
    """The verdict on one layout, the candidate unless it is illegal, and every finding about it."""
    found = findings(request.model, request.cluster, request.workload, choice.layout, choice.knobs)
    found = (*found, *choice.remarks)
    if any(finding.severity == "stop" for finding in found):
        return "illegal", None, found
    (candidate,) = make_candidates(request, [(choice.layout, choice.knobs)])
    weights = candidate.memory.terms["weights"].value
    found = (*found, *document_lines(request.workload.mode, weights))
    candidate = dataclasses.replace(candidate, findings=found)
    fits = candidate.memory.peak_device_bytes <= candidate.memory.budget_bytes
    return ("fits" if fits else "oom"), candidate, found
