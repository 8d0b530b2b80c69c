"""Resiliency settings against the installed Megatron-Bridge: snippet and overrides on a real container, validated."""

from __future__ import annotations

import importlib
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from advisor.configure.chosen import Chosen, read_plan
from advisor.configure.conflicts import Wishes
from advisor.configure.launch import Launch, Wanted, launch
from advisor.configure.resiliency import Resiliency, resiliency
from advisor.export.launched import with_plan
from advisor.export.model_fields import model_facts
from advisor.export.resiliency import CLASSES, bridge_overrides, bridge_python
from advisor.export.subject import subject
from tests.configure.plans import plan_file
from tests.real.bridge_stack import VERSION, container, differing, on_gpus, require_bridge

require_bridge()
pytestmark = pytest.mark.bridge
WAYS = {
    "fault tolerance": Wishes(target=VERSION, checkpoint_dir="/ckpt/a b"),
    "local": Wishes(target=VERSION, local_dir="/nvme"),
    "in process": Wishes(target=VERSION, launcher="srun", in_process=True, spares=1),
    "synchronous": Wishes(target=VERSION, async_save=False, rerun="validate_results", detector="legacy"),
    "no saves": Wishes(target=VERSION, launcher="srun", checkpoint_dir=None, detector="none", preemption=False),
}


@pytest.fixture(scope="module")
def chosen(tmp_path_factory: pytest.TempPathFactory) -> Chosen:
    return read_plan(plan_file(tmp_path_factory.mktemp("plans"), "dense"))


@pytest.fixture(scope="module", params=WAYS)
def settings(request: pytest.FixtureRequest, chosen: Chosen) -> Resiliency:
    return resiliency(chosen, WAYS[request.param])


def fresh(chosen: Chosen) -> Any:
    facts = model_facts(chosen.model, str(chosen.request.settings["model"].value))
    return container(subject(chosen, "bridge", VERSION), facts)


def check(cfg: Any, settings: Resiliency) -> None:
    """The container holds every value, also after Bridge's own validation."""
    from megatron.bridge.training.config import runtime_config_update

    job = subject(settings.chosen, "bridge", VERSION).job
    with on_gpus(job):
        runtime_config_update(cfg)
    for one in settings.values:
        section, _, field = one.path.partition(".")
        assert getattr(getattr(cfg, section), field) == one.value, one.path


def test_the_snippet_makes_a_valid_container(chosen: Chosen, settings: Resiliency) -> None:
    cfg = fresh(chosen)
    exec(compile(bridge_python(settings), "resiliency.py", "exec"), {"cfg": cfg})
    check(cfg, settings)


def test_the_overrides_make_a_valid_container(chosen: Chosen, settings: Resiliency) -> None:
    from megatron.bridge.training.utils.omegaconf_utils import process_config_with_overrides

    check(process_config_with_overrides(fresh(chosen), cli_overrides=list(bridge_overrides(settings))), settings)


def launched(settings: Resiliency, *command: str, generated: bool) -> Launch:
    """The job of the settings without a container, with all that its plan says."""
    wanted = Wanted(style=settings.wishes.launcher, command=command)  # type: ignore[arg-type]
    return with_plan(launch(settings.chosen, wanted, settings), settings, "bridge", generated=generated)


def check_launched(cfg: Any, settings: Resiliency) -> None:
    """Plan and resiliency both hold in the container."""
    check(cfg, settings)
    made = subject(settings.chosen, "bridge", VERSION)
    assert differing(made.overlap, cfg) == {}
    assert (cfg.data_parallel_size, cfg.train.global_batch_size) == (made.layout.dp, made.layout.gbs)
    assert cfg.model.tensor_model_parallel_size == made.layout.tp


def test_the_script_of_a_launched_job_is_plan_and_settings(settings: Resiliency) -> None:
    job = launched(settings, "bridge_config.py", generated=True)
    module = ModuleType("bridge_config")
    exec(compile(job.files["bridge_config.py"], "bridge_config.py", "exec"), module.__dict__)
    with on_gpus(subject(settings.chosen, "bridge", VERSION).job):
        cfg = module.configure(module.recipe())
    check_launched(cfg, settings)


def test_the_overrides_of_a_launched_job_are_plan_and_settings(settings: Resiliency) -> None:
    from megatron.bridge.training.utils.omegaconf_utils import process_config_with_overrides

    job = launched(settings, "scripts/training/run_recipe.py", generated=False)
    program, flag, name, *words = job.command
    assert (program, flag) == ("scripts/training/run_recipe.py", "--recipe")
    with on_gpus(subject(settings.chosen, "bridge", VERSION).job):
        cfg = getattr(importlib.import_module("megatron.bridge.recipes.qwen"), name)()
    check_launched(process_config_with_overrides(cfg, cli_overrides=words), settings)


def test_what_we_refuse_is_not_refused_upstream(chosen: Chosen, tmp_path: Path) -> None:
    """Both detectors and in-process restart beside fault tolerance pass Bridge's validation: the refusals are ours."""
    from megatron.bridge.training import config
    from megatron.bridge.training.config import runtime_config_update

    cfg = fresh(chosen)
    cfg.straggler = config.StragglerDetectionConfig(log_straggler=True)
    cfg.nvrx_straggler = config.NVRxStragglerDetectionConfig(enabled=True)
    cfg.ft = config.FaultToleranceConfig(enable_ft_package=True)
    cfg.inprocess_restart = config.InProcessRestartConfig(enabled=True)
    with on_gpus(subject(chosen, "bridge", VERSION).job):
        runtime_config_update(cfg)


def test_every_part_is_an_object_of_bridge(chosen: Chosen) -> None:
    """What the ways above set, taken together, is every part that resiliency has in Bridge."""
    parts = {one.path.partition(".")[0] for wishes in WAYS.values() for one in resiliency(chosen, wishes).values}
    from megatron.bridge.training import config

    assert parts >= {"ft", "nvrx_straggler", "straggler", "inprocess_restart", "rerun_state_machine", "checkpoint"}
    for part, name in CLASSES.items():
        assert part in {one.name for one in fields(config.ConfigContainer)}
        assert is_dataclass(getattr(config, name))
