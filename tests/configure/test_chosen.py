"""A plan read back: what every reader of its JSON refuses, and in the same words."""

from __future__ import annotations

import json
import os

import pytest

import advisor
from advisor.configure.chosen import read_plan
from advisor.errors import InputError
from advisor.spec.load.plan_file import entry_of, read_record
from advisor.trace.verdict import read_promise


@pytest.fixture(scope="module")
def plan():
    return advisor.plan("qwen3-8b", gpus=8, top=2).to_dict()


def written(path, record):
    path.write_text(record if isinstance(record, str) else json.dumps(record))
    return path


def test_a_plan_is_read_as_it_was_written(tmp_path, plan):
    path = written(tmp_path / "plan.json", plan)
    for rank in (1, 2):
        chosen, entry = read_plan(path, rank), entry_of(read_record(path), rank, str(path))
        assert entry == plan["candidates"][rank - 1]
        assert chosen.layout.tp == entry["layout"]["tp"]
        assert read_promise(path, rank).step_s == entry["step"]["step_s"] == pytest.approx(chosen.step.step_s)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ("", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("\x00\xff", "is not JSON"),
        ("[]", "neither a plan nor an estimate"),
        ('{"request": 3}', "neither a plan nor an estimate"),
        ({"schema_version": 2}, "is of schema version 2, this version reads 1"),
        ({"schema_version": None}, "is of schema version None"),
        ({"candidates": []}, "holds no layout"),
        ({"candidates": None, "candidate": None}, "holds no layout"),
        ({"candidates": [{}]}, "its layout 1 has no layout"),
        ({"candidates": [{"layout": {}}]}, "its layout 1 has no knobs"),
    ],
)
def test_one_set_of_checks_for_every_reader(tmp_path, plan, cli, record, message):
    path = written(tmp_path / "plan.json", record if isinstance(record, str) else {**plan, **record})
    for read in (read_plan, read_promise):
        with pytest.raises(InputError, match=message):
            read(path)
    log = written(tmp_path / "job.log", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n")
    ran = cli("diagnose", str(log), "--plan", str(path))
    assert (ran.code, message in " ".join(ran.err.split())) == (2, True), ran.err


@pytest.mark.parametrize(
    ("layout", "knobs", "message"),
    [
        ({"tp": 0}, {}, "tp=0 is not a whole number"),
        ({"mbs": 1.5}, {}, "mbs=1.5 is not a whole number"),
        ({"pp": "two"}, {}, "pp='two' is not a whole number"),
        ({"tp": 3}, {}, "is for 8 GPUs, which the sizes of its layout do not divide: tp 3"),
        ({"ep": 3}, {}, "which the sizes of its layout do not divide"),
        ({}, {"warp": 9}, "sets warp, which this version does not know"),
        ({}, {"dispatcher": "telepathy"}, "telepathy"),
    ],
)
def test_what_would_be_changed_or_dropped_without_a_word_is_refused(tmp_path, plan, layout, knobs, message):
    first = plan["candidates"][0]
    changed = {**first, "layout": first["layout"] | layout, "knobs": first["knobs"] | knobs}
    path = written(tmp_path / "plan.json", {**plan, "candidates": [changed]})
    with pytest.raises(InputError, match=message):
        read_plan(path)


def test_a_pipe_nobody_writes_to_is_refused_at_once(tmp_path):
    pipe = tmp_path / "plan.json"
    os.mkfifo(pipe)
    with pytest.raises(InputError, match="is a named pipe, not a plan"):
        read_record(pipe)
    with pytest.raises(InputError, match="is a directory, not a plan"):
        read_record(tmp_path)
