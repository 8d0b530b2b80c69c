"""Records survive: lines cut off, several writers, attempts beside each other."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from advisor.errors import InputError
from advisor.trial.measured import read_measured
from advisor.trial.record import problem_of
from advisor.trial.store import LINES, Store

ROOT = Path(__file__).parents[2]


def test_records_come_back_in_order_and_the_newest_counts(tmp_path):
    store = Store(tmp_path / "trials")
    for key, value in (("a", 1), ("b", 2), ("a", 3)):
        store.append({"key": key, "value": value})
    assert [one["value"] for one in store.records()] == [1, 2, 3]
    assert store.newest()["a"]["value"] == 3


def test_a_line_cut_off_loses_only_itself(tmp_path):
    store = Store(tmp_path)
    store.append({"key": "a"})
    with (tmp_path / LINES).open("a") as file:
        file.write('{"key": "b", "val')
    store.append({"key": "c"})
    assert [one["key"] for one in store.records()] == ["a", "c"]


def test_nan_never_reaches_the_file(tmp_path):
    store = Store(tmp_path)
    with pytest.raises(ValueError, match="JSON"):
        store.append({"key": "a", "loss": float("nan")})
    assert store.records() == []


def test_attempts_are_numbered(tmp_path):
    store = Store(tmp_path)
    assert [store.attempt("tp2").name for _ in range(3)] == ["1", "2", "3"]


def test_writers_beside_each_other_and_killed_ones_leave_whole_lines(tmp_path):
    code = (
        "import sys; from pathlib import Path; from advisor.trial.store import Store; store = Store(Path(sys.argv[1]));"
        "[store.append({'key': f'{sys.argv[2]}-{n}', 'pad': 'x' * 5000}) for n in range(100_000)]"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path), name], cwd=ROOT) for name in "ab"]
    lines = tmp_path / LINES
    while not lines.exists() or lines.stat().st_size < 200_000:
        assert all(writer.poll() is None for writer in writers)
    for writer in writers:
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
    whole = lines.read_text().splitlines()
    for line in whole[:-1]:
        assert set(json.loads(line)) == {"key", "pad"}
    for name in "ab":
        numbers = [int(one["key"][2:]) for one in Store(tmp_path).records() if one["key"].startswith(name)]
        assert numbers == list(range(len(numbers)))


def test_a_file_of_no_text_and_a_nested_line_lose_only_themselves(tmp_path):
    store = Store(tmp_path)
    store.append({"key": "a"})
    with (tmp_path / LINES).open("ab") as file:
        file.write(b"\xff\xfe{}\n" + b"[" * 100_000 + b"\n")
    store.append({"key": "b"})
    assert [one["key"] for one in store.records()] == ["a", "b"]


def test_a_record_is_written_whole_or_not_at_all_where_space_ends(tmp_path):
    """The limit on the size of a file lets the first record in whole, and of the second a part."""
    code = (
        "import resource, sys; from pathlib import Path; from advisor.errors import InputError;"
        "from advisor.trial.store import Store; store = Store(Path(sys.argv[1]));"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000));"
        "store.append({'key': 'a', 'pad': 'x' * 4000})\n"
        "try: store.append({'key': 'b', 'pad': 'x' * 4000})\n"
        "except InputError as problem: print(problem)"
    )
    words = [sys.executable, "-c", code, str(tmp_path)]
    ran = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "trials.jsonl: File too large" in ran.stdout, ran.stderr
    assert "name a folder with room" in ran.stdout
    assert [one["key"] for one in Store(tmp_path).records()] == ["a"]
    assert (tmp_path / LINES).read_bytes().count(b"\n") == 1
    assert (tmp_path / LINES).read_bytes().endswith(b"}\n")
    Store(tmp_path).append({"key": "c"})
    assert [one["key"] for one in Store(tmp_path).records()] == ["a", "c"]


def test_what_stands_in_the_way_of_a_record_or_an_attempt_is_named(tmp_path):
    (tmp_path / "tp2").write_text("")
    with pytest.raises(InputError, match=r"tp2/1: Not a directory"):
        Store(tmp_path).attempt("tp2")
    (tmp_path / LINES).mkdir()
    for act in (Store(tmp_path).records, lambda: Store(tmp_path).append({"key": "a"})):
        with pytest.raises(InputError, match=r"trials\.jsonl: Is a directory"):
            act()


def test_a_folder_that_cannot_be_made_is_an_input_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file"):
        Store(tmp_path / "file" / "trials")


GOOD = {
    "schema_version": 1, "name": "tp2-mbs1", "key": "0" * 64, "outcome": "measured", "device": "cpu", "folder": "x",
    "request": {}, "candidate": {}, "predicted": {}, "measured": {"step_s": 0.5}, "failure": None, "proxy": None,
    "environment": {"torch": "2.13"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"schema_version": 2}, "of schema version 2, this version reads 1"),
        ({"name": None}, "name is 'None'"),
        ({"environment": "host"}, "environment is 'host'"),
        ({"measured": {"step_s": -1.0}}, "measured.step_s is '-1.0'"),
        ({"measured": {"step_s": float("inf")}}, "measured.step_s is 'inf'"),
        ({"measured": {}}, "measured.step_s is 'None'"),
        ({"proxy": {}}, "proxy.layers is 'None'"),
    ],
)
def test_a_record_that_cannot_be_used_is_left_out_with_the_reason(tmp_path, change, problem):
    assert problem_of(GOOD) == ""
    assert problem_of({**GOOD, **change}) == problem
    (tmp_path / LINES).write_text(json.dumps({**GOOD, **change}) + "\n")
    with pytest.raises(InputError, match=r"no record in .* can be used: .*") as raised:
        read_measured(tmp_path)
    assert problem in raised.value.message
