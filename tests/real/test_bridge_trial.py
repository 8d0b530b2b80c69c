"""The overrides of `advisor trial --via bridge` applied to real recipes of the installed Megatron-Bridge."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.export.subject import recipe
from advisor.trial.via_bridge import installed_version, make_recipe
from tests.export.plans import GOLDEN, golden_chosen
from tests.real.bridge_run import settle, start, wrong_values
from tests.real.bridge_stack import VERSION, on_gpus, require_bridge

require_bridge()
pytestmark = pytest.mark.bridge
WITH_RECIPE = [name for name in GOLDEN if recipe(name, VERSION) is not None]


@pytest.mark.parametrize("name", WITH_RECIPE)
def test_a_short_run_of_a_recipe_is_what_bridge_makes_of_the_command(name: str, tmp_path: Path) -> None:
    from megatron.bridge.training.utils.omegaconf_utils import process_config_with_overrides

    chosen = golden_chosen(name, tmp_path)
    one = make_recipe(chosen, installed_version(), steps=20, warmup=2)
    assert one.made.version == VERSION
    cfg = process_config_with_overrides(start(chosen, one.made), cli_overrides=list(one.overrides))
    with on_gpus(one.made.job):
        settle(cfg, one.made)
    assert wrong_values(cfg, one.made) == {}
    evaluation = cfg.train if VERSION == "0.3" else cfg.validation
    assert (cfg.train.train_iters, evaluation.eval_iters) == (22, 0)
    assert (cfg.logger.log_interval, cfg.logger.log_throughput) == (1, True)
    assert (cfg.checkpoint.save, cfg.checkpoint.load) == (None, None)
    assert (cfg.scheduler.lr_warmup_iters, cfg.scheduler.lr_decay_iters) == (0, 22)
    assert cfg.scheduler.lr_warmup_steps < cfg.scheduler.lr_decay_steps
