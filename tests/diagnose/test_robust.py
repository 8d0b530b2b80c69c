"""Logs as they lie around: cut, mixed, coloured, binary, empty, packed, piped. Never a traceback."""

# ruff: noqa: E501 - lines of logs are as long as they are

from __future__ import annotations

import gzip
import io
import json
import random
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from advisor.diagnose.run import diagnose
from advisor.errors import InputError
from tests.diagnose.composed import CASES

DATA = Path(__file__).parent / "data"
LOGS = sorted(DATA.glob("*.log"))
ECC = DATA / "ecc_rank12.log"
FEW = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


def answer(found):
    return (found.cause_id, found.first_failing_rank, found.first_failing_node, found.exit_code)


def coloured(text):
    return "".join(f"\x1b[31m\x1b[1m{line}\x1b[0m\n" for line in text.splitlines())


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.name)
def test_dress_does_not_matter(log, tmp_path):
    plain, text = answer(diagnose([str(log)])), log.read_text(encoding="utf-8")
    changed = {
        "coloured": coloured(text).encode(),
        "crlf": text.replace("\n", "\r\n").encode(),
        "gz.gz": gzip.compress(text.encode()),
        "bad_utf8": b"\xff\xfe junk \x80\n" + text.encode() + b"\xc3\x28\n",
        "nul": text.replace("\n", "\0\n", 5).encode(),
    }
    for name, content in changed.items():
        path = tmp_path / name
        path.write_bytes(content)
        assert answer(diagnose([str(path)])) == plain, name


def test_stdin(cli, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(ECC.read_bytes())))
    ran = cli("diagnose", "-", "--format", "json")
    assert ran.code == 1
    assert json.loads(ran.out)["cause_id"] == "gpu_hardware"


@pytest.mark.parametrize(
    "content", [b"", b"\n\n\n", b"\0" * 5000, bytes(range(256)) * 200, b"no end of line", b"\x1b[31m"]
)
def test_nothing_to_read_is_undetermined(tmp_path, content):
    path = tmp_path / "x.log"
    path.write_bytes(content)
    found = diagnose([str(path)])
    assert (found.cause_id, found.confidence) == ("undetermined", "low")
    assert found.next_step


def test_a_gz_that_is_cut_is_read_as_far_as_it_goes(tmp_path):
    random.seed(1)
    noise = "".join(f"noise {random.random()}\n" for _ in range(20_000))
    whole = gzip.compress((ECC.read_text(encoding="utf-8") + noise).encode())
    path = tmp_path / "x.log.gz"
    path.write_bytes(whole[: len(whole) // 2])
    found = diagnose([str(path)])
    assert found.cause_id == "gpu_hardware"
    assert found.sources[0]["problem"]


def test_input_errors(tmp_path, cli):
    (tmp_path / "empty").mkdir()
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    for name in ("missing.log", "empty", "."):
        ran = cli("diagnose", str(tmp_path / name))
        assert ran.code == 2
        assert "error:" in ran.err
    with pytest.raises(InputError, match="no logs"):
        diagnose([str(tmp_path / "empty")])


def test_exit_codes_and_formats(cli, tmp_path):
    assert cli("diagnose", str(ECC)).code == 1
    nothing = tmp_path / "quiet.log"
    nothing.write_text("all is well\n", encoding="utf-8")
    assert cli("diagnose", str(nothing)).code == 0
    assert cli("diagnose").code == 2
    record = json.loads(cli("diagnose", str(ECC), "--format", "json").out)
    wanted = "cause_id confidence first_failing_rank first_failing_node exit_code evidence cascade not_to_blame fix next_step"
    assert set(wanted.split()) <= set(record)
    for one in record["evidence"]:
        assert ECC.read_text(encoding="utf-8").splitlines()[one["line"] - 1].strip() == one["text"]
    for form in ("table", "md", "csv"):
        out = cli("diagnose", str(ECC), "--format", form).out
        assert "gpu_hardware" in out
        assert "node-001" in out


@FEW
@given(st.sampled_from(LOGS), st.integers(0, 4000), st.integers(0, 4000))
def test_cut_anywhere(tmp_path_factory, log, start, length):
    path = tmp_path_factory.mktemp("cut") / "x.log"
    path.write_bytes(log.read_bytes()[start : start + length])
    diagnose([str(path)]).to_dict()


@FEW
@given(st.lists(st.sampled_from(LOGS), min_size=2, max_size=4), st.randoms(use_true_random=False))
def test_interleaved(tmp_path_factory, logs, chance):
    queues = [log.read_bytes().splitlines() for log in logs]
    lines = []
    while queues:
        queue = chance.choice(queues)
        lines.append(queue.pop(0))
        queues = [one for one in queues if one]
    path = tmp_path_factory.mktemp("mixed") / "x.log"
    path.write_bytes(b"\n".join(lines))
    json.dumps(diagnose([str(path)]).to_dict(), allow_nan=False)


@FEW
@given(st.binary(max_size=3000), st.sampled_from(LOGS), st.integers(0, 3000))
def test_junk_in_between(tmp_path_factory, junk, log, where):
    content = log.read_bytes()
    path = tmp_path_factory.mktemp("junk") / "x.log"
    path.write_bytes(content[:where] + junk + content[where:])
    diagnose([str(path)]).to_dict()


@FEW
@given(st.text(alphabet="[]():0123456789rankRANK ncdeflt-=.,\"'\n\t", max_size=2000))
def test_lines_of_tags(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("tags") / "x.log"
    path.write_text(text, encoding="utf-8")
    diagnose([str(path)])


def test_one_log_or_a_log_for_every_rank(tmp_path):
    """Splitting a log by its tags into untagged files named by rank keeps cause and rank."""
    case = next(case for case in CASES if case.name == "python-behind-watchdogs")
    text = case.files["job.log"]
    for rank in (0, 1, 2, 13):
        tag = f"[rank{rank}]: "
        lines = [line.removeprefix(tag) for line in text.splitlines() if line.startswith(f"[rank{rank}]")]
        (tmp_path / f"rank_{rank}.log").write_text("\n".join(lines), encoding="utf-8")
    found = diagnose([str(tmp_path)])
    assert (found.cause_id, found.first_failing_rank) == ("python_error", 13)
