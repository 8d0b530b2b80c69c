"""Exported flags: parsed by Megatron-LM's own parser where its sources are, and built into a TransformerConfig here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from advisor.configure.chosen import Chosen
from advisor.export.megatron import flag_groups
from advisor.export.model_fields import model_facts
from advisor.export.subject import subject
from advisor.export.targets import export
from advisor.spec.load.megatron.arguments import by_dest, parse
from tests.export.plans import GOLDEN, golden_chosen, random_plans
from tests.real.held import chunks

pytestmark = pytest.mark.real
SOURCE = os.environ.get("MEGATRON_SOURCE", "")
# Destinations whose TransformerConfig field has another name (megatron/training/arguments.py).
FIELDS = {
    "num_experts": "num_moe_experts",
    "swiglu": "gated_linear_unit",
    "decoder_first_pipeline_num_layers": "num_layers_in_first_pipeline_stage",
    "decoder_last_pipeline_num_layers": "num_layers_in_last_pipeline_stage",
    "num_virtual_stages_per_pipeline_rank": "virtual_pipeline_model_parallel_size",
    "cuda_graph_scope_deprecated": "cuda_graph_scope",
}


def words_of(chosen: Chosen, version: str) -> list[str]:
    facts = model_facts(chosen.model, str(chosen.request.settings["model"].value))
    groups = flag_groups(subject(chosen, "megatron-lm", version), facts)
    return [word for _, flags in groups for words in flags for word in words]


def candidates(folder: Path, count: int) -> list[Chosen]:
    return [*(golden_chosen(name, folder) for name in GOLDEN), *random_plans(count, seed=11)]


def config_arguments(values: dict[str, Any], names: set[str]) -> dict[str, Any]:
    """Parsed flags as arguments of TransformerConfig, as core_transformer_config_from_args makes them."""
    import torch

    found = {FIELDS.get(dest, dest): value for dest, value in values.items()}
    found = {name: value for name, value in found.items() if name in names}
    for name in ("moe_layer_freq", "linear_attention_freq", "window_attn_skip_freq"):
        if isinstance(found.get(name), str):
            found[name] = eval(found[name])
    if isinstance(found.get("window_size"), str):
        found["window_size"] = tuple(map(int, found["window_size"].split(",")))
    if isinstance(found.get("cp_comm_type"), list):
        found["cp_comm_type"] = found["cp_comm_type"][0]
    for name in ("moe_router_load_balancing_type", "moe_aux_loss_coeff"):
        if isinstance(found.get(name), list):
            found[name] = found[name][0]
    dtype = torch.bfloat16 if values.get("bf16") else torch.float32
    # The fused permutation is a kernel of Transformer Engine, which is not here.
    return found | {"params_dtype": dtype, "pipeline_dtype": dtype, "moe_permute_fusion": False}


def test_transformer_config_is_built_from_the_flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

    from tests.real.shim import prepare

    prepare()
    monkeypatch.setattr("megatron.core.utils.get_te_version", lambda: Version("2.12.0"))
    path = tmp_path / "args.sh"
    for chosen in candidates(tmp_path, 100):
        path.write_text(export(chosen, "megatron-lm", "0.16")["megatron_args.sh"], encoding="utf-8")
        arguments = parse(str(path))
        assert not arguments.wrong
        values = arguments.values
        kind = MLATransformerConfig if chosen.model.has_mla else TransformerConfig
        names = {one.name for one in fields(kind)}
        config = kind(**config_arguments(values, names))
        layout = subject(chosen, "megatron-lm", "0.16").layout
        assert config.num_layers == chosen.model.num_layers
        assert config.hidden_size == chosen.model.hidden
        assert config.num_moe_experts == (chosen.model.moe.experts if chosen.model.moe else None)
        assert (config.tensor_model_parallel_size, config.sequence_parallel) == (layout.tp, layout.sp)
        assert config.virtual_pipeline_model_parallel_size == (layout.vpp if layout.vpp > 1 else None)
        assert chunks(config, layout.pp, layout.vpp) == layout.split.layers


@pytest.mark.skipif(not SOURCE, reason="MEGATRON_SOURCE does not name the sources of megatron-core 0.19")
def test_the_real_parser_takes_every_flag(tmp_path: Path) -> None:
    lists = [words_of(chosen, "0.19") for chosen in candidates(tmp_path, 200)]
    script = Path(__file__).with_name("parse_flags.py")
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", str(script)], input=json.dumps(lists), capture_output=True, text=True,
        check=True, env={**os.environ, "MEGATRON_SOURCE": SOURCE},
    )  # fmt: skip
    answers = json.loads(ran.stdout.split("ANSWERS")[1])
    assert [one["error"] for one in answers if "error" in one] == []
    for words, seen in zip(lists, answers, strict=True):
        path = tmp_path / "flags.txt"
        path.write_text(" ".join(f"'{word}'" for word in words), encoding="utf-8")
        ours = parse(str(path)).values
        for dest, value in seen.items():
            assert same(ours.get(dest), value), (dest, ours.get(dest), value)
        assert {dest for dest, value in ours.items() if not same(by_dest()[dest].default, value)} <= set(seen)


def same(ours: Any, real: Any) -> bool:
    """Whether our typed value is the parser's; layer patterns are evaluated there, lists of one are unpacked here."""
    if isinstance(real, list) and isinstance(ours, str):
        evaluated = ours.startswith(("(", "[")) and eval(ours) == real
        return evaluated or [ours] == real or ours == ",".join(map(str, real))
    if isinstance(real, list):
        return list(ours) == real if isinstance(ours, list) else [ours] == real
    return bool(ours == real)
