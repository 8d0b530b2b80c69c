"""Rules of Bridge, run: the real container refuses, changes or takes what `advisor check` says of the same text."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import yaml

from advisor.check import check
from advisor.check.releases import releases
from advisor.configure.chosen import Chosen, read_plan
from advisor.export.model_fields import model_facts
from advisor.export.subject import subject, versions
from advisor.rules.lint import CONFIG_RULES
from advisor.rules.lint.releases import hold
from tests.configure.plans import plan_file
from tests.real.bridge_stack import VERSION, container, on_gpus, require_bridge

require_bridge()
pytestmark = pytest.mark.bridge
TABLE = yaml.safe_load(Path(__file__).with_name("bridge_rules.yaml").read_text(encoding="utf-8"))
CASES: dict[str, Any] = {rule: case for group in TABLE.values() for rule, case in group.items()}
IMPORTS = """\
from megatron.bridge.peft.lora import LoRA
from megatron.bridge.training.comm_overlap import CommOverlapConfig
from megatron.bridge.training.config import NVRxStragglerDetectionConfig, ProfilingConfig
from megatron.bridge.training.mixed_precision import MixedPrecisionConfig
"""
REFUSALS = (AssertionError, ValueError, TypeError, RuntimeError, AttributeError)
PLANS = {"dense": "dense", "moe": "m2"}


@lru_cache(maxsize=2)
def plan_of(base: str, folder: Path) -> Chosen:
    return read_plan(plan_file(folder, PLANS[base], **({"gpus": 64} if base == "dense" else {})))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("plans")


def text_of(values: dict[str, Any]) -> str:
    """Statements about `cfg`; objects are constructor calls."""
    lines = []
    for path, value in values.items():
        made = isinstance(value, str) and value.endswith(")")
        name = "dataset.sequence_length" if path == "dataset.seq_length" and VERSION == "0.3" else path
        lines.append(f"    cfg.{name} = {value if made else repr(value)}\n")
    return f"{IMPORTS}\n\ndef configure(cfg):\n{''.join(lines)}    return cfg\n"


def outcome(text: str, chosen: Chosen, env: dict[str, str]) -> tuple[str, Any]:
    """("stop", what was said) or ("taken", the container) from the real Bridge."""
    from megatron.bridge.training.config import runtime_config_update

    made = subject(chosen, "bridge", VERSION)
    cfg = container(made, model_facts(chosen.model, str(chosen.request.settings["model"].value)))
    cfg.train.micro_batch_size, cfg.train.global_batch_size = 1, 256
    names: dict[str, Any] = {}
    with on_gpus(made.job), patch.dict(os.environ, env):
        try:
            exec(compile(text, "config.py", "exec"), names)
            names["configure"](cfg)
            runtime_config_update(cfg)
        except REFUSALS as problem:
            return "stop", f"{type(problem).__name__}: {problem}"
    return "taken", cfg


def found(text: str, case: dict[str, Any], tmp_path: Path) -> dict[str, str]:
    """Rules that `advisor check` finds in the same text, with their severities."""
    files = [tmp_path / "config.py"]
    files[0].write_text(text, encoding="utf-8")
    if case.get("env"):
        files.append(tmp_path / "env.sh")
        files[1].write_text("".join(f"export {name}={value}\n" for name, value in case["env"].items()))
    more = {"gpus": case["gpus"]} if "gpus" in case else {}
    return {one.rule: one.severity for one in check(files, version=VERSION, **more).findings}


def holds(cfg: Any, path: str) -> Any:
    section, _, name = path.partition(".")
    return getattr(getattr(cfg, section), name)


def test_every_rule_of_bridge_is_run_or_says_why_not() -> None:
    """Rules that stop or change a job; those that only inform have nothing that the library could do."""
    reasons = yaml.safe_load(Path(__file__).with_name("bridge_rules_not_run.yaml").read_text(encoding="utf-8"))
    left = [rule for rules in reasons.values() for rule in rules]
    asked = {one.id for one in CONFIG_RULES if "bridge" in one.targets and one.severity in ("stop", "silent")}
    assert len(left) == len(set(left))
    assert not set(left) & set(CASES)
    assert asked - set(CASES) == set(left)


def test_rules_of_one_version_say_so() -> None:
    said = {one.id: one.versions for one in CONFIG_RULES}
    for rule, case in CASES.items():
        for version in versions("bridge"):
            assert hold(said[rule], releases("bridge", version)) == (version in case.get("versions", [version])), rule


@pytest.mark.parametrize("rule", CASES)
def test_bridge_does_what_the_rule_says(rule: str, folder: Path, tmp_path: Path) -> None:
    case = CASES[rule]
    if case.get("only", VERSION) != VERSION:
        pytest.skip(f"another rule answers in Bridge {VERSION}, or its fields are not there")
    case = case | case.get(VERSION, {})
    chosen, env = plan_of(case.get("base", "dense"), folder), case.get("env", {})
    bad, good = text_of(case["bad"]), text_of(case["good"])
    assert (rule in found(bad, case, tmp_path)) == (VERSION in case.get("versions", [VERSION]))
    assert rule not in found(good, case, tmp_path)
    verdict, said = outcome(bad, chosen, env)
    neighbour, cfg = outcome(good, chosen, env)
    assert neighbour == "taken", cfg
    if VERSION not in case.get("versions", [VERSION]):
        assert verdict == "taken", said
    elif "becomes" in case:
        assert verdict == "taken", said
        assert {path: holds(said, path) for path in case["becomes"]} == case["becomes"]
    else:
        assert verdict == "stop"
