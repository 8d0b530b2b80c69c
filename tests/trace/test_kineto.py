"""Reading Kineto and Chrome JSON: forms, damage, and that pieces of any size give the same columns."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest

from advisor.errors import InputError
from advisor.trace import chunks
from advisor.trace.analysis import analyse
from advisor.trace.files import read
from advisor.trace.kineto import read_kineto
from tests.trace.synthetic import GEMM, NCCL, host, kernel, launch, mark, text, write

TRICKY = 'a "quoted\\" name }, { [ \\\\" with ] brackets }'


def events(n=200):
    found = [mark(1, 0, 10 * n)]
    for index in range(n):
        found += [
            host("aten::mm", 10 * index, 5, **{"Input Dims": [[{"a": 1}, {"b": 2}], {"c": [3]}], "note": "}, {"}),
            launch(10 * index + 1, index + 1),
            kernel(10 * index + 2, 6.25, TRICKY if index % 7 == 0 else GEMM, correlation=index + 1),
            {"ph": "f", "id": index, "cat": "ac2g", "ts": 10 * index, "name": "ac2g"},
        ]
    return found


def columns(trace):
    device = trace.device
    names = [trace.names[index] for index in device.name]
    return (device.start.tolist(), device.end.tolist(), names, device.correlation.tolist(), trace.events, trace.marks,
            trace.launches.start.tolist(), trace.host_start.tolist())  # fmt: skip


@pytest.mark.parametrize("size", [64, 97, 300, 1000, 5000, 1 << 20])
@pytest.mark.parametrize("indent", [None, 1])
def test_pieces_of_any_size_give_the_same(tmp_path, monkeypatch, size, indent):
    raw = json.loads(text(events()))
    path = tmp_path / "rank-0.json"
    path.write_text(json.dumps(raw, indent=indent))
    whole = read_kineto(path)
    assert whole.findings == ()
    assert len(whole.device) == 200
    monkeypatch.setattr(chunks, "CHUNK_BYTES", size)
    monkeypatch.setattr(chunks, "_GUESS_BYTES", 80)
    assert columns(read_kineto(path)) == columns(whole)


@pytest.mark.parametrize("size", [50, 1 << 20])
def test_every_byte_where_a_file_may_break_off(tmp_path, monkeypatch, size):
    """All whole events before the break are read, none is invented, and a break is always said."""
    monkeypatch.setattr(chunks, "CHUNK_BYTES", size)
    few = [kernel(10 * index, 5, TRICKY) for index in range(4)]
    raw = text(few)
    path = tmp_path / "rank-0.json"
    begin = raw.index("traceEvents") + len('traceEvents": [')
    ends = []
    at = begin
    for event in few:
        at = raw.index(json.dumps(event), at) + len(json.dumps(event))
        ends.append(at)
    for cut in range(begin, len(raw), 7):
        path.write_text(raw[:cut])
        trace = read_kineto(path)
        assert len(trace.device) == sum(end <= cut for end in ends)
        assert bool(trace.findings) == (cut <= ends[-1])


def test_plain_gzip_array_form_and_byte_order_mark_are_the_same(tmp_path):
    raw = text(events(20))
    forms = {
        "plain.json": raw.encode(),
        "packed.json.gz": gzip.compress(raw.encode()),
        "packed_without_suffix.json": gzip.compress(raw.encode()),
        "mark.json": b"\xef\xbb\xbf" + raw.encode(),
        "array.json": json.dumps(events(20)).encode(),
        "open_array.json": json.dumps(events(20))[:-1].encode(),
    }
    found = []
    for name, content in forms.items():
        (tmp_path / name).write_bytes(content)
        found.append(columns(read_kineto(tmp_path / name)))
    assert all(one == found[0] for one in found)


@pytest.mark.parametrize("size", [64, 1 << 20])
def test_facts_before_and_after_the_events(tmp_path, monkeypatch, size):
    monkeypatch.setattr(chunks, "CHUNK_BYTES", size)
    path = tmp_path / "t.json"
    path.write_text(
        '{"note": "\\"traceEvents\\": [ is only text", "inner": {"traceEvents": [1]}, "traceEvents": ['
        + json.dumps(kernel(1, 2))
        + '], "other": [{"a": 1}, {"b": "]"}, "'
        + "x" * 4000
        + '"], "baseTimeNanoseconds": 1700000000000000000, '
        '"distributedInfo": {"rank": 5, "world_size": 8, "backend": "nccl", '
        '"pg_config": [{"pg_name": "3", "pg_desc": "CONTEXT_PARALLEL_GROUP", "ranks": [4, 5]}]}}'
    )
    trace = read_kineto(path)
    assert (trace.rank, trace.world_size, trace.backend, len(trace.device)) == (5, 8, "nccl", 1)
    assert trace.origin_ns == 1700000000000000000 + 1000
    assert trace.known_groups[0].ranks == (4, 5)


def test_a_kernel_takes_its_group_from_what_c10d_recorded_or_the_job_configured(tmp_path):
    recorded = {"Process Group Name": "3", "Process Group Description": "CONTEXT_PARALLEL_GROUP", "External id": 17,
                "Collective name": "all_gather"}  # fmt: skip
    given = [
        host("record_param_comms", 0, 1, **recorded),
        kernel(5, 5, NCCL, **{"External id": 17}),
        kernel(15, 5, NCCL, **{"Process Group Name": "8"}),
    ]
    configured = [{"pg_name": "8", "pg_desc": "EXPERT_MODEL_PARALLEL_GROUP", "ranks": [0, 1]}]
    analysis = analyse([write(tmp_path / "rank-0.json", given, info={"pg_config": configured})])
    assert set(analysis.mean.kinds) == {"cp", "ep"}


def test_damaged_events_are_dropped_alone_and_counted(tmp_path):
    good = [json.dumps(kernel(10 * index, 5)) for index in range(6)]
    bad = ['{"ph": "X", "cat": "kernel", "name": }', '{"ph": "X", "cat": ["kernel"], "ts": 3}']
    listed = ", ".join([*good[:3], *bad, *good[3:]])
    (tmp_path / "rank-0.json").write_text(f'{{"traceEvents": [{listed}]}}')
    trace = read_kineto(tmp_path / "rank-0.json")
    assert len(trace.device) == 6
    assert any(text.startswith("2 events") for text in trace.findings)


def test_bytes_that_are_no_text_and_numbers_that_are_none(tmp_path):
    odd = json.dumps(kernel(10, 5, "kernel_X")).encode().replace(b"kernel_X", b"kernel_\xff\xfe")
    rate = json.dumps(kernel(20, 5)).encode().replace(b'"device": 0', b'"memory bandwidth (GB/s)": inf, "x": NaN')
    latin = json.dumps(kernel(30, 5)).encode().replace(b'"device": 0', b'"note": "caf\xe9"')
    path = tmp_path / "rank-0.json"
    path.write_bytes(b'{"traceEvents": [' + b", ".join([json.dumps(kernel(0, 5)).encode(), odd, rate, latin]) + b"]}")
    trace = read_kineto(path)
    assert trace.device.start.tolist() == [0, 10_000, 20_000, 30_000]
    assert trace.findings == ()


def test_times_that_make_no_sense(tmp_path):
    few = [kernel(0, 5), kernel(10, -5), kernel(20, 5), {"ph": "X", "cat": "kernel", "name": "k", "ts": 3},
           {"ph": "X", "cat": "kernel", "name": "k", "dur": 3}, kernel(10**25, 5), kernel(5, 1e300), kernel(0, 2**70),
           kernel(-(10**17), 1)]  # fmt: skip
    trace = read_kineto(write(tmp_path / "rank-0.json", few))
    assert trace.device.start.tolist() == [0, 20_000]
    assert any(text.startswith("1 events have a negative duration") for text in trace.findings)
    assert any(text.startswith("6 events have no usable time") for text in trace.findings)


def test_fractions_are_nanoseconds_to_the_nearest(tmp_path):
    trace = read_kineto(write(tmp_path / "rank-0.json", [kernel(4458676522690, 1.005), kernel(4458676522691.655, 2)]))
    assert trace.device.start.tolist() == [0, 1655]
    assert trace.device.end.tolist() == [1005, 3655]


def test_an_event_of_another_day_is_a_stray(tmp_path):
    late = 1_700_000_000_000_000
    few = [kernel(0, 5), *(kernel(late + 10 * index, 5) for index in range(5))]
    (rank,) = analyse([write(tmp_path / "rank-0.json", few)]).ranks
    assert rank.mean.step_s == pytest.approx(45e-6)
    assert any("more than a day" in text for text in rank.findings)


@pytest.mark.parametrize("late", [0, 1_700_000_000_000_000, 2**53 + 1, 2**61])
def test_large_integer_times_are_exact(tmp_path, late):
    few = [kernel(late, 7), kernel(late + 10, 3)]
    trace = read_kineto(write(tmp_path / "rank-0.json", few))
    assert (trace.device.end - trace.device.start).tolist() == [7000, 3000]
    assert int(np.diff(trace.device.start)[0]) == 10_000
    assert trace.origin_ns == late * 1000


def test_two_files_of_a_rank_are_two_pieces_of_its_time(tmp_path):
    first = write(tmp_path / "rank-0_a.json", [mark(1, 0, 100), kernel(10, 30)])
    second = write(tmp_path / "rank-0_b.json.gz", [mark(2, 1000, 100), kernel(1010, 50)])
    (rank,) = analyse([second, first]).ranks
    assert [step.name for step in rank.steps] == ["ProfilerStep#1", "ProfilerStep#2"]
    assert rank.mean.compute_s == pytest.approx(40e-6)
    assert rank.classes["gemm"].calls == 2


def test_the_same_time_of_a_rank_twice_counts_once(tmp_path):
    paths = [write(tmp_path / name, [mark(1, 0, 100), kernel(10, 30)]) for name in ("a.json", "b.json")]
    analysis = analyse(paths)
    assert len(analysis.ranks) == len(analysis.ranks[0].steps) == 1
    assert any("same time of rank 0" in text for text in analysis.findings)


def test_ranks_by_content_then_name_then_order(tmp_path):
    for name in ("x_rank-7.json", "rank_12.json", "plain.json"):
        (tmp_path / name).write_text(json.dumps({"traceEvents": [kernel(0, 5)]}))
    write(tmp_path / "rank-3.json", [kernel(0, 5)], rank=9)
    analysis = analyse([tmp_path])
    assert [rank.rank for rank in analysis.ranks] == [0, 7, 9, 12]
    assert any("plain.json" in text and "counts as rank 0" in text for text in analysis.findings)


BAD = {
    "empty.json": b"",
    "blank.json": b" \n ",
    "binary.json": bytes(range(256)) * 50,
    "other.json": b'{"model": "llama", "layers": [1, 2]}',
    "number.json": b"12",
    "list.json": b"[1, 2, 3]",
    "no_events.json": b'{"traceEvents": []}',
    "null.json": b'{"traceEvents": null}',
    "half_head.json": b'{"schemaVersion": 1, "deviceProp',
    "packed_nothing.json.gz": gzip.compress(b""),
    "broken.json.gz": gzip.compress(text([kernel(0, 1)]).encode())[:15],
    "not_packed.json.gz": b"\x1f\x8bnot gzip at all",
    "database.sqlite": b"SQLite format 3\x00" + b"\x00" * 100,
    "deep.json": b"[" * 100_000,
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_trace_is_one_error(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(BAD[name])
    with pytest.raises(InputError) as caught:
        analyse([path])
    assert name in caught.value.message


def test_a_gzip_file_that_breaks_off_gives_what_it_holds(tmp_path):
    random = np.random.default_rng(0)
    many = [kernel(10 * index, 5, f"k{random.integers(10**9)}") for index in range(3000)]
    whole = gzip.compress(text(many).encode())
    path = tmp_path / "rank-0.json.gz"
    path.write_bytes(whole[: len(whole) // 2])
    (trace,) = read(path)
    assert 500 < len(trace.device) < 3000
    assert any("ends within" in text for text in trace.findings)


def test_an_empty_file_in_a_folder_is_left_out_and_said(tmp_path):
    write(tmp_path / "rank-0.json", [kernel(0, 5)])
    (tmp_path / "rank-1.json").write_bytes(b"")
    analysis = analyse([tmp_path])
    assert [rank.rank for rank in analysis.ranks] == [0]
    assert any("rank-1.json: the file is empty: left out" in text for text in analysis.findings)


def test_folders(tmp_path):
    with pytest.raises(InputError, match="no traces in this folder"):
        analyse([tmp_path])
    with pytest.raises(InputError, match="no such file"):
        analyse([tmp_path / "gone.json"])
    (tmp_path / "config.json").write_text('{"model": 1}')
    with pytest.raises(InputError, match="no trace with anything to measure"):
        analyse([tmp_path])
    (tmp_path / "deep").mkdir()
    write(tmp_path / "deep" / "rank-0.json", [kernel(0, 5)])
    analysis = analyse([tmp_path])
    assert len(analysis.ranks) == 1
    assert any("config.json" in text for text in analysis.findings)
