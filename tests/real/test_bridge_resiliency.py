"""Resiliency settings against the installed Megatron-Bridge: snippet and overrides on a real container, validated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from advisor.configure.chosen import Chosen, read_plan
from advisor.configure.conflicts import Wishes
from advisor.configure.resiliency import Resiliency, resiliency
from advisor.export.model_fields import model_facts
from advisor.export.resiliency import bridge_overrides, bridge_python
from advisor.export.subject import subject
from tests.configure.plans import plan_file
from tests.real.bridge_stack import container, on_gpus, require_bridge

require_bridge()
pytestmark = pytest.mark.bridge
WAYS = {
    "fault tolerance": Wishes(target="0.3", checkpoint_dir="/ckpt/a b"),
    "local": Wishes(target="0.3", local_dir="/nvme"),
    "in process": Wishes(target="0.3", launcher="srun", in_process=True, spares=1),
    "synchronous": Wishes(target="0.3", async_save=False, rerun="validate_results", detector="legacy"),
    "no saves": Wishes(target="0.3", launcher="srun", checkpoint_dir=None, detector="none", preemption=False),
}


@pytest.fixture(scope="module")
def chosen(tmp_path_factory: pytest.TempPathFactory) -> Chosen:
    return read_plan(plan_file(tmp_path_factory.mktemp("plans"), "dense"))


@pytest.fixture(scope="module", params=WAYS)
def settings(request: pytest.FixtureRequest, chosen: Chosen) -> Resiliency:
    return resiliency(chosen, WAYS[request.param])


def fresh(chosen: Chosen) -> Any:
    facts = model_facts(chosen.model, str(chosen.request.settings["model"].value))
    return container(subject(chosen, "bridge", "0.3"), facts)


def check(cfg: Any, settings: Resiliency) -> None:
    """The container holds every value, also after Bridge's own validation."""
    from megatron.bridge.training.config import runtime_config_update

    job = subject(settings.chosen, "bridge", "0.3").job
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


def test_what_we_refuse_is_not_refused_upstream(chosen: Chosen, tmp_path: Path) -> None:
    """Both detectors and in-process restart beside fault tolerance pass Bridge's validation: the refusals are ours."""
    from megatron.bridge.training import config

    cfg = fresh(chosen)
    cfg.straggler = config.StragglerDetectionConfig(log_straggler=True)
    cfg.nvrx_straggler = config.NVRxStragglerDetectionConfig(enabled=True)
    cfg.ft = config.FaultToleranceConfig(enable_ft_package=True)
    cfg.inprocess_restart = config.InProcessRestartConfig(enabled=True)
    with on_gpus(subject(chosen, "bridge", "0.3").job):
        cfg.validate()
