"""Rules over configurations by themselves: the setup they see, unknown values, texts, and the family they belong to."""

from __future__ import annotations

import re

import pytest
import yaml

from advisor import data
from advisor.rules import RULES
from advisor.rules.lint import CONFIG_RULES, STAGES, Setup, Value, ask, rules_by_id
from advisor.rules.lint.columns import COLUMNS
from advisor.rules.lint.form import fill
from advisor.rules.lint.setup import SHORT, full_name

BY_ID = {one.id: one for one in CONFIG_RULES}
FRAMEWORKS = ("bridge", "megatron-lm", "mcore")


def setup(framework="bridge", **values):
    """A setup that states these settings (`ddp__overlap_grad_reduce` = ddp.overlap_grad_reduce) in line 3."""
    stated = {full_name(key.replace("__", ".")): Value(value, "x.py", 3) for key, value in values.items()}
    return Setup(framework=framework, values=stated)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("one", CONFIG_RULES, ids=lambda one: one.id)
def test_nothing_known_breaks_nothing(one, framework):
    assert ask(one, Setup(framework=framework)) is None


@pytest.mark.parametrize("one", CONFIG_RULES, ids=lambda one: one.id)
def test_every_rule_describes_itself(one):
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", one.id)
    assert one.stage in STAGES
    assert one.severity in ("stop", "silent", "slow", "info")
    assert one.targets
    assert set(one.targets) <= {"bridge", "megatron-lm", "mcore", "slurm", "env", "te", "advisor"}
    assert one.source
    assert one.versions
    assert one.summary
    assert "{" not in one.summary + one.hint


def test_rules_that_both_families_have_agree_on_severity():
    for id, forms in rules_by_id().items():
        severities = {one.severity for one in forms}
        # One requested FSDP with TP is a plain warning of Megatron-LM and a loss of time in a layout.
        assert len(severities) == 1 or id in {"fsdp-with-tp-discouraged"}, (id, severities)


def test_the_families_share_what_describes_a_rule():
    for one in (RULES[0], CONFIG_RULES[0]):
        assert all(hasattr(one, name) for name in ("id", "severity", "targets", "versions", "source"))


def test_a_rule_of_the_script_is_no_rule_of_bridge():
    values = {"recompute_granularity": "selective", "recompute_method": "uniform"}
    assert ask(BY_ID["selective-recompute-has-no-method"], setup("megatron-lm", **values)) is not None
    assert ask(BY_ID["selective-recompute-has-no-method"], setup("bridge", **values)) is None
    assert ask(BY_ID["selective-method-ignored"], setup("bridge", **values)) is not None


def test_the_finding_stands_where_the_setting_stands():
    hit = ask(BY_ID["fp8-xor-fp4"], setup(fp8="hybrid", fp4="e2m1"))
    assert hit is not None
    assert (hit.file, hit.line) == ("x.py", 3)
    assert hit.message == "fp8 hybrid and fp4 e2m1 exclude each other"


def test_sizes_of_a_row_are_the_columns_of_the_search():
    one = setup(tp=4, pp=4)
    one.gpus = 8
    hit = ask(BY_ID["world-divides-model-grid"], one)
    assert hit is not None
    assert hit.message == "8 GPUs are no multiple of tp 4 x pp 4 x cp 1 = 16"
    assert hit.fix in ("pp=2", "tp=2", "pp=2,tp=4", "pp=4,tp=2")


def test_none_is_known_and_unknown_is_not():
    one = setup(vpp=None)
    assert one.known("vpp")
    assert one.one("vpp")
    assert not one.known("pp")
    assert not one.one("pp")
    assert one.pp == 1
    assert not one.off("sp")
    assert setup(sp=False).off("sp")


@pytest.mark.parametrize("value", [True, "4", None, [4], {"a": 1}, float("nan")])
def test_strange_sizes_count_as_one(value):
    assert setup(tp=value).tp == 1


def test_variables_are_unset_only_where_the_launch_script_is_known():
    one = setup()
    assert not one.unset("NCCL_ALGO")
    one.env_known = True
    assert one.unset("NCCL_ALGO")
    one.env["NCCL_ALGO"] = Value("Ring", "x", 1)
    assert not one.unset("NCCL_ALGO")
    assert one.variable("NCCL_ALGO") == "Ring"


def test_versions_of_packages():
    one = setup()
    assert not one.older("te", 2, 7)
    one.packages["te"] = (2, 6)
    assert one.older("te", 2, 7)
    assert not one.older("te", 2, 6)
    one.packages["te"] = None
    assert one.older("te", 1, 0)


def test_texts_show_values():
    one = setup(tp=2, recompute_modules=["moe", "mlp"])
    assert fill("TP {tp}, {recompute_modules}, {ddp.bucket_size}, {env.X}", one) == "TP 2, [moe, mlp], not set, not set"
    assert full_name("tp") == SHORT["tp"]
    assert full_name("hidden_size") == "model.hidden_size"
    assert full_name("ddp.bucket_size") == "ddp.bucket_size"


def test_every_rule_says_what_is_wrong_and_what_to_do():
    alone = {one.id for one in RULES} - {one.id for one in CONFIG_RULES if one.id not in COLUMNS}
    stated = yaml.safe_load(data.require("presets", "check/layout_rules.yaml").read_text(encoding="utf-8"))["rules"]
    assert set(stated) == alone
    for one in CONFIG_RULES:
        assert len(one.summary.split()) > 2, one.id
        assert one.source
        assert one.versions
        assert one.hint or one.severity == "info", one.id


def test_a_summary_shows_settings_in_brackets():
    assert BY_ID["layer-offload-forbids-pp"].summary == "CPU offloading of layers with PP <pp>"
    assert "it is <CUDA_DEVICE_MAX_CONNECTIONS>" in BY_ID["max-connections-on-hopper"].summary
