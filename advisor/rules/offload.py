"""Activations in host memory: those of the first layers, or the inputs of modules of every layer."""

from __future__ import annotations

from advisor.rules.recompute import SWITCHES
from advisor.rules.rule import NEVER, TC, Case, Row, Rule
from advisor.spec.layout import EXPERT_INPUTS, OFFLOAD_MODULES, Array, CudaGraph
from advisor.spec.model import GroupedQueryAttention, LatentAttention, Model

TE = "TE:transformer_engine/pytorch/cpu_offload.py"
LAYER = "ML:megatron/core/transformer/transformer_layer.py"
NORMS = ("attn_norm", "mlp_norm")


def _layers(case: Case) -> Array:
    mask: Array = case.columns.offload_layers > 0
    return mask


def _recomputed(case: Case) -> Array:
    mask: Array = (case.columns.full_uniform > 0) | (case.columns.full_block > 0)
    for switch in SWITCHES:
        mask = mask | getattr(case.columns, switch)
    return mask


def _any(case: Case, *modules: str) -> Array:
    """Entries that offload the inputs of one of these modules."""
    bits = sum(1 << OFFLOAD_MODULES.index(module) for module in modules)
    mask: Array = case.columns.offload_modules & bits != 0
    return mask


def idle_modules(model: Model) -> tuple[str, ...]:
    """Modules whose inputs no layer of `model` keeps apart: fused norms are kept with the projection behind them."""
    mixers = [layer.mixer for layer in model.kinds]
    latent = any(isinstance(mixer, LatentAttention) for mixer in mixers)
    attention = latent or any(isinstance(mixer, GroupedQueryAttention) for mixer in mixers)
    present = {
        "attn_norm": latent,
        "qkv_linear": attention,
        "mlp_norm": model.is_moe,
        "expert_fc1": model.is_moe,
        "moe_act": model.is_moe,
    }
    return tuple(module for module, there in present.items() if not there)


def _named(row: Row, among: tuple[str, ...]) -> str:
    return ", ".join(module for module in row.knobs.offload_modules if module in among)


def _without(row: Row, drop: tuple[str, ...]) -> str:
    left = ",".join(module for module in row.knobs.offload_modules if module not in drop)
    return f"offload_modules={left or 'none'}"


def _idle(case: Case) -> Array:
    idle = idle_modules(case.model)
    return _any(case, *idle) if idle else NEVER


OFFLOAD = (
    Rule(
        "layer-offload-forbids-pp", "stop", ("offload_layers", "pp"), f"{TC}:1884-1899",
        lambda c: _layers(c) & (c.columns.pp > 1),
        lambda r: f"activations of {r.knobs.offload_layers} layers go to the host without a pipeline only, pp is"
        f" {r.layout.pp}",
        lambda r: "offload_layers=0",
    ),
    Rule(
        "layer-offload-forbids-recompute", "stop", ("offload_layers", *SWITCHES, "full_uniform", "full_block"),
        f"{TC}:1884-1899",
        lambda c: _layers(c) & _recomputed(c),
        lambda r: "activations of whole layers go to the host or are recomputed, not both",
        lambda r: "recompute=none",
    ),
    Rule(
        "layer-offload-below-layers", "stop", ("offload_layers",), f"{TC}:1884-1899; {TE}",
        lambda c: c.columns.offload_layers >= c.model.num_layers,
        lambda r: f"the last of the {r.model.num_layers} layers stays, so {r.knobs.offload_layers} cannot be offloaded",
        lambda r: f"offload_layers={r.model.num_layers - 2}",
    ),
    Rule(
        "graph-without-layer-offload", "stop", ("offload_layers", "cuda_graph"),
        f"{TC}:2773-2975 (before megatron-core 0.19 no CUDA graph at all)",
        lambda c: _layers(c) & (c.columns.cuda_graph == CudaGraph.scoped),
        lambda r: "scoped CUDA graphs cannot hold layers whose activations go to the host",
        lambda r: "cuda_graph=none",
    ),
    Rule(
        "fine-offload-xor-layer-offload", "stop", ("offload_layers", "offload_modules"), f"{TC}:2127-2194",
        lambda c: _layers(c) & (c.columns.offload_modules != 0),
        lambda r: "activations are offloaded by layers or by modules, not both",
        lambda r: "offload_layers=0",
    ),
    Rule(
        "fine-offload-projection-with-attention", "stop", ("offload_modules",), f"{TC}:2127-2194",
        lambda c: _any(c, "attn_proj") & ~_any(c, "core_attn"),
        lambda r: "the input of attn_proj is the output that core_attn needs again: both are offloaded or neither",
        lambda r: "offload_modules=core_attn+" + "+".join(r.knobs.offload_modules),
    ),
    Rule(
        "fine-offload-inside-recomputed-experts", "stop", ("offload_modules", "rc_moe"), f"{TC}:2127-2194",
        lambda c: _any(c, *EXPERT_INPUTS) & c.columns.rc_moe,
        lambda r: f"{_named(r, EXPERT_INPUTS)} lies inside the expert layer that is recomputed as a whole: there is"
        " nothing to offload",
        lambda r: _without(r, EXPERT_INPUTS),
        versions=">=0.19",
    ),
    Rule(
        "layer-offload-ignored-in-hybrid", "silent", ("offload_layers",),
        "ML:megatron/core/models/hybrid (enters no offload context; transformer_block.py does)",
        lambda c: _layers(c) if c.model.is_hybrid else NEVER,
        lambda r: f"{r.model.name} is a hybrid stack, which keeps the activations of all layers on the GPU",
        lambda r: "offload_layers=0, or offload_modules",
    ),
    Rule(
        "fine-offload-under-full-recompute", "silent", ("offload_modules", "full_uniform", "full_block"),
        "ML:megatron/core/recompute.py (whole layers keep their input alone)",
        lambda c: (c.columns.offload_modules != 0) & ((c.columns.full_uniform > 0) | (c.columns.full_block > 0)),
        lambda r: "layers that are recomputed as a whole keep nothing to offload but their input",
        lambda r: "offload_modules=none",
    ),
    Rule(
        "fine-offload-norms-in-graphs", "silent", ("offload_modules", "cuda_graph"), f"{LAYER} (_set_offload_modules)",
        lambda c: _any(c, *NORMS) & (c.columns.cuda_graph == CudaGraph.scoped),
        lambda r: f"{_named(r, NORMS)} begins or ends a scoped CUDA graph and stays on the GPU",
        lambda r: _without(r, NORMS),
    ),
    Rule(
        "offload-module-absent", "info", ("offload_modules",),
        f"{LAYER}; ML:megatron/core/models/gpt/gpt_layer_specs.py",
        _idle,
        lambda r: f"{_named(r, idle_modules(r.model))} does nothing here: no layer of {r.model.name} has such a module"
        " of its own (norms are fused into the projections behind them)",
        lambda r: _without(r, idle_modules(r.model)),
    ),
    Rule(
        "layer-offload-leaves-no-window", "slow", ("offload_layers",), f"{TE} (get_cpu_offload_context warns)",
        lambda c: c.columns.offload_layers == c.model.num_layers - 1 if c.model.num_layers > 1 else NEVER,
        lambda r: f"{r.knobs.offload_layers} of {r.model.num_layers} layers on the host leave one resident: no copy"
        " runs beside another layer",
        lambda r: f"offload_layers={max(r.model.num_layers - 2, 0)}",
    ),
)  # fmt: skip
