"""A Megatron-Bridge configuration as settings by our names, each with its origin: file and line, recipe, or default."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from advisor.check.reading import SECTIONS
from advisor.check.recipe_settings import recipe_settings
from advisor.check.recipes import model_name, performance
from advisor.check.subject.form import place
from advisor.check.subject.vendor import vendor_row
from advisor.configure.job import preset as table
from advisor.errors import AdvisorError
from advisor.rules.lint import Setup
from advisor.rules.lint.setup import full_name
from advisor.search.sources import Setting
from advisor.spec.load.megatron import MegatronJob, read_megatron_args
from advisor.spec.load.megatron.arguments import by_dest
from advisor.spec.load.megatron.offload import offloadable
from advisor.spec.load.model import load_model, model_names
from advisor.spec.precision import PRECISIONS

SIZES = {"tp": "tp", "pp": "pp", "cp": "cp", "ep": "ep", "mbs": "mbs", "gbs": "gbs", "seq_len": "seq"}
"""Our name of a size, and the short name of its setting."""
OVERLAPS = {
    "tp_overlap": ("tp_comm_overlap", "model.tp_comm_overlap", False),
    "overlap_p2p": ("overlap_p2p_comm", "model.overlap_p2p_comm", True),
    "overlap_grad_reduce": ("overlap_grad_reduce", "ddp.overlap_grad_reduce", True),
    "overlap_param_gather": ("overlap_param_gather", "ddp.overlap_param_gather", True),
    "ep_overlap": ("overlap_moe_expert_parallel_comm", "model.overlap_moe_expert_parallel_comm", False),
    "delay_wgrad": ("delay_wgrad_compute", "model.delay_wgrad_compute", False),
}
"""Our name of an overlap: field of CommOverlapConfig, the setting that holds without one, and what unset asks for."""
DTYPES = {"torch.float32": "fp32", "torch.bfloat16": "bf16", "torch.float16": "fp16", "torch.uint8": "fp8"}
GRAPHS = {"transformer_engine": "scoped", "full_iteration": "full_iteration"}
PROVIDER_WORDS = {
    "gated_linear_unit": ("swiglu", True),
    "share_embeddings_and_output_weights": ("untie_embeddings_and_output_weights", False),
}
"""Fields of a provider whose flag has another name, and the value of the field that the flag stands for."""
EXPERTS = ("dispatcher", "routing", "capacity_factor", "ep_overlap", "delay_wgrad", "shared_expert_overlap")
BRIDGE_DEFAULT = "default of Megatron-Bridge"
PRECISION_CLASS = "MixedPrecisionConfig"
FORMATS = ("fp16", "bf16", "fp8", "fp8_recipe", "fp4")


def common() -> Mapping[str, Mapping[str, Any]]:
    """What recipes start from, by task (presets/check/bridge_common.yaml)."""
    return table("check/bridge_common.yaml")


class Reader:
    """Looks settings of a Bridge configuration up and remembers where each was found."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        fact = setup.facts.get("recipe")
        self.recipe = str(fact.value) if fact is not None else None
        self.row: Mapping[str, Any] = own_settings(setup)
        mode = setup.facts.get("mode")
        words = str(mode.value) if mode is not None else self.recipe or ""
        self.task = "peft" if "peft" in words or "lora" in words else "sft" if "sft" in words else "pretrain"

    def find(self, key: str) -> Setting | None:
        """A setting with its origin; None where neither the files nor their recipe nor Bridge decide it."""
        key = key if key in SECTIONS else full_name(key)
        setup = self.setup
        if key in setup.values:
            stated = setup.values[key]
            return Setting(stated.value, place(stated.file, stated.line))
        if key in self.row and not self._replaced(key):
            return Setting(self.row[key], f"recipe {self.recipe}")
        if key in setup.base:
            return Setting(setup.base[key], f"recipe {self.recipe}")
        built = f"built.{key.split('.')[0]}" in setup.facts
        if not built and key in common()[self.task]:
            return Setting(common()[self.task][key], "common part of Bridge's recipes")
        if key in setup.defaults:
            return Setting(setup.defaults[key], BRIDGE_DEFAULT)
        return None

    def _replaced(self, key: str) -> bool:
        """Whether the files put a mixed precision of their own in the place of the recipe's, fields and all."""
        return key.startswith("mixed_precision.") and "mixed_precision" in self.setup.values

    def value(self, key: str, otherwise: Any = None) -> Any:
        """The value alone."""
        found = self.find(key)
        return otherwise if found is None or found.value is None else found.value

    def items(self, key: str) -> tuple[str, ...] | None:
        """A list of words, however it is written; None where there is none."""
        value = self.value(key)
        if isinstance(value, str):
            return tuple(part for part in re.split(r"[\s,\[\]'\"]+", value) if part)
        return None if value is None else tuple(map(str, value))


def settings(setup: Setup, model: str | None) -> tuple[dict[str, Setting], MegatronJob | None]:
    """Settings by our names, and a job of that model where the files spell the model out instead of naming it.

    `model` is the name that an option gives: it wins over what the files say.
    """
    reader = Reader(setup)
    found: dict[str, Setting] = {}
    named = model or (preset_of(reader.recipe) if reader.recipe is not None else None)
    spelled = provider_model(setup) if named is None else None
    if named is not None and model is None:
        found["model"] = Setting(named, f"recipe {reader.recipe}")
    if spelled is None and named is None:
        return found, None
    if spelled is not None:
        found["model"] = Setting(spelled.model.name, "fields of the model in the file")
    trained = load_model(str(named)) if spelled is None else spelled.model
    reader.row = vendor_row(reader.recipe, trained) or reader.row
    found |= dict(_all(reader))
    if not trained.is_moe:
        for name in EXPERTS:
            found.pop(name, None)
        found["etp"] = Setting(1, "no experts")
    return found, spelled


def _all(reader: Reader) -> Iterator[tuple[str, Setting]]:
    yield from _sizes(reader)
    yield from _precision(reader)
    yield from _recompute(reader)
    yield from _overlaps(reader)
    yield from _experts(reader)
    yield from _states(reader)


def preset_of(recipe: str) -> str | None:
    """The model preset that a recipe's name stands for; None where there is none."""
    for name, row in table("versions.yaml")["recipes"].items():
        if isinstance(row, Mapping) and row["function"] == recipe:
            return str(name)
    wanted = model_name(recipe)
    try:
        load_model(wanted)
    except (AdvisorError, OSError):
        known = {_plain(name): name for name in model_names()}
        best = [one for one in known if _plain(recipe).startswith(f"{one}_")]
        return known[max(best, key=len)] if best else None
    return wanted


def _plain(name: str) -> str:
    return name.replace("-", "_").replace(".", "").lower()


def provider_model(setup: Setup) -> MegatronJob | None:
    """A job of the model that the fields of a provider describe; None where they describe none."""
    if not (setup.number("num_layers") and setup.number("hidden_size") and setup.number("num_attention_heads")):
        return None
    mapping: dict[str, Any] = {"micro_batch_size": 1, "seq_length": setup.number("seq") or 4096, "swiglu": False}
    for key, stated in setup.values.items():
        section, _, name = key.partition(".")
        if section != "model" or stated.value is None or isinstance(stated.value, Mapping):
            continue
        if name in PROVIDER_WORDS:
            flag, value = PROVIDER_WORDS[name]
            mapping[flag] = bool(stated.value) is value
        elif name in by_dest() or name == "num_moe_experts":
            mapping[name] = stated.value
    mapping["group_query_attention"] = setup.number("num_query_groups") is not None
    if mapping.get("multi_latent_attention"):
        mapping["group_query_attention"] = False
        mapping.pop("num_query_groups", None)
    for name in ("pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size", "recompute_granularity",
                 "recompute_method", "recompute_num_layers", "recompute_modules",
                 "pipeline_model_parallel_layout"):  # fmt: skip
        mapping.pop(name, None)
    return read_megatron_args(mapping, name="bridge-config")


def _sizes(reader: Reader) -> Iterator[tuple[str, Setting]]:
    for name, short in SIZES.items():
        found = reader.find(short)
        if found is not None and found.value is not None:
            yield name, found
    vpp = reader.find("vpp")
    if vpp is not None:
        yield "vpp", Setting(vpp.value or 1, vpp.origin)
    layout = reader.find("pipeline_model_parallel_layout")
    if layout is not None and layout.value:
        yield "pipeline_layout", layout
    etp = reader.find("etp")
    given = etp is not None and etp.value is not None
    yield "etp", etp if etp is not None and given else Setting(reader.setup.etp, BRIDGE_DEFAULT)
    sp = reader.find("sp")
    if sp is not None and sp.value is not None:
        yield "sp", Setting(bool(sp.value) and reader.setup.tp > 1, sp.origin)
    elif reader.recipe is None:
        yield "sp", Setting(False, BRIDGE_DEFAULT)


def _precision(reader: Reader) -> Iterator[tuple[str, Setting]]:
    name = reader.find("mixed_precision")
    names = {one: ours for ours, one in table("versions.yaml")["precisions"].items()}
    if name is not None and name.value == PRECISION_CLASS:
        name = Setting(_recipe_of(reader), name.origin)
    if name is not None and name.value in names:
        yield "precision", Setting(names[name.value], name.origin)
        quantised = PRECISIONS[names[name.value]].quantised
        gather = reader.find("mixed_precision.fp8_param_gather")
        if quantised:
            usual = names[name.value] != "fp8-blockwise"
            value = usual if gather is None or gather.value is None else bool(gather.value)
            yield "fp8_params", Setting(value, name.origin if gather is None else gather.origin)
    wide = reader.find("mixed_precision.grad_reduce_in_fp32") or reader.find("ddp.grad_reduce_in_fp32")
    if wide is not None and wide.value is not None:
        yield "grad_dtype", Setting("fp32" if wide.value else "bf16", wide.origin)


def _recipe_of(reader: Reader) -> str | None:
    """The name of Bridge's mixed-precision recipe whose number formats the fields of a MixedPrecisionConfig are."""
    fields = table("versions.yaml")["precision_fields"]
    for name in table("versions.yaml")["precisions"].values():
        said = fields["defaults"] | fields.get(name, {})
        if name in fields and all(
            reader.value(f"mixed_precision.{one}", fields["defaults"][one]) == said[one] for one in FORMATS
        ):
            return str(name)
    return None


def _recompute(reader: Reader) -> Iterator[tuple[str, Setting]]:
    found = reader.find("recompute_granularity")
    if found is None:
        return
    word = "none"
    if found.value == "full":
        word = f"full-{reader.value('recompute_method', 'uniform')}:{reader.value('recompute_num_layers', 1)}"
    elif found.value == "selective":
        modules = reader.items("recompute_modules")
        word = "core_attn" if modules is None else ",".join(modules) or "none"
    yield "recompute", Setting(word, found.origin)


def own_settings(setup: Setup) -> Mapping[str, Any]:
    """What the library recipe of a configuration sets in the release that it is meant for, the newest by default."""
    recipe = setup.facts.get("recipe")
    return {} if recipe is None else recipe_settings(str(recipe.value), bridge_version(setup))


def bridge_version(setup: Setup) -> str:
    """The release of Bridge that a configuration is meant for: said, stated in a file, or the newest."""
    stated = setup.releases.get("bridge") or setup.packages.get("bridge")
    core = setup.releases.get("megatron-core") or setup.packages.get("mcore")
    old = bool(stated and stated[:2] < (0, 5)) or bool(not stated and core and core[:2] < (0, 17))
    return "0.3" if old else "0.6"


def with_overlap(setup: Setup) -> bool:
    """Whether the configuration holds a CommOverlapConfig, its own or that of its recipe."""
    recipe = str(getattr(setup.facts.get("recipe"), "value", ""))
    if setup.has("comm_overlap") or "comm_overlap" in setup.values:
        return setup.has("comm_overlap")
    return recipe in performance() or own_settings(setup).get("comm_overlap") is not None


def _overlaps(reader: Reader) -> Iterator[tuple[str, Setting]]:
    """Overlap switches: of CommOverlapConfig where there is one (unset is left to Bridge), else of model and ddp."""
    has = with_overlap(reader.setup)
    for name, (field, key, unset) in OVERLAPS.items():
        found = reader.find(f"comm_overlap.{field}" if has else key)
        if has:
            value = unset if found is None or found.value is None else bool(found.value)
            origin = f"left to {BRIDGE_DEFAULT[11:]}" if found is None or found.value is None else found.origin
            yield name, Setting(value, origin)
        else:
            yield (
                name,
                Setting(bool(found.value), found.origin) if found is not None else Setting(False, BRIDGE_DEFAULT),
            )


def _experts(reader: Reader) -> Iterator[tuple[str, Setting]]:
    kind, backend = reader.find("moe_token_dispatcher_type"), reader.value("moe_flex_dispatcher_backend")
    helper = reader.setup.facts.get("flex_helper")
    if helper is not None and helper.value != "None":
        yield "dispatcher", Setting(helper.value, place(helper.file, helper.line))
    elif kind is not None and kind.value:
        yield "dispatcher", Setting((backend or "deepep") if kind.value == "flex" else kind.value, kind.origin)
    shared = reader.find("moe_shared_expert_overlap")
    if shared is not None:
        yield "shared_expert_overlap", Setting(bool(shared.value), shared.origin)
    forced, factor = reader.find("moe_router_force_load_balancing"), reader.find("moe_expert_capacity_factor")
    if factor is not None and factor.value is not None:
        yield "routing", Setting("token-drop", factor.origin)
        yield "capacity_factor", factor
    else:
        balanced = forced is not None and bool(forced.value)
        yield "routing", Setting("balanced" if balanced else "dropless", forced.origin if forced else BRIDGE_DEFAULT)
    depth = reader.find("mtp_num_layers")
    if depth is not None and depth.value:
        yield "mtp_depth", depth


def _states(reader: Reader) -> Iterator[tuple[str, Setting]]:
    fsdp = reader.find("ddp.use_megatron_fsdp")
    if fsdp is not None:
        strategy = reader.value("ddp.data_parallel_sharding_strategy", "no_shard") if fsdp.value else "no_shard"
        yield "fsdp", Setting("none" if strategy == "no_shard" else strategy, fsdp.origin)
    sharded = reader.find("ddp.use_distributed_optimizer") or reader.find("optimizer.use_distributed_optimizer")
    if sharded is not None and sharded.value is not None:
        yield "distributed_optimizer", Setting(bool(sharded.value), sharded.origin)
    bucket = reader.find(f"{'comm_overlap' if with_overlap(reader.setup) else 'ddp'}.bucket_size")
    held = sharded is None or sharded.value is not False or not with_overlap(reader.setup)
    if bucket is not None and isinstance(bucket.value, int) and bucket.value > 0 and held:
        yield "bucket_size", bucket
    graph = reader.find("cuda_graph_impl")
    if graph is not None:
        scope = {*(reader.items("cuda_graph_scope") or ()), *(reader.items("cuda_graph_modules") or ())}
        whole = graph.value == "local" and (not scope or bool(scope & {"full_iteration", "full"}))
        word = "full_iteration" if whole else GRAPHS.get(str(graph.value), "none")
        yield "cuda_graph", Setting(word if graph.value != "local" or whole else "scoped", graph.origin)
    exchange = reader.find("cp_comm_type")
    if exchange is not None and exchange.value:
        kinds = exchange.value if isinstance(exchange.value, list) else [exchange.value]
        yield "cp_comm", Setting(str(kinds[0]).replace("+", "_"), exchange.origin)
    offload = reader.find("optimizer.optimizer_cpu_offload")
    if offload is not None:
        share = reader.value("optimizer.optimizer_offload_fraction", 1.0) if offload.value else 0.0
        yield "optimizer_offload", Setting(float(share), offload.origin)
    layers = reader.find("cpu_offloading")
    if layers is not None and layers.value:
        yield "offload_layers", Setting(reader.value("cpu_offloading_num_layers", 0), layers.origin)
    fine = reader.find("fine_grained_activation_offloading")
    if fine is not None and fine.value:
        yield "offload_modules", Setting(offloadable(reader.items("offload_modules") or ()), fine.origin)
    instances = reader.find("ddp.num_distributed_optimizer_instances")
    if instances is not None and instances.value:
        yield "optimizer_instances", instances
    if reader.value("optimizer.use_precision_aware_optimizer"):
        for name, key in (("moment_dtype", "exp_avg_dtype"), ("main_param_dtype", "main_params_dtype")):
            dtype = reader.find(f"optimizer.{key}")
            if dtype is not None and dtype.value is not None:
                yield name, Setting(DTYPES.get(str(dtype.value), dtype.value), dtype.origin)
    kind = reader.find("optimizer.optimizer")
    if kind is not None and kind.value in ("adam", "sgd", "muon", "dist_muon"):
        yield "optimizer", Setting(str(kind.value).removeprefix("dist_"), kind.origin)
