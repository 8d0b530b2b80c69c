"""Hidden communication of a trial: the promise of its layout beside what its traces show."""

from __future__ import annotations

import json

import pytest

import advisor
from advisor.configure.chosen import read_plan
from advisor.trial.record import hiding
from tests.trace.synthetic import collective, kernel, write


def test_the_promise_stands_beside_the_trace(tmp_path):
    found = advisor.estimate("qwen3-8b", gpus=8, tp=2, pp=2, vpp=2, gbs=32)
    (tmp_path / "plan.json").write_text(json.dumps(found.to_dict()))
    candidate = read_plan(tmp_path / "plan.json").candidate
    assert hiding(tmp_path, candidate) == []
    (tmp_path / "traces").mkdir()
    events = [kernel(0, 100), collective(70, 50, "tp"), collective(200, 40, "pp")]
    write(tmp_path / "traces" / "rank-0.json.gz", events)
    by_kind = {one["kind"]: one for one in hiding(tmp_path, candidate)}
    assert (by_kind["tp"]["measured_share"], by_kind["pp"]["measured_share"]) == (pytest.approx(0.6), 0.0)
    for kind, one in by_kind.items():
        hidden, exposed = candidate.step.hidden_s[kind], candidate.step.exposed_s[kind]
        assert one["predicted_share"] == pytest.approx(hidden / (hidden + exposed))
    assert by_kind["dp"]["measured_share"] is None
    assert by_kind["dp"]["verdict"] is None
    assert "no communication" in by_kind["dp"]["reason"]
