"""What a page says of anchors: how many count, and that none does."""

from __future__ import annotations

import pytest

from advisor import api

HEAD = "id,model,system,gpus,precision,seq_len,gbs,mbs,tp,pp,vpp,cp,ep,recompute,step_s\n"
OPTIONS = {"system": "dgx-h100", "gbs": 128, "tp": 4, "pp": 4, "vpp": 5}


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "own.csv"
    path.write_text(
        HEAD
        + "mine-1,llama3-70b,dgx-h100,64,bf16,4096,128,1,4,4,5,1,1,none,9.9\n"
        + "mine-2,llama3-70b,dgx-h100,64,bf16,4096,128,1,8,4,5,1,1,none,10.4\n"
    )
    return path


def said(answer):
    return {one.rule: one for one in answer.findings if one.rule.startswith("anchor")}


def test_an_anchor_says_by_how_much_it_changes_the_step(own):
    plain = api.estimate("llama3-70b", 64, **OPTIONS)
    seen = api.estimate("llama3-70b", 64, anchor=str(own), **OPTIONS)
    (one,) = said(seen).values()
    assert (one.rule, one.severity) == ("anchored", "info")
    more = seen.candidate.step.step_s / plain.candidate.step.step_s - 1
    assert more > 0.01
    assert f"step {more:+.1%}" in one.message
    assert "2 of 2" in one.message
    assert "mine-1" in one.message
    assert said(plain) == {}
    assert one in seen.candidate.findings


def test_an_anchor_of_another_model_is_no_silent_default(own):
    options = {"system": "dgx-h100", "gbs": 128}
    seen, plain = (api.estimate("llama3-8b", 8, **options, **more) for more in ({"anchor": str(own)}, {}))
    (one,) = said(seen).values()
    assert (one.rule, one.severity) == ("anchor-of-something-else", "slow")
    assert "llama3-8b" in one.fix
    assert seen.candidate.step.step_s == plain.candidate.step.step_s


def test_the_best_layout_of_a_plan_carries_it(own):
    found = api.plan("llama3-70b", 64, anchor=str(own), system="dgx-h100", gbs=128, fix="tp=4,pp=4", top=3)
    assert "anchored" in said(found.best)
    assert not said(found.candidates[1])
