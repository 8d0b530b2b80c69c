"""Logs of nccl-tests: every form in which they come, and what is refused or left out by line."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.errors import InputError
from advisor.fit.nccl_tests import read_nccl_log
from tests.fit.nccl_logs import TABLE_HEAD, log, ranks_head, row

TIMES = {0: 0.02, 8: 35.33, 1 << 20: 100.0, 1 << 30: 6000.0, 1 << 33: 47_123.0}
HEAD = "# nThread 1 nGpus 1 minBytes 8 maxBytes 128 step: 2(factor) warmup iters: 5 iters: 20 validation: 1\n"


def written(folder: Path, text: str, name: str = "some.log") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("program", "operation", "twice"),
    [
        ("all_reduce", "all_reduce", 2), ("all_gather", "all_gather", 2), ("reduce_scatter", "reduce_scatter", 2),
        ("alltoall", "all_to_all", 1), ("sendrecv", "send_recv", 1),
    ],
)  # fmt: skip
def test_every_program(tmp_path, program, operation, twice) -> None:
    """In place (twice as long here) where training works in place, out of place where it does not."""
    (found,) = read_nccl_log(written(tmp_path, log(program, 16, 8, TIMES)))
    assert (found.operation, found.ranks, found.nodes) == (operation, 16, 2)
    assert found.seconds == {size: pytest.approx(twice * us * 1e-6, rel=1e-3) for size, us in TIMES.items() if size}
    assert not found.left_out


def test_bus_bandwidth_is_what_the_programs_print(tmp_path) -> None:
    (reduce,) = read_nccl_log(written(tmp_path, log("all_reduce", 16, 8, {1 << 30: 6000.0})))
    assert reduce.bus_Bps(1 << 30) / 1e9 == pytest.approx((1 << 30) / 12e-3 / 1e9 * 2 * 15 / 16)
    (message,) = read_nccl_log(written(tmp_path, log("sendrecv", 2, 1, {1 << 30: 22_000.0})))
    assert message.best_Bps / 1e9 == pytest.approx(48.8, rel=1e-3)


@pytest.mark.parametrize("prefix", ["[1,0]<stdout>:", "[1,0]<stdout>: ", "0: ", " 0: ", "[dgx-00:12345] "])
def test_lines_that_mpirun_or_srun_marks(tmp_path, prefix) -> None:
    text = "".join(f"{prefix}{line}\n" for line in log("all_gather", 8, 8, TIMES).splitlines())
    (found,) = read_nccl_log(written(tmp_path, text))
    assert (found.operation, found.ranks, found.nodes, len(found.seconds)) == ("all_gather", 8, 1, 4)


def test_several_programs_in_one_log(tmp_path) -> None:
    parts = [log("all_reduce", 8, 8, TIMES), log("alltoall", 8, 8, TIMES), log("all_reduce", 4, 8, TIMES)]
    found = read_nccl_log(written(tmp_path, "+ job starts\n".join(parts)))
    assert [(one.operation, one.ranks) for one in found] == [("all_reduce", 8), ("all_to_all", 8), ("all_reduce", 4)]


def test_the_name_comes_from_the_command_line_or_the_file(tmp_path) -> None:
    """Releases before 2.13 do not announce the program."""
    bare = [log(name, 8, 8, TIMES, announced=False) for name in ("reduce_scatter", "all_gather")]
    commands = [f"+ mpirun -np 8 ./build/{name}_perf -b 8 -e 8G -f 2\n" for name in ("reduce_scatter", "all_gather")]
    text = "".join(command + part for command, part in zip(commands, bare, strict=True))
    assert [one.operation for one in read_nccl_log(written(tmp_path, text))] == ["reduce_scatter", "all_gather"]
    (found,) = read_nccl_log(written(tmp_path, bare[1], "all_gather_2nodes.txt"))
    assert found.operation == "all_gather"


def test_groups_of_a_split_are_one_of_them(tmp_path) -> None:
    """NCCL_TESTS_SPLIT runs a group per GPU index at once: rank r of group g lies on node r // 8."""
    (found,) = read_nccl_log(written(tmp_path, log("all_reduce", 16, 8, TIMES, groups=8)))
    assert (found.ranks, found.nodes) == (2, 2)


def test_numbers_in_every_format(tmp_path) -> None:
    line = "     1048576        262144  bfloat16     sum      -1  1.2e+02   8.7   15.2    N/A  99.50   10.5  18.4  N/A"
    text = (
        "# Collective test starting: all_reduce_perf\n"
        + HEAD
        + ranks_head(8, 8, bus="[0000:1b:00]")
        + TABLE_HEAD
        + line
    )
    (found,) = read_nccl_log(written(tmp_path, text))
    assert found.seconds == {1 << 20: pytest.approx(99.5e-6)}


def test_lines_that_cannot_be_used_are_named(tmp_path) -> None:
    good = log("all_reduce", 8, 8, {1 << 20: 100.0, 1 << 30: 6000.0})
    bad = [
        row(1 << 21, 100.0, 8, "all_reduce", wrong="17"),
        row(1 << 22, 100.0, 8, "all_reduce").replace("200.0", "oops").replace("100.0", "oops"),
        "     8388608       2097152 cut off",
    ]
    at = len(good.splitlines()) + 1
    (found,) = read_nccl_log(written(tmp_path, good + "\n".join(bad)))
    assert list(found.seconds) == [1 << 20, 1 << 30]
    assert [(one.line - at, one.reason) for one in found.left_out] == [
        (0, "17 wrong results"),
        (1, "'oops' is no time in us"),
        (2, "not a line of size, count, type, operation, root and times"),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "a table of times is missing"),
        ("hello\n", "a table of times is missing"),
        (HEAD + ranks_head(8, 8), "a table of times is missing"),
        (HEAD + ranks_head(8, 8) + TABLE_HEAD + row(8, 9.0, 8, "all_reduce"), "the name of the operation is missing"),
        ("all_reduce_perf\n" + HEAD + TABLE_HEAD + row(8, 9.0, 8, "all_reduce"), "its ranks are missing"),
        ("all_reduce_perf\n" + HEAD + ranks_head(1, 8) + row(8, 9.0, 2, "all_reduce"), "one rank alone"),
        ("all_reduce_perf\n" + HEAD + ranks_head(8, 8) + row(8, 9.0, 8, "all_reduce", wrong="3"), "line 11: 3 wrong"),
    ],
)
def test_files_that_are_no_logs_are_refused(tmp_path, text, said) -> None:
    with pytest.raises(InputError, match=said):
        read_nccl_log(written(tmp_path, text))


def test_a_missing_file_is_refused(tmp_path) -> None:
    with pytest.raises(InputError, match="cannot read"):
        read_nccl_log(tmp_path / "none.log")
