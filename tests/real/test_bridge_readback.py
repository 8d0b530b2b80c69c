"""`advisor check --log` on what the installed Megatron-Bridge itself prints: its summary, its YAML, its warnings."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import io
import logging
from pathlib import Path
from typing import Any

import pytest

from advisor.check.readback import ReadBack, compare, read_log
from advisor.check.readback.wording import core_defaults, wordings
from advisor.configure.chosen import Chosen
from advisor.export.model_fields import unsupported
from advisor.export.subject import subject
from advisor.export.targets import export
from tests.export.plans import GOLDEN, golden_chosen, random_plans
from tests.real.bridge_run import facts_of, run_snippet
from tests.real.bridge_stack import VERSION, comm_overlap, on_gpus, require_bridge

require_bridge()
pytestmark = pytest.mark.bridge
RANDOM = 40


def log_of(chosen: Chosen, path: Path, change: Any = None, yaml: bool = False) -> Path:
    """What Bridge prints when it starts the exported configuration, `change` applied to it first."""
    from megatron.bridge.training.config import runtime_config_update

    made = subject(chosen, "bridge", VERSION)
    module = run_snippet(export(chosen, "bridge", VERSION)["bridge_config.py"])
    said = io.StringIO()
    handler = logging.StreamHandler(said)
    handler.setFormatter(logging.Formatter(logging.BASIC_FORMAT))
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        with contextlib.redirect_stdout(said), on_gpus(made.job):
            cfg = module.configure(module.recipe())
            if change is not None:
                change(cfg)
            if yaml:
                cfg.print_yaml()
            runtime_config_update(cfg)
            cfg.log_non_default_values()
    finally:
        root.removeHandler(handler)
    path.write_text(said.getvalue(), encoding="utf-8")
    return path


def read_back(chosen: Chosen, path: Path, **options: Any) -> ReadBack:
    return compare(read_log([str(log_of(chosen, path, **options))]), chosen)


def lost(found: ReadBack) -> dict[str, tuple[str, Any, Any]]:
    return {
        row.key: (row.status, row.planned, row.seen and row.seen.value)
        for row in found.rows
        if row.status in ("silently off", "differs")
    }


@pytest.mark.parametrize("yaml", [False, True], ids=["summary", "yaml-and-summary"])
def test_what_is_exported_is_read_back_as_effective(yaml: bool, tmp_path: Path) -> None:
    random = [one for one in random_plans(RANDOM, seed=5) if not unsupported(one.model, facts_of(one))]
    for chosen in (*(golden_chosen(name, tmp_path) for name in GOLDEN), *random):
        found = read_back(chosen, tmp_path / "job.log", yaml=yaml)
        assert lost(found) == {}
        assert found.observed.framework == "bridge"
        # A summary alone names no field that one release has and another lacks.
        assert found.observed.version in ({VERSION} if yaml else {VERSION, None})
        unseen = {row.key for row in found.rows if row.status == "not seen"}
        assert {"model.tensor_model_parallel_size", "ddp.overlap_grad_reduce", "model.recompute_granularity",
                "train.micro_batch_size", "model.overlap_moe_expert_parallel_comm"} & unseen == set()  # fmt: skip


def test_tensor_overlap_that_bridge_switches_off_is_seen(tmp_path: Path) -> None:
    chosen = golden_chosen("llama3-70b", tmp_path)

    def without_sequence_parallel(cfg: Any) -> None:
        cfg.model.sequence_parallel = False

    found = read_back(chosen, tmp_path / "job.log", change=without_sequence_parallel)
    assert set(lost(found)) == {"model.sequence_parallel", "model.tp_comm_overlap"}
    assert found.outcome == "silently off"
    seen = found.observed.settings["model.tp_comm_overlap"]
    assert (seen.off, seen.why) == (True, "sequence_parallel=False")


def test_overlap_that_was_never_asked_for_is_seen_as_a_default(tmp_path: Path) -> None:
    chosen = golden_chosen("llama3-70b", tmp_path)

    def without_overlap(cfg: Any) -> None:
        cfg.comm_overlap = None

    found = read_back(chosen, tmp_path / "job.log", change=without_overlap)
    assert lost(found)["model.tp_comm_overlap"] == ("silently off", True, False)
    assert found.observed.settings["model.tp_comm_overlap"].how == "default"


def test_defaults_of_the_table_are_those_of_the_installed_core() -> None:
    from megatron.core.distributed import DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig
    from megatron.core.transformer.transformer_config import MLATransformerConfig

    kinds = {"model": MLATransformerConfig, "optimizer": OptimizerConfig, "ddp": DistributedDataParallelConfig}
    usual: dict[str, Any] = {}
    for section, kind in kinds.items():
        for field in dataclasses.fields(kind):
            made = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
            plain = str(made) if str(made).startswith("torch.") else list(made) if isinstance(made, tuple) else made
            usual[f"{section}.{field.name}"] = getattr(made, "name", plain)
    assert {key: usual.get(key, "gone") for key in core_defaults()} == core_defaults()


def test_sentences_of_the_table_are_in_the_installed_sources() -> None:
    mark = f"MB{VERSION[2:]}"
    checked = 0
    for one in wordings().all:
        for part in one.source.split("; "):
            names, _, path = part.rpartition(" ")
            if mark not in names or one.tells == "yaml":
                continue
            spec = importlib.util.find_spec(path.removesuffix(".py").replace("/", "."))
            assert spec is not None
            source = Path(str(spec.origin)).read_text(encoding="utf-8")
            text = " ".join(source.split()).replace('" "', "").replace('" f"', "")
            assert any(word in text for word in one.text), one.id
            checked += 1
    assert checked >= 12


def test_the_stand_in_for_transformer_engine_is_there() -> None:
    assert comm_overlap().HAVE_TE
