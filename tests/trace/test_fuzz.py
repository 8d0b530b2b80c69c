"""Damaged files: figures with what was left out said, or one error; never a fault, never a number that is none."""

from __future__ import annotations

import gzip
import json
import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from advisor.errors import InputError
from advisor.trace import chunks
from advisor.trace.analysis import analyse
from advisor.trace.annotate import write_annotated
from advisor.trace.record import analysis_record
from tests.trace.synthetic import GEMM, collective, host, kernel, launch, mark, nsys, text, write

EVENTS = [
    mark(1, 0, 100), launch(1, 1), kernel(10, 50, correlation=1), collective(40, 40, "tp"), host("aten::mm", 0, 9),
    kernel(85, 5, "Memcpy HtoD", cat="gpu_memcpy"), host("gloo:all_reduce", 5, 5, cat="user_annotation"),
]  # fmt: skip
RAW = text(EVENTS, baseTimeNanoseconds=17).encode()
CHANGE = st.tuples(
    st.sampled_from(["flip", "cut", "insert", "drop", "repeat"]), st.integers(0, 10**6), st.binary(max_size=6)
)
RELAXED = settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def damaged(raw, changes):
    found = bytearray(raw)
    for what, where, content in changes:
        at = where % (len(found) + 1)
        if what == "flip" and at < len(found):
            found[at] ^= 1 << (where % 8)
        elif what == "cut":
            del found[max(at, len(found) // 3) :]
        elif what == "insert":
            found[at:at] = content
        elif what == "drop":
            del found[at : at + len(content)]
        elif what == "repeat":
            found[at:at] = found[at : at + 40]
    return bytes(found)


def check(path):
    try:
        analysis = analyse([path])
        record = analysis_record(analysis)
    except InputError as error:
        if path.name not in error.message:
            pytest.fail(f"the error names no file: {error}")
        return

    def walk(value):
        if isinstance(value, dict):
            for entry in value.values():
                walk(entry)
        elif isinstance(value, list):
            for entry in value:
                walk(entry)
        elif isinstance(value, float):
            assert math.isfinite(value)

    walk(record)
    out = path.with_name("annotated.json")
    write_annotated(analysis, out)
    assert json.loads(out.read_bytes())["traceEvents"]
    json.dumps(record, allow_nan=False)
    for rank in record["ranks"]:
        for step in rank["steps"]:
            parts = step["compute_s"] + step["exposed_s"] + step["copies_s"] + step["idle_s"]
            assert step["step_s"] == pytest.approx(parts, rel=1e-6, abs=1e-9)
            assert 0 <= step["hidden_s"] <= step["communication_s"]
            assert 0 <= step["host_bound_s"] <= step["idle_s"] + 1e-12


@RELAXED
@given(st.lists(CHANGE, min_size=1, max_size=4), st.booleans(), st.sampled_from([60, 1 << 22]))
def test_damaged_json(tmp_path, changes, packed, size):
    path = tmp_path / "trace.json"
    raw = gzip.compress(RAW, 1) if packed else RAW
    path.write_bytes(damaged(raw, changes))
    before, chunks.CHUNK_BYTES = chunks.CHUNK_BYTES, size
    try:
        check(path)
    finally:
        chunks.CHUNK_BYTES = before


@settings(RELAXED, max_examples=100)
@given(st.lists(CHANGE, min_size=1, max_size=4))
def test_damaged_databases(tmp_path_factory, changes):
    folder = tmp_path_factory.mktemp("nsys")
    kernels = [(0, 50, GEMM, 1, 0, 7), (20, 90, "ncclDevKernel_AllReduce", 2, 0, 8)]
    path = nsys(folder / "trace.sqlite", kernels, [(95, 99, 1, 3, 0, 7)], [(0, 1, 1)], [(0, 100, "step 1")])
    path.write_bytes(damaged(path.read_bytes(), changes))
    check(path)


VALUE = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=5), st.just([1]),
    st.just({"a": 1}),
    st.sampled_from(["X", "kernel", "user_annotation", "cuda_runtime", "ProfilerStep#1", "gloo:send", "[0, 1]"]),
)  # fmt: skip
EVENT = st.dictionaries(st.sampled_from(["ph", "cat", "name", "pid", "tid", "ts", "dur", "args"]), VALUE)
ARGS = st.dictionaries(
    st.sampled_from(["stream", "correlation", "External id", "Collective name", "Process Group Name",
                     "Process Group Description", "Process Group Ranks"]),
    VALUE,
)  # fmt: skip


@RELAXED
@given(st.lists(st.tuples(st.integers(0, len(EVENTS) - 1), EVENT, ARGS), min_size=1, max_size=8), EVENT)
def test_any_values_in_any_field(tmp_path, changes, facts):
    events = list(EVENTS)
    for index, fields, args in changes:
        event = {**events[index], **fields}
        if isinstance(event.get("args"), dict):
            event["args"] = {**event["args"], **args}
        events.append(event)
    check(write(tmp_path / "trace.json", events, info=facts, pg_config=facts))


def test_a_folder_of_everything(tmp_path, cli):
    for index in range(6):
        changes = [("flip", 977 * index + 13 * k, b"") for k in range(index)]
        (tmp_path / f"rank-{index}.json").write_bytes(damaged(RAW, changes))
    ran = cli("trace", str(tmp_path))
    assert ran.code in {0, 2}
    assert "nan" not in ran.out.lower()
