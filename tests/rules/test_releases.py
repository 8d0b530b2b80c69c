"""Releases of rules: what `versions` says, and what a check of one release leaves out."""

from __future__ import annotations

import pytest

from advisor.check import check
from advisor.errors import InputError
from advisor.rules.lint import CONFIG_RULES
from advisor.rules.lint.releases import hold

SP_ALONE = "model.sequence_parallel=true\nmodel.tensor_model_parallel_size=1\n"


@pytest.mark.parametrize(
    ("versions", "core", "holds"),
    [
        ("megatron-core >=0.17", (0, 16), False),
        ("megatron-core >=0.17", (0, 17), True),
        ("megatron-core 0.16 (what later ones do)", (0, 17), False),
        ("megatron-core 0.16-0.19 (flex, too)", (0, 19), True),
        ("megatron-core 0.16-0.19", (0, 20), False),
        ("bridge >=0.6, megatron-core >=0.17", (0, 19), True),
        ("bridge >=0.6, megatron-core >=0.17", (0, 16), False),
        ("torch <2.11", (0, 16), True),
    ],
)
def test_ranges(versions, core, holds):
    assert hold(versions, {"megatron-core": core}) is holds


@pytest.mark.parametrize("versions", ["", "some day", "bridge >= 0.6", "bridge >=0.6 and so on"])
def test_other_texts_are_refused(versions):
    with pytest.raises(ValueError, match="no list of products"):
        hold(versions, {})


def test_every_rule_says_it_in_this_form():
    assert all(hold(one.versions, {}) for one in CONFIG_RULES)


def of(tmp_path, text, **asked):
    path = tmp_path / "overrides.txt"
    path.write_text(text, encoding="utf-8")
    return {one.rule: one for one in check([path], target="bridge", **asked).findings}


def test_a_check_of_one_release_asks_its_rules_only(tmp_path):
    old, new = of(tmp_path, SP_ALONE, version="0.3.1"), of(tmp_path, SP_ALONE, version="0.6")
    assert old["sp-needs-tp"].severity == "stop"
    assert new["sp-off-without-tp"].severity == "silent"
    assert not {"sp-off-without-tp"} & old.keys()
    assert not {"sp-needs-tp"} & new.keys()


def test_without_a_release_a_message_says_whose_rule_it_is(tmp_path):
    assert of(tmp_path, SP_ALONE)["sp-needs-tp"].message.endswith("[megatron-core >=0.16, bridge <0.6]")
    assert "[" not in of(tmp_path, SP_ALONE, version="0.3")["sp-needs-tp"].message


def test_expert_tensor_parallelism_follows_the_release(tmp_path):
    text = "model.tensor_model_parallel_size=2\nmodel.expert_model_parallel_size=8\nmodel.num_moe_experts=8\n"
    asked = {"gpus": 8, "system": "dgx-h100"}
    assert "expert-grid-divides-world" in of(tmp_path, text, version="0.3", **asked)
    assert "expert-grid-divides-world" not in of(tmp_path, text, version="0.6", **asked)


def test_an_unknown_release_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"0\.9 is not known"):
        of(tmp_path, SP_ALONE, version="0.9")


def test_a_field_of_another_release_is_no_field(tmp_path):
    found = of(tmp_path, "model.cuda_graph_modules=[attn]\n", version="0.3")["unknown-field"]
    assert found.severity == "stop"
    assert "Bridge 0.6 only" in found.message
    assert "unknown-field" not in of(tmp_path, "model.cuda_graph_modules=[attn]\n", version="0.6")
    assert "unknown-field" not in of(tmp_path, "model.cuda_graph_modules=[attn]\n")


def test_the_same_request_is_judged_by_whose_rule_it_is(tmp_path):
    script = tmp_path / "flags.txt"
    script.write_text("--num-layers 8 --tensor-model-parallel-size 1 --sequence-parallel --lr 1e-4 --min-lr 1e-3\n")
    megatron = {one.rule: one.severity for one in check([script], target="megatron-lm").findings}
    bridge = of(tmp_path, SP_ALONE + "optimizer.lr=1e-4\noptimizer.min_lr=1e-3\n", version="0.3")
    assert megatron["sp-off-without-tp"] == "silent"
    assert bridge["sp-needs-tp"].severity == "stop"
    assert megatron["min-lr-below-lr"] == "stop"
    assert "min-lr-below-lr" not in bridge, "a rule that only Megatron-LM's script enforces"
