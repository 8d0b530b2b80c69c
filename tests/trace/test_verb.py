"""`advisor trace`: pages, JSON against its schema, verdicts on a plan, comparison, annotated traces, bad input."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import jsonschema
import pytest

from advisor.trace.analysis import analyse
from advisor.trace.kineto import read_kineto
from advisor.trace.overlap import measure
from advisor.trace.verdict import INEFFECTIVE_SHARE, TOLERANCE
from tests.trace.synthetic import GEMM, collective, kernel, launch, mark, nsys, plan_of, write

SCHEMA = json.loads((Path(__file__).parents[2] / "presets" / "schemas" / "trace.schema.json").read_text())


def step(at, hidden, exposed, kind="dp"):
    """200 us: compute from 10 to 110, beside it `hidden` us of a collective, and `exposed` us behind it."""
    return [
        launch(at + 1, 10 * at + 1),
        kernel(at + 10, 100, correlation=10 * at + 1),
        collective(at + 110 - hidden, hidden + exposed, kind),
        kernel(at + 195, 5, "void my_own_kernel(int)"),
    ]


@pytest.fixture
def trace(tmp_path):
    return write(tmp_path / "rank-0.json", [mark(1, 0, 200), mark(2, 200, 200), *step(0, 60, 40), *step(200, 60, 40)])


def plan(path, hidden=0.0, exposed=0.0, kind="dp", step_s=0.0002):
    zero = dict.fromkeys(("tp", "cp", "pp", "dp", "ep"), 0.0)
    step = {"step_s": step_s, "hidden_s": {**zero, kind: hidden}, "exposed_s": {**zero, kind: exposed}}
    path.write_text(json.dumps(plan_of(step)))
    return str(path)


def test_page(cli, trace):
    ran = cli("trace", str(trace), "--verbose")
    assert ran.code == 0
    assert "1 rank (of 2), 2 steps, GPU, selection steps" in ran.out
    assert "60.0 % of communication is hidden" in ran.out
    assert "ProfilerStep#2" in ran.out
    assert "void my_own_kernel(int)" in ran.out, "unknown kernels are shown"
    assert max(map(len, ran.out.splitlines())) <= 120


@pytest.mark.parametrize("form", ["json", "csv", "md", "table"])
def test_formats(cli, trace, form):
    ran = cli("trace", str(trace), "--format", form)
    assert ran.code == 0
    assert "nan" not in ran.out.lower()
    if form == "csv":
        assert ran.out.splitlines()[0].startswith("rank,name,step_s,compute_s")
        assert len(ran.out.splitlines()) == 3


def test_json_is_as_documented(cli, trace, tmp_path):
    other = write(tmp_path / "other.json", [*step(0, 80, 20, "tp"), collective(300, 10, "ep")])
    promise = plan(tmp_path / "plan.json", hidden=6e-5, exposed=4e-5)
    args = ("trace", str(trace), "--format", "json", "--compare", str(other), "--plan", promise)
    record = json.loads(cli(*args).out)
    jsonschema.validate(record, SCHEMA)
    assert record["mean"]["kinds"]["dp"]["hidden_share"] == pytest.approx(0.6)
    changed = {change["name"]: change for change in record["compared"]["changes"]}
    assert changed["tp hidden"]["here_s"] == 0
    assert changed["tp hidden"]["other_s"] == pytest.approx(8e-5)
    assert record["ranks"][0]["unknown_kernels"] == [
        {"name": "void my_own_kernel(int)", "role": "compute", "calls": 2, "kernel_s": pytest.approx(1e-5)}
    ]


@pytest.mark.parametrize(
    ("hidden", "exposed", "verdict", "code"),
    [
        (6e-5, 4e-5, "confirmed", 0), (6.9e-5, 3.1e-5, "confirmed", 0), (1e-5, 9e-5, "confirmed", 0),
        (8e-5, 2e-5, "less than predicted", 1), (0.0, 1e-4, None, 0), (0.0, 0.0, None, 0),
    ],
)  # fmt: skip
def test_verdicts(cli, trace, tmp_path, hidden, exposed, verdict, code):
    ran = cli("trace", str(trace), "--plan", plan(tmp_path / "plan.json", hidden, exposed), "--format", "json")
    assert ran.code == code
    (kind,) = json.loads(ran.out)["prediction"]["kinds"]
    assert kind["verdict"] == verdict
    assert kind["measured_hidden_share"] == pytest.approx(0.6)
    assert bool(kind["reason"]) == (verdict != "confirmed")


def test_not_effective_names_what_to_change(cli, tmp_path):
    trace = write(tmp_path / "rank-0.json", step(0, 5, 80, "ep"))
    ran = cli("trace", str(trace), "--plan", plan(tmp_path / "plan.json", 5e-5, 5e-5, "ep"))
    assert ran.code == 1
    assert "not effective" in ran.out
    assert "overlap_moe_expert_parallel_comm" in " ".join(ran.out.split())


def test_how_little_is_not_effective_goes_by_what_was_promised(cli, tmp_path):
    """A fifth is hidden: less than half of one half, and far less than a quarter of nearly all."""
    trace = str(write(tmp_path / "rank-0.json", step(0, 20, 80)))
    for hidden, exposed, verdict in ((5e-5, 5e-5, "less than predicted"), (9e-5, 1e-5, "not effective")):
        promise = plan(tmp_path / "plan.json", hidden, exposed)
        (kind,) = json.loads(cli("trace", trace, "--plan", promise, "--format", "json").out)["prediction"]["kinds"]
        assert kind["verdict"] == verdict


def test_expert_data_parallel_counts_within_dp(cli, tmp_path):
    trace = write(tmp_path / "rank-0.json", [*step(0, 60, 40, "dp"), *step(200, 0, 80, "edp")])
    promise = plan(tmp_path / "plan.json", 6e-5, 12e-5)
    (kind,) = json.loads(cli("trace", str(trace), "--plan", promise, "--format", "json").out)["prediction"]["kinds"]
    assert (kind["measured_hidden_s"], kind["measured_exposed_s"]) == (pytest.approx(6e-5), pytest.approx(12e-5))


def test_a_real_plan(cli, trace, tmp_path):
    path = tmp_path / "plan.json"
    assert cli("plan", "--model", "qwen3-8b", "--gpus", "8", "--top", "2", "--out", str(path)).code == 0
    record = json.loads(cli("trace", str(trace), "--plan", str(path), "--candidate", "2", "--format", "json").out)
    best = json.loads(path.read_text())["candidates"][1]
    assert record["prediction"]["predicted_step_s"] == best["step"]["step_s"]
    estimate = tmp_path / "estimate.json"
    cli("estimate", "--model", "qwen3-8b", "--gpus", "8", "--tp", "2", "--out", str(estimate))
    assert cli("trace", str(trace), "--plan", str(estimate)).code in {0, 1}


@pytest.mark.parametrize(
    "content",
    [
        "", "[]", "{}", "nonsense", '{"schema_version": 1, "request": {}, "candidates": []}', '{"candidate": null}',
        *(json.dumps({**plan_of({"step_s": 1}), "schema_version": version}) for version in (None, 0, 2)),
        *(json.dumps(plan_of(step)) for step in (
            None, 3, {"step_s": "1"}, {"step_s": 1, "hidden_s": []}, {"step_s": 1, "hidden_s": {"tp": -1}},
            {"step_s": float("nan")},
        )),
    ],
)  # fmt: skip
def test_what_is_no_plan_is_one_error(cli, trace, tmp_path, content):
    (tmp_path / "plan.json").write_text(content)
    ran = cli("trace", str(trace), "--plan", str(tmp_path / "plan.json"))
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.count("error: ") == 1
    assert "plan.json" in ran.err


@pytest.mark.parametrize("name", ["out.json", "out.json.gz"])
def test_annotated_trace_holds_all_events_and_the_tracks(cli, trace, tmp_path, name):
    out = tmp_path / name
    ran = cli("trace", str(trace), "--out", str(out))
    assert ran.code == 0
    assert "perfetto" in ran.err
    raw = gzip.decompress(out.read_bytes()) if name.endswith("gz") else out.read_bytes()
    found = json.loads(raw)["traceEvents"]
    original = json.loads(trace.read_text())["traceEvents"]
    assert found[: len(original)] == original
    tracks = [event for event in found if event.get("cat") == "advisor"]
    lengths = {}
    for event in tracks:
        lengths[event["tid"]] = lengths.get(event["tid"], 0) + event["dur"]
    assert lengths["dp hidden"] == pytest.approx(120)
    assert lengths["dp exposed"] == pytest.approx(80)
    assert lengths["compute"] == pytest.approx(210)
    assert {event["name"] for event in tracks if event["tid"] == "steps"} == {"ProfilerStep#1", "ProfilerStep#2"}
    assert os.listdir(tmp_path).count(name) == 1
    assert not [entry for entry in os.listdir(tmp_path) if entry.startswith(".")]
    again = measure(read_kineto(out)).seconds(measure(read_kineto(out)).hidden).sum()
    assert again == pytest.approx(120e-6), "an annotated trace is a trace"


def test_annotated_trace_of_several_ranks_is_on_one_clock(cli, tmp_path):
    ends = [1000 * index + 500 for index in range(1, 8)]
    for rank, offset in enumerate((0, 5_000_000)):
        events = [collective(offset + end - 100, 100, "dp") for end in ends]
        write(tmp_path / f"rank-{rank}.json", [kernel(offset, 50), *events], rank=rank)
    out = tmp_path / "all.json"
    assert cli("trace", str(tmp_path), "--out", str(out)).code == 0
    found = json.loads(out.read_text())["traceEvents"]
    kernels = [event for event in found if event.get("cat") == "kernel"]
    begins = {rank: [e["ts"] for e in kernels if e["pid"] == f"rank {rank}: 0"] for rank in (0, 1)}
    assert begins[0] == pytest.approx(begins[1])
    exposed = {}
    for event in found:
        if event.get("tid") == "dp exposed":
            exposed.setdefault(event["pid"], []).append(event["ts"])
    for rank in (0, 1):
        assert exposed[f"advisor: rank {rank}"] == pytest.approx(begins[rank][1:])


def test_annotated_trace_of_an_nsys_export(cli, tmp_path):
    database = nsys(
        tmp_path / "t.sqlite", [(0, 10_000, GEMM, 1, 0, 7), (5_000, 9_000, "ncclDevKernel_AllReduce", 2, 0, 8)]
    )
    out = tmp_path / "out.json"
    assert cli("trace", str(database), "--out", str(out)).code == 0
    found = json.loads(out.read_text())["traceEvents"]
    assert {event["name"] for event in found if event["ph"] == "X"} >= {GEMM, "other hidden", "compute"}


def test_a_file_that_cannot_be_written_leaves_the_old_one(cli, trace, tmp_path, monkeypatch):
    out = tmp_path / "out.json"
    out.write_text("old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    ran = cli("trace", str(trace), "--out", str(out))
    assert ran.code == 2
    assert "No space left" in ran.err
    assert out.read_text() == "old"
    assert not [entry for entry in os.listdir(tmp_path) if entry.startswith(".")]


@pytest.mark.parametrize(
    "args",
    [
        [], ["nowhere.json"], [""], ["{trace}", "--plan", "nowhere"], ["{trace}", "--compare", "nowhere"],
        ["{trace}", "--selection", "al"], ["{trace}", "--candidate", "0"], ["{trace}", "--out", "x.txt"],
        ["{trace}", "--out", "nowhere/x.json"], ["a" * 5000],
    ],
)  # fmt: skip
def test_bad_words_are_one_error(cli, trace, args):
    ran = cli("trace", *(word.format(trace=trace) for word in args))
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.count("error: ") == 1


def test_selections(cli, trace):
    for selection in ("all", "launched", "launched-before-last-step"):
        record = json.loads(cli("trace", str(trace), "--selection", selection, "--format", "json").out)
        jsonschema.validate(record, SCHEMA)
        assert [step["name"] for step in record["ranks"][0]["steps"]] == ["whole trace"]
    assert record["mean"]["compute_s"] == pytest.approx(1e-4), "one kernel was launched before the last step"


def test_order_of_files_changes_nothing(tmp_path):
    for rank in range(3):
        write(tmp_path / f"rank-{rank}.json", step(0, 10 * rank, 40), rank=rank)
    files = sorted(tmp_path.iterdir())
    assert analyse(files).mean == analyse(files[::-1]).mean


@pytest.mark.parametrize("verb", ["trace", "trial"])
def test_help_states_what_a_verdict_means(cli, verb):
    said = " ".join(cli(verb, "--help").out.split())
    assert f"confirmed within {100 * TOLERANCE:.0f} points of" in said
    assert INEFFECTIVE_SHARE == 1 / 4
    assert "not effective below a quarter of it" in said
