"""What is asked for, resolved once: model, cluster, workload and search options, each with its origin."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from advisor.errors import InputError
from advisor.search.dials import ALLOWANCES, fixed_fields
from advisor.search.sources import Setting
from advisor.search.values import choice, headroom_bytes, pairs, real, switch, whole, words
from advisor.spec.hardware import Cluster
from advisor.spec.load.model import load_model
from advisor.spec.load.router import read_router_stats
from advisor.spec.load.system import load_system, make_cluster, system_names
from advisor.spec.model import Model
from advisor.spec.precision import ALIASES, PRECISIONS, Precision
from advisor.spec.workload import Workload

Objective = Literal["throughput", "memory"]
DEFAULTS: dict[str, Any] = {
    "system": "dgx-h100",
    "precision": "bf16",
    "seq_len": 4096,
    "headroom": "8%",
    "objective": "throughput",
    "top": 5,
    "allow": "",
}
# Growth of the global batch with the GPUs: 2 Mi tokens on 64 GPUs and 64 Mi on 16,384, as in published runs from
# Llama 3 70B on 64 GPUs (512 x 8,192 and less) to DeepSeek-V3 (15,360 x 4,096 on 2,048, arXiv:2412.19437 section 4.2).
BATCH_TOKENS, BATCH_GPUS, BATCH_POWER = 512 * 4096, 64, 5 / 8
BATCH_RULE = "2 Mi tokens at 64 GPUs, x 2^(5/8) per doubling, as 2^k times the odd part of the GPU count"


@dataclass(frozen=True, slots=True)
class Request:
    """A resolved request. `settings` holds what is printed, in print order; the other fields are what is computed with.

    `reserve_bytes` is the headroom asked for; `fixed` the layout and knob fields the search must keep; `allow` the
    names of `ALLOWANCES` it may take.
    """

    settings: MappingProxyType[str, Setting]
    model: Model
    cluster: Cluster
    workload: Workload
    gbs: int
    reserve_bytes: float
    objective: Objective = "throughput"
    top: int = 5
    fixed: MappingProxyType[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    allow: frozenset[str] = frozenset()
    target_tokens_per_s: float | None = None

    @property
    def budget_bytes(self) -> float:
        """What a layout may use: usable memory less the headroom."""
        return self.cluster.usable_bytes - self.reserve_bytes

    def replaced(self, **changes: Any) -> Request:
        """The same request with some fields replaced; `settings` keeps the old origins."""
        return dataclasses.replace(self, **changes)

    def with_setting(self, name: str, setting: Setting, **changes: Any) -> Request:
        """The same request with one printed setting and some fields replaced."""
        settings = MappingProxyType(_in_order({**self.settings, name: setting}))
        return dataclasses.replace(self, settings=settings, **changes)


def default_gbs(gpus: int, seq_len: int) -> int:
    """Sequences per step when nobody says: grows with the GPUs, shrinks with the sequence, divides well.

    64 GPUs at 4,096 tokens give 512, 16,384 give 16,384. The odd part of the GPU count is kept as a factor, so that a
    data-parallel size with that factor still divides the batch.
    """
    wanted = BATCH_TOKENS * (gpus / BATCH_GPUS) ** BATCH_POWER / seq_len
    odd = gpus // (gpus & -gpus)
    return int(odd * 2 ** max(0, round(math.log2(wanted / odd))))


def resolve_precision(value: object) -> tuple[Precision, str]:
    """The precision of a name or alias, and a note when it was an alias."""
    name = choice("precision", value, (*PRECISIONS, *ALIASES))
    if name in ALIASES:
        return PRECISIONS[ALIASES[name]], f"{name} is an alias of {ALIASES[name]}"
    return PRECISIONS[name], ""


def _model(found: Mapping[str, Setting], name: object) -> Model:
    model = load_model(str(name))
    if "vocab_size" in found:
        model = dataclasses.replace(model, vocab_size=whole("vocab_size", found["vocab_size"].value, 1, 2**31))
    return model


def make_workload(found: Mapping[str, Setting], precision: Precision, base: Workload | None = None) -> Workload:
    """The workload of the settings on top of `base`; everything that is not set keeps its default."""
    changes: dict[str, Any] = {"precision": precision}
    converters: dict[str, Any] = {
        "seq_len": lambda n, v: whole(n, v, 1, 2**30),
        "task": lambda n, v: choice(n, v, ("pretrain", "sft")),
        "mode": lambda n, v: choice(n, v, ("train", "inference", "weights")),
        "routing": lambda n, v: choice(n, v, ("balanced", "dropless", "token-drop")),
        "optimizer": lambda n, v: choice(n, v, ("adam", "sgd", "muon")),
        "attention_impl": lambda n, v: choice(n, v, ("fused", "unfused")),
        "router_skew": lambda n, v: real(n, v, 1.0, 1e6),
        "capacity_factor": lambda n, v: real(n, v, 1e-3, 1e6),
        "fp8_params": switch,
        "mtp_depth": lambda n, v: whole(n, v, 0, 64),
        "vocab_divisor": lambda n, v: whole(n, v, 1, 2**20),
        "bucket_size": lambda n, v: whole(n, v, 1, 2**40),
        "batch": lambda n, v: whole(n, v, 1, 2**30),
        "context": lambda n, v: whole(n, v, 1, 2**30),
    }
    for name, convert in converters.items():
        if name in found:
            changes[name] = convert(name, found[name].value)
    return dataclasses.replace(base or Workload(), **changes)


def _with_router(found: Mapping[str, Setting], model: Model, workload: Workload) -> Workload:
    """The workload with measured router statistics in place of a skew, if any are named."""
    if "router_stats" not in found:
        return workload
    if "router_skew" in found:
        raise InputError("router_stats and router_skew say the same thing twice", "leave out router_skew")
    if workload.mode != "train":
        raise InputError(f"router_stats count in training, mode is {workload.mode}", "leave out router_stats")
    path = Path(str(found["router_stats"].value)).expanduser()
    return dataclasses.replace(workload, router_skew=1.0, router=read_router_stats(path, model))


def make_request_cluster(found: Mapping[str, Setting], system: object, gpus: object) -> Cluster:
    """The cluster of the settings; raises InputError for a count that does not fill nodes."""
    options: dict[str, Any] = {}
    if "used_per_domain" in found:
        options["used_per_domain"] = whole("used_per_domain", found["used_per_domain"].value, 1, 100_000)
    if "rank_order" in found:
        known = ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp")
        options["rank_order"] = choice("rank_order", found["rank_order"].value, known)
    if "oversubscription" in found:
        options["oversubscription"] = real("oversubscription", found["oversubscription"].value, 1.0, 1000.0)
    if "usable_gib" in found:
        options["usable_gib"] = real("usable_gib", found["usable_gib"].value, 0.1, 1e5)
    return make_cluster(load_system(str(system)), whole("gpus", gpus, 1, 10_000_000), **options)


def resolve(
    found: Mapping[str, Setting],
    *,
    model: Model | None = None,
    workload: Workload | None = None,
    gbs: int | None = None,
) -> Request:
    """A request from settings (`merge`); `model` and `workload` stand in for what a Megatron argument file says."""
    settings = dict(found)
    for name, value in DEFAULTS.items():
        settings.setdefault(name, Setting(value, "default"))
    for name in ("model", "gpus"):
        if name not in settings and not (name == "model" and model):
            raise InputError(f"{name} is missing", f"give {name}=...")
    chosen = model or _model(settings, settings["model"].value)
    if model is not None:
        settings.setdefault("model", Setting(model.name, "megatron arguments"))
    precision, note = resolve_precision(settings["precision"].value)
    settings["precision"] = Setting(precision.name, settings["precision"].origin, note)
    cluster = make_request_cluster(settings, settings["system"].value, settings["gpus"].value)
    asked = settings["system"].value
    # A file keeps its path, so that a plan can be read back.
    is_file = str(asked) not in system_names() and Path(str(asked)).expanduser().is_file()
    named = str(asked) if is_file else cluster.system.name
    other = f"{asked} is an alias of {named}" if str(asked) != named else ""
    note = f"describes {cluster.system.name}" if is_file else other
    settings["system"] = Setting(named, settings["system"].origin, note)
    settings["gpus"] = Setting(cluster.gpus, settings["gpus"].origin, settings["gpus"].note)
    work = _with_router(settings, chosen, make_workload(settings, precision, workload))
    settings["seq_len"] = Setting(work.seq_len, settings["seq_len"].origin)
    if "gbs" in settings:
        batch = whole("gbs", settings["gbs"].value, 1, 2**40)
        settings["gbs"] = Setting(batch, settings["gbs"].origin, settings["gbs"].note)
    else:
        batch = gbs or default_gbs(cluster.gpus, work.seq_len)
        settings["gbs"] = Setting(batch, "default", BATCH_RULE)
    fixed = fixed_fields(pairs("fix", settings["fix"].value)) if "fix" in settings else {}
    allow = frozenset(choice("allow", name, list(ALLOWANCES)) for name in words("allow", settings["allow"].value))
    target = settings.get("target_tokens_per_s")
    return Request(
        settings=MappingProxyType(_in_order(settings)),
        model=chosen,
        cluster=cluster,
        workload=work,
        gbs=batch,
        reserve_bytes=headroom_bytes(settings["headroom"].value, cluster.usable_bytes),
        objective="memory"
        if choice("objective", settings["objective"].value, ("throughput", "memory")) == "memory"
        else "throughput",
        top=whole("top", settings["top"].value, 1, 10_000),
        fixed=MappingProxyType(fixed),
        allow=allow,
        target_tokens_per_s=None if target is None else real("target_tokens_per_s", target.value, 0.0, 1e15),
    )


PRINT_ORDER = ("model", "gpus", "system", "precision", "seq_len", "gbs", "headroom", "objective", "top", "fix", "allow")


def _in_order(settings: Mapping[str, Setting]) -> dict[str, Setting]:
    names = [name for name in PRINT_ORDER if name in settings]
    return {name: settings[name] for name in (*names, *sorted(set(settings) - set(names)))}
