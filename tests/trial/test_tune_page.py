"""The page of a study, and its JSON against the schema."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

pytest.importorskip("optuna")
pytest.importorskip("psutil")

from advisor.cli.pages.tune import tune_document
from advisor.trial.study import contenders, finished, open_study, tune
from tests.trial.test_study import make_space, proportional, record

pytestmark = pytest.mark.real

SCHEMA = json.loads((Path(__file__).parents[2] / "presets" / "schemas" / "tune.schema.json").read_text())


def document_of(space, trials: int, run):
    study = open_study("s", None, space.pool, 0)
    list(tune(study, space, trials, run))
    fresh = [trial.number for trial in finished(study)]
    return tune_document(study, space, fresh, contenders(study, space), Path("trials"))


def test_trials_come_fastest_first_with_the_knobs_that_were_turned(tmp_path):
    space = make_space(tmp_path)

    def run(trial):
        gain = 1.1 if trial.job["ddp"].get("bucket_size") else 1.0
        return record(trial, None, "oom") if trial is space.pool[1] else proportional(trial, 0.5 * gain)

    found = document_of(space, 40, run).record
    jsonschema.validate(found, SCHEMA)
    rates = [row["tokens_per_s_per_gpu"] or 0.0 for row in found["trials"]]
    assert rates == sorted(rates, reverse=True)
    assert found["best"] == found["trials"][0]
    assert found["best"]["knobs"]["bucket_size"] > 0
    plain = [row for row in found["trials"] if not row["knobs"]]
    for row in plain:
        predicted = space.pool[row["candidate"] - 1].predicted.tokens_per_s_per_gpu
        assert row["predicted_tokens_per_s_per_gpu"] == pytest.approx(predicted)
    assert [row["outcome"] for row in found["trials"]].count("oom") == 1


def test_a_study_without_a_measurement_says_so(tmp_path):
    space = make_space(tmp_path)
    document = document_of(space, 3, lambda trial: record(trial, None, "oom"))
    jsonschema.validate(document.record, SCHEMA)
    assert document.record["best"] is None
    assert any("nothing could be measured" in getattr(block, "text", "") for block in document.blocks)
