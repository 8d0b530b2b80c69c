"""Reads measured runs: one CSV row becomes model, cluster, workload, layout, knobs and what was measured.

Columns are those of `profiles/runs/published_runs.csv`; most may be empty. What a row does not state is filled from
`profiles/runs/defaults.yaml` and named in `Run.assumed`.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from advisor import data
from advisor.cost.flops import model_flops_per_token
from advisor.cost.params import padded_vocab
from advisor.cost.profile import load_profile
from advisor.errors import AdvisorError, InputError
from advisor.search.stages import balanced_split, even_split, parse_layout_string
from advisor.spec.hardware import Cluster
from advisor.spec.layout import OFFLOAD_MODULES, RECOMPUTE_MODULES, CudaGraph, Dispatcher, Fsdp, Knobs, Layout, table
from advisor.spec.load.fields import read_yaml_mapping
from advisor.spec.load.model import load_model
from advisor.spec.load.system import load_system, make_cluster
from advisor.spec.model import Model
from advisor.spec.precision import ALIASES, PRECISIONS
from advisor.spec.split import PipelineSplit
from advisor.spec.workload import Workload
from advisor.units import tflops_to_flops

PUBLISHED = "runs/published_runs.csv"
DEFAULTS = "runs/defaults.yaml"
NEEDED = ("model", "system", "gpus", "precision", "seq_len", "gbs", "tp", "pp")
OWN = "own"
"""Group of rows that name none."""


@dataclass(frozen=True, slots=True)
class Run:
    """One measured run as the cost functions take it.

    `step_s` is None where the run ended out of memory; `assumed` names the columns that the row does not state.
    `flag` is empty, "exclude: reason" (never scored) or "check: reason" (shown apart).
    """

    id: str
    group: str
    model_name: str
    model: Model
    cluster: Cluster
    workload: Workload
    layout: Layout
    knobs: Knobs
    step_s: float | None
    peak_allocated_gib: float | None
    oom: bool
    flag: str
    assumed: tuple[str, ...]
    software: str

    @property
    def scored(self) -> bool:
        """Whether the row counts in a summary: measured and without a flag."""
        return self.step_s is not None and not self.flag


@dataclass(frozen=True, slots=True)
class Skipped:
    """A row that cannot be read, with the reason."""

    id: str
    line: int
    reason: str
    group: str = ""
    model: str = ""


def published_runs() -> tuple[list[Run], list[Skipped]]:
    """The measured public runs that ship with the package."""
    return read_runs(data.require("profiles", PUBLISHED))


def read_runs(path: Path) -> tuple[list[Run], list[Skipped]]:
    """Runs of a CSV file, and the rows that cannot be used with the reason.

    InputError if the file is none: unreadable, or without the columns that a run cannot do without.
    """
    rows, lines = _read(path)
    known = [] if path == data.find("profiles", PUBLISHED) else list(_published_rows())
    runs: list[Run] = []
    skipped: list[Skipped] = []
    for line, row in zip(lines, rows, strict=True):
        named = {**row, "id": row.get("id") or f"line {line}", "group": row.get("group") or OWN}
        try:
            runs.append(_run(named, _filled(named, [*rows, *known]), path.parent))
        except (AdvisorError, ValueError, KeyError, ArithmeticError) as error:
            reason = str(error) or type(error).__name__
            skipped.append(Skipped(named["id"], line, reason, named["group"], row.get("model", "")))
    return runs, skipped


def _read(path: Path) -> tuple[list[dict[str, str]], list[int]]:
    """Rows of a CSV file with stripped cells, and the line each of them ends on."""
    rows: list[dict[str, str]] = []
    lines: list[int] = []
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.DictReader(stream)
            missing = [name for name in NEEDED if name not in (reader.fieldnames or ())]
            if missing:
                raise InputError(
                    f"{path} is no file of runs: column {', '.join(missing)} is missing",
                    "advisor validate --help lists the columns",
                )
            for row in reader:
                rows.append({key: (value or "").strip() for key, value in row.items() if isinstance(key, str)})
                lines.append(reader.line_num)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"cannot read {path}: {error}") from error
    return rows, lines


@lru_cache(maxsize=1)
def _published_rows() -> tuple[dict[str, str], ...]:
    """Rows of the published file, whose recipes stand in for those a file of the same source leaves out."""
    path = data.find("profiles", PUBLISHED)
    return () if path is None else tuple(_read(path)[0])


@lru_cache(maxsize=1)
def _defaults() -> Mapping[str, Any]:
    return read_yaml_mapping(data.require("profiles", DEFAULTS))


def _matches(row: Mapping[str, str], match: Mapping[str, Any]) -> bool:
    return all(row.get(key) in (wanted if isinstance(wanted, list) else [wanted]) for key, wanted in match.items())


def release_of(name: str) -> int:
    """Number of a release by its name, year.month.patch: 100 per month or minor version, 10,000 per year or major."""
    digits = "".join(c if c.isdigit() else " " for c in name).split()
    parts = [int(part) for part in digits[:3]] + [0, 0, 0]
    return parts[0] * 10000 + parts[1] * 100 + parts[2]


def _borrowed(row: Mapping[str, str], rows: Iterable[Mapping[str, str]], columns: Sequence[str]) -> dict[str, str]:
    """Values of empty columns in the nearest release that states a recipe for the same model, system and precision."""
    same = ("group", "model", "system", "precision")
    likely = [
        other for other in rows if other.get("cuda_graph") and all(other.get(key) == row.get(key) for key in same)
    ]
    if not likely or row.get("cuda_graph"):
        return {}
    release = release_of(row.get("software", ""))
    nearest = min(likely, key=lambda other: (abs(release_of(other.get("software", "")) - release), other.get("id", "")))
    return {key: nearest[key] for key in columns if not row.get(key) and nearest.get(key)}


def _filled(row: Mapping[str, str], rows: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """The row with every silent column filled from the table of defaults."""
    out = dict(row)
    table_of = _defaults()
    if row.get("group") in table_of["borrow"]["groups"]:
        out.update(_borrowed(row, rows, table_of["borrow"]["columns"]))
    for rule in table_of["meaning"]:
        if _matches(row, rule["match"]):
            out.update(rule["set"])
    for rule in table_of["rules"]:
        if _matches(row, rule["match"]):
            out.update({key: str(value) for key, value in rule["set"].items() if not out.get(key)})
    return out


def _yes(text: str) -> bool:
    return text.lower() in ("yes", "true", "1")


def _count(row: Mapping[str, str], key: str, default: int | None = None) -> int:
    text = row.get(key, "")
    if not text:
        if default is None:
            raise InputError(f"{key} is not stated")
        return default
    try:
        number = float(text)
    except ValueError:
        raise InputError(f"{key} is {text!r}, a count is needed") from None
    if not 0 <= number < 1e9 or number != int(number):
        raise InputError(f"{key} is {text}, a count is needed")
    return int(number)


def _model_path(name: str, folder: Path) -> str:
    """A preset name as it is; a path relative to the file of runs, or to the published one."""
    if "/" not in name:
        return name
    beside = folder / name
    shipped = data.find("profiles", f"runs/{name}")
    return str(shipped if shipped is not None and not beside.is_file() else beside)


def _model(row: Mapping[str, str], folder: Path) -> Model:
    model = load_model(_model_path(row["model"], folder))
    if row.get("num_layers"):
        layers = _count(row, "num_layers")
        if not 0 < layers <= model.num_layers:
            raise InputError(f"num_layers {layers} is not between 1 and the {model.num_layers} of {row['model']}")
        model = replace(model, pattern=model.pattern[:layers])
    return model


def _workload(row: Mapping[str, str]) -> Workload:
    name = row["precision"]
    precision = PRECISIONS.get(ALIASES.get(name, name))
    if precision is None:
        raise InputError(f"precision {name!r} is not known" if name else "precision is not stated")
    routing = row["routing"]
    if routing not in ("balanced", "dropless", "token-drop"):
        raise InputError(f"routing {routing!r} is not known")
    if row["loss_impl"] not in ("vocab_parallel", "gathered", "in_place"):
        raise InputError(f"loss_impl {row['loss_impl']!r} is not known")
    return Workload(
        seq_len=_count(row, "seq_len"),
        precision=precision,
        routing=routing,  # type: ignore[arg-type]
        capacity_factor=float(row["capacity_factor"]) if row.get("capacity_factor") else None,
        pad_to_capacity=routing == "token-drop",
        attention_impl="unfused" if row["attention_impl"] == "unfused" else "fused",
        norm_impl="unfused" if row["norm_impl"] == "unfused" else "fused",
        mtp_depth=_count(row, "mtp_layers", 0),
        tp_async=_yes(row["tp_async"]),
        softmax_fused=_yes(row["softmax_fused"]),
        fp8_params=_yes(row["fp8_params"]) and precision.quantised,
        loss_impl=row["loss_impl"],  # type: ignore[arg-type]
        grad_accumulation_fused=_yes(row["grad_accumulation_fused"]),
        software=row.get("software", ""),
    )


def _graph(text: str) -> CudaGraph:
    if text == "full_iteration":
        return CudaGraph.full_iteration
    return CudaGraph.none if text == "none" else CudaGraph.scoped


def _dispatcher(name: str) -> Dispatcher:
    if name not in Dispatcher.__members__:
        raise InputError(f"dispatcher {name!r} is none of {', '.join(Dispatcher.__members__)}")
    return Dispatcher[name]


def _named(row: Mapping[str, str], key: str, known: Sequence[str], beside: str = "") -> tuple[str, ...]:
    """Modules joined by plus signs in a cell; the words none and `beside` are no modules."""
    parts = tuple(part for part in row.get(key, "").split("+") if part not in ("none", beside, ""))
    strange = [part for part in parts if part not in known]
    if strange:
        words = ", ".join(word for word in ("none", beside, *known) if word)
        raise InputError(f"{key} {strange[0]!r} is none of {words}")
    return parts


def _knobs(row: Mapping[str, str], model: Model) -> Knobs:
    recompute = _named(row, "recompute", RECOMPUTE_MODULES, "full")
    moe = model.moe
    overlap = _yes(row["overlap"])
    return Knobs(
        recompute=recompute,
        full_uniform=1 if "full" in row["recompute"].split("+") else 0,
        dispatcher=_dispatcher(row["dispatcher"]) if moe is not None else Dispatcher.none,
        ep_overlap=_yes(row["ep_overlap"]) and moe is not None,
        delay_wgrad=_yes(row["delay_wgrad"]),
        fsdp=Fsdp.none if row["fsdp"] == "no" else Fsdp.optim_grads_params,
        cuda_graph=_graph(row["cuda_graph"]),
        offload_layers=_count(row, "offload_layers", 0),
        offload_modules=_named(row, "offload_modules", OFFLOAD_MODULES),
        tp_overlap=_yes(row["tp_overlap"]) and _count(row, "tp") > 1,
        overlap_grad_reduce=overlap,
        overlap_param_gather=overlap,
        overlap_p2p=overlap,
        grad_dtype=row["grad_dtype"],
        moment_dtype=row["optimizer_dtype"],
    )


def _split(row: Mapping[str, str], model: Model, workload: Workload, pp: int, vpp: int) -> PipelineSplit:
    text = row.get("pipeline_layout", "")
    depth = workload.mtp_depth
    if text:
        stated: Any = json.loads(text) if text.startswith("[") else text
        return parse_layout_string(stated, pp, model.num_layers, depth)
    split = (
        even_split(model.num_layers, pp, vpp, depth)
        or _accounted(model.num_layers, pp, vpp, depth)
        or balanced_split(model, workload, pp, vpp, depth)
    )
    if split is None:
        raise InputError(f"{model.num_layers} layers cannot be dealt over pp {pp} x vpp {vpp}")
    return split


def _accounted(num_layers: int, pp: int, vpp: int, depth: int) -> PipelineSplit | None:
    """Embedding and loss counted as a layer each, as recipes of models with two layers too few do (126, 62, 94)."""
    each, rest = divmod(num_layers + 2, pp * vpp)
    if rest or pp * vpp == 1 or each == 0:
        return None
    layers = [each] * (pp * vpp)
    layers[0] -= 1
    layers[-1] -= 1
    chunk = pp * vpp - 1 if depth else None
    return PipelineSplit(pp, vpp, tuple(layers), "account", chunk, True, True)


def _virtual(row: Mapping[str, str], model: Model, pp: int, microbatches: int) -> int:
    """Virtual stages as stated; "largest" is the largest count that divides the layers of a rank."""
    if pp == 1:
        return 1
    if row["vpp"] == "largest":
        return model.num_layers // pp if model.num_layers % pp == 0 and microbatches % pp == 0 else 1
    return max(_count(row, "vpp", 1), 1)


def _layout(row: Mapping[str, str], model: Model, workload: Workload, gpus: int) -> Layout:
    tp, pp, cp, ep = (_count(row, key) for key in ("tp", "pp", "cp", "ep"))
    follows = model.moe is not None and gpus % (tp * ep * pp) == 0
    etp = _count(row, "etp", tp if follows else 1)
    if gpus % (tp * pp * cp):
        raise InputError(f"tp {tp} x pp {pp} x cp {cp} does not divide {gpus} GPUs")
    if gpus % (etp * ep * pp):
        raise InputError(f"etp {etp} x ep {ep} x pp {pp} does not divide {gpus} GPUs")
    dp = gpus // (tp * pp * cp)
    mbs, gbs = _count(row, "mbs"), _count(row, "gbs")
    if gbs < mbs * dp:
        raise InputError(f"gbs {gbs} gives no microbatch of {mbs} to each of {dp} data-parallel ranks")
    vpp = _virtual(row, model, pp, gbs // (mbs * dp))
    split = _split(row, model, workload, pp, vpp)
    return Layout(
        tp=tp, pp=pp, vpp=split.vpp, cp=cp, ep=ep, etp=etp, dp=dp, edp=gpus // (etp * ep * pp), mbs=mbs, gbs=gbs,
        sp=tp > 1 if row["sp"] == "auto" else _yes(row["sp"]) and tp > 1, split=split,
    )  # fmt: skip


def _number(row: Mapping[str, str], key: str) -> float | None:
    """A positive number, None where the cell is empty."""
    if not row.get(key):
        return None
    try:
        number = float(row[key])
    except ValueError:
        raise InputError(f"{key} is {row[key]!r}, a number is needed") from None
    if not 0 < number < float("inf"):
        raise InputError(f"{key} is {row[key]}, a positive number is needed")
    return number


def _measured_step_s(row: Mapping[str, str], model: Model, workload: Workload, layout: Layout) -> float | None:
    """Step time as stated, or from tokens/s, TFLOP/s or MFU (by the FLOP formula) in this order."""
    step_s, per_gpu = _number(row, "step_s"), _number(row, "tokens_per_s_per_gpu")
    if step_s is not None:
        return step_s
    tokens = layout.gbs * workload.seq_len / layout.gpus
    if per_gpu is not None:
        return tokens / per_gpu
    tflops, mfu_pct, peak = (_number(row, key) for key in ("tflops_per_gpu", "mfu_pct", "mfu_peak_tflops"))
    if tflops is None and mfu_pct is not None and peak is not None:
        tflops = mfu_pct / 100 * peak
    if tflops is None:
        return None
    columns = table([layout], [Knobs()])
    flops = tokens * float(model_flops_per_token(model, workload, padded_vocab(model, workload, columns))[0])
    return flops / tflops_to_flops(tflops)


def _run(row: Mapping[str, str], filled: Mapping[str, str], folder: Path) -> Run:
    model = _model(filled, folder)
    workload = _workload(filled)
    gpus = _count(filled, "gpus")
    layout = _layout(filled, model, workload, gpus)
    cluster = make_cluster(load_system(filled["system"]), gpus)
    load_profile(cluster.gpu).gemm_rate(workload.precision)  # refuses what the GPU cannot do
    oom = _yes(filled.get("oom", ""))
    return Run(
        id=filled["id"],
        group=filled["group"],
        model_name=filled["model"],
        model=model,
        cluster=cluster,
        workload=workload,
        layout=layout,
        knobs=_knobs(filled, model),
        step_s=None if oom else _measured_step_s(filled, model, workload, layout),
        peak_allocated_gib=_number(filled, "peak_allocated_gib"),
        oom=oom,
        flag=filled.get("flag", ""),
        assumed=tuple(sorted(key for key in filled if filled[key] and not row.get(key))),
        software=filled.get("software", ""),
    )
