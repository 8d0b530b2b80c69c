"""Exported texts against the installed Megatron-Bridge: snippets run, overrides and YAML applied, all validated."""

from __future__ import annotations

import dataclasses
import importlib
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from advisor.api import estimate
from advisor.configure.chosen import Chosen
from advisor.configure.job import preset
from advisor.configure.resolved import asked_of
from advisor.export.model_fields import unsupported
from advisor.export.subject import subject
from advisor.export.targets import export
from advisor.spec.load.model import load_model
from tests.export.plans import GOLDEN, golden_chosen, random_plans
from tests.real.bridge_run import (
    check,
    facts_of,
    run_snippet,
    settle,
    start,
)
from tests.real.bridge_stack import VERSION, container, differing, held_by, on_gpus, require_bridge

require_bridge()
pytestmark = pytest.mark.bridge
RANDOM = 60


def candidates(folder: Path) -> list[Chosen]:
    random = [one for one in random_plans(RANDOM, seed=3) if not unsupported(one.model, facts_of(one))]
    return [*(golden_chosen(name, folder) for name in GOLDEN), *random]


@pytest.fixture(scope="module")
def chosen_ones(tmp_path_factory: pytest.TempPathFactory) -> list[Chosen]:
    return candidates(tmp_path_factory.mktemp("plans"))


def test_snippets_run_and_validate(chosen_ones: list[Chosen]) -> None:
    for chosen in chosen_ones:
        made = subject(chosen, "bridge", VERSION)
        module = run_snippet(export(chosen, "bridge", VERSION)["bridge_config.py"])
        with on_gpus(made.job):
            cfg = module.configure(module.recipe())
        check(settle(cfg, made), made)


def test_overrides_are_applied_to_a_real_container(chosen_ones: list[Chosen], tmp_path: Path) -> None:
    from megatron.bridge.training.utils.omegaconf_utils import process_config_with_overrides

    for chosen in chosen_ones:
        made = subject(chosen, "bridge-overrides", VERSION)
        path = tmp_path / "overrides.sh"
        path.write_text(export(chosen, "bridge-overrides", VERSION)["bridge_overrides.sh"], encoding="utf-8")
        script = f'source {shlex.quote(str(path))} && printf "%s\\0" "${{OVERRIDES[@]}}"'
        words = subprocess.run(["bash", "-euc", script], capture_output=True, text=True, check=True).stdout
        cfg = start(chosen, made)
        applied = process_config_with_overrides(cfg, cli_overrides=words.split("\0")[:-1])
        check(settle(applied, made), made)


def test_yaml_is_merged_into_a_real_container(chosen_ones: list[Chosen], tmp_path: Path) -> None:
    from megatron.bridge.training.utils.omegaconf_utils import process_config_with_overrides

    for chosen in chosen_ones[: len(GOLDEN) + 20]:
        made = subject(chosen, "yaml", VERSION)
        path = tmp_path / "config.yaml"
        path.write_text(export(chosen, "yaml", VERSION)["bridge_config.yaml"], encoding="utf-8")
        cfg = start(chosen, made)
        check(settle(process_config_with_overrides(cfg, config_filepath=str(path)), made), made)


def test_what_is_left_to_bridge_becomes_what_the_snippet_spells_out(chosen_ones: list[Chosen]) -> None:
    """The same plan with nothing but requests in CommOverlapConfig ends at the values that the snippet gives."""
    from megatron.bridge.training import comm_overlap

    for chosen in chosen_ones:
        made = subject(chosen, "bridge", VERSION)
        module = run_snippet(export(chosen, "bridge", VERSION)["bridge_config.py"])
        cfg = module.configure(container(made, facts_of(chosen)))
        name = made.overlap.buffers.name
        asked = asked_of(chosen.knobs)
        if made.job.model.has_mla:  # setup() leaves user buffers on, the layers switch them off
            asked = dataclasses.replace(asked, tp_comm_overlap=False)
        cfg.comm_overlap = comm_overlap.CommOverlapConfig(
            **asked.given(), tp_comm_overlap_cfg=None if name is None else getattr(comm_overlap, name)
        )
        if made.knobs.tp_overlap and made.overlap.buffers.gemms and name is None:
            continue
        check(settle(cfg, made), made)


ROWS = preset("versions.yaml")["recipes"]
RECIPES = [name for name, row in ROWS.items() if isinstance(row, dict) and VERSION in row["versions"]]


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_takes_a_plan(name: str) -> None:
    """Whatever a recipe sets beside the layout leaves the exported configuration legal and effective."""
    answer = estimate(name, 64, ep=8 if load_model(name).is_moe else 1, tp=1, mbs=1, gbs=64, seq_len=2048)
    assert answer.candidate is not None
    chosen = Chosen(answer.request, answer.candidate, f"{name}.json", 1)
    made = subject(chosen, "bridge", VERSION)
    module = run_snippet(export(chosen, "bridge", VERSION)["bridge_config.py"])
    with on_gpus(made.job):
        cfg = module.configure(module.recipe())
    check(settle(cfg, made), made)


def test_recipes_of_the_version_map_exist() -> None:
    rows = preset("versions.yaml")["recipes"]
    for name, row in rows.items():
        if isinstance(row, dict):
            module, function = f"megatron.bridge.recipes.{row['module']}", row["function"]
            try:
                has = callable(getattr(importlib.import_module(module), function))
            except (ImportError, AttributeError):
                has = False
            assert has == (VERSION in row["versions"]), name


def test_precisions_of_the_version_map_are_those_of_bridge() -> None:
    from megatron.bridge.training.mixed_precision import get_mixed_precision_config

    table = preset("versions.yaml")["precision_fields"]
    for key, name in preset("versions.yaml")["precisions"].items():
        if name and key != "source":
            real = get_mixed_precision_config(name)
            said = table["defaults"] | table[name]
            held = {field: str(getattr(real, field)).removeprefix("torch.") for field in said}
            assert held == {field: str(value) for field, value in said.items()}, name


def test_a_generated_buffer_configuration_is_taken(tmp_path: Path) -> None:
    chosen = golden_chosen("minimax-m2", tmp_path)
    chosen = dataclasses.replace(
        chosen,
        candidate=dataclasses.replace(chosen.candidate, knobs=dataclasses.replace(chosen.knobs, tp_overlap=True)),
    )
    asked = dataclasses.replace(asked_of(chosen.knobs), tp_comm_overlap_cfg="custom")
    made = subject(chosen, "bridge", VERSION, asked)
    module = run_snippet(export(chosen, "bridge", VERSION, asked)["bridge_config.py"])
    cfg = settle(module.configure(module.recipe()), made)
    assert {gemm: row["method"] for gemm, row in cfg.model.tp_comm_overlap_cfg.items()}["qkv_fprop"] == "ring_exchange"
    check(cfg, made)


def test_async_save_follows_the_version_map(tmp_path: Path) -> None:
    chosen = golden_chosen("llama3-70b", tmp_path)
    made = subject(chosen, "bridge", VERSION)
    for checkpoint_format in ("torch_dist", "zarr"):
        cfg = run_snippet(export(chosen, "bridge", VERSION)["bridge_config.py"]).configure(
            container(made, facts_of(chosen))
        )
        cfg.checkpoint.async_save, cfg.checkpoint.ckpt_format = True, checkpoint_format
        allowed = checkpoint_format in preset("versions.yaml")["bridge"][VERSION]["async_save_formats"]
        if allowed:
            settle(cfg, made)
        else:
            with pytest.raises(AssertionError):
                settle(cfg, made)


def test_the_comparison_can_fail(tmp_path: Path) -> None:
    chosen = golden_chosen("llama3-70b", tmp_path)
    made = subject(chosen, "bridge", VERSION)
    text = export(chosen, "bridge", VERSION)["bridge_config.py"]
    broken = re.sub(r"overlap_p2p_comm=True", "overlap_p2p_comm=False", text)
    cfg = settle(run_snippet(broken).configure(container(made, facts_of(chosen))), made)
    assert set(differing(made.overlap, cfg)) == {"model.overlap_p2p_comm"}
    assert held_by(cfg, made.overlap.field("ddp.bucket_size")) == 134217728
    assert "torch" in sys.modules
