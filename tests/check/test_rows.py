"""Reports of steps read many at once: the same answer as line by line, whatever stands around them."""

# ruff: noqa: E501 - lines of logs are as long as they are

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.check.readback import read_log
from advisor.check.readback import rows as rows_module
from advisor.check.readback.steps import StepTimes
from advisor.errors import InputError

DATA = Path(__file__).parent / "data" / "readback"
LONG = (
    "iteration {:8d}/     500 | consumed samples: {:12d} | elapsed time per iteration (ms): {:.1f} | throughput per GPU "
    "(TFLOP/s/GPU): {:.1f} | learning rate: 1.935433E-04 | global batch size:   128 | lm loss: 2.8E+00 | loss scale: 1.0 "
    "| number of skipped iterations: {:3d} | number of nan iterations: {:3d} |"
)
NUMBERS = st.floats(0.05, 99999).map(lambda one: round(one, 2))
COUNT = st.sampled_from([0, 0, 0, 1, 12, 1234])
LONG_LINES = st.builds(
    LONG.format, st.integers(1, 40), st.integers(0, 9999), NUMBERS, NUMBERS, COUNT, COUNT
)  # fmt: skip
NEMO_LINES = st.builds(
    "Training epoch 0, iteration {0}/999 | lr: 2.699e-06 | global_batch_size: 512 | global_step: {0} | "
    "reduced_train_loss: 10.77 | train_step_timing in s: {1} | consumed_samples: 5120".format,
    st.integers(1, 40), st.one_of(NUMBERS, st.integers(1, 9)),
)  # fmt: skip
SHORT_LINES = st.builds("Step Time : {}s GPU utilization: {}MODEL_TFLOP/s/GPU".format, NUMBERS, NUMBERS)
OTHER_LINES = st.sampled_from(
    ["", "node-003:984:1357 [4] NCCL INFO Channel 01/0", "using world size: 8, data-parallel size: 8",
     "WARNING:root:Disabling tensor parallel communication overlap due to TP size < 2.",
     "  number of skipped iterations:   7 |", "iteration 3/ 9 | nothing", "elapsed time per iteration (ms): | iteration 3/9 |",
     "[Rank 0] (after 2 iterations) memory (MB) | allocated: 1.0 | max allocated: 2.0 |", "\x1b[?25l"]
)  # fmt: skip
CHANGES = st.sampled_from(
    [("iteration ", "iteration"), ("(ms): ", "(ms):"), ("(ms): ", "(ms):  "), ("/", "/ 1 "), (".", ".."), (" |", "|"),
     ("| ", "|\t"), ("throughput", "through"), ("TFLOP/s/GPU): ", "TFLOP/s/GPU): nan"), ("0 |", "0"), ("e", "\x1b[1me"),
     ("5", "5 5"), ("1", "\u0661"), (" ", "\u00a0"), ("iteration ", "iteration 1/2 \r iteration "), ("|", "\r|"),
     ("elapsed", "elapsed time per iteration (ms): 7.0 | elapsed"), ("|", "\x00|"), (".", ".1234567890123"),
     ("Step", "Step Time : 1.0s Step"), ("(ms): ", "(ms): \x1b[32m"), ("Training", "\x1b]0;title\x07Training"),
     ("| lm", "| throughput per GPU (TFLOP/s/GPU): 5.0 | lm"), ("s: ", "s="), ("step: ", "step="),
     ("skipped", "skip\x1b[1mped"), ("| number of nan", "| number of nan iterations:   3 | number of nan")]
)  # fmt: skip
WRAPS = st.sampled_from(
    ["{}", "{}\r", "[rank3]: {}", "0: {}", "node-1: {}", "[default3]:{}", "\x1b[32m{}\x1b[0m", "\x1b[1;36m {}\x1b[0m\r",
     " [2026-08-17 17:40:11.123] {}", "\rTraining:  5%|#  | 3/9 [00:01<00:03, 2.3it/s]\r {}", "{}\r\r", "\u2588\u258f {}", "{}  \t",
     "\r\x1b[K{}\x1b[0m \r", "Training: 10%|\u2588 | 1/9\r\n{}"]
)  # fmt: skip


@st.composite
def lines(draw):
    line = draw(st.one_of(LONG_LINES, LONG_LINES, NEMO_LINES, SHORT_LINES, OTHER_LINES))
    if draw(st.integers(0, 5)) == 0:
        old, new = draw(CHANGES)
        line = line.replace(old, new, draw(st.integers(1, 2)))
    return draw(WRAPS).format(line)


def answer(path, fast):
    try:
        return repr(read_log([str(path)], fast=fast))
    except InputError as problem:
        return str(problem)


@settings(deadline=None, max_examples=300)
@given(written=st.lists(lines(), min_size=1, max_size=60))
def test_many_at_once_is_one_by_one(written, tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "job.log"
    path.write_bytes("\n".join(written).encode())
    assert answer(path, True) == answer(path, False)


@pytest.mark.parametrize(
    "change",
    [("skipped", "skip\x1b[1mped"), ("| number of nan", "| number of nan iterations:   3 | number of nan"),
     ("elapsed", "elapsed time per iteration (ms): 7.0 | elapsed"), ("(ms): ", "(ms): \x1b[32m")]
)  # fmt: skip
def test_lines_that_are_no_plain_rows(change, tmp_path):
    path = tmp_path / "job.log"
    path.write_text("\n".join(LONG.format(at, 0, 10.0 * at, 1.0, 2, 5).replace(*change) for at in range(1, 40)))
    assert answer(path, True) == answer(path, False)


@pytest.mark.parametrize("name", ["megatron_lm_0.19.log", "bridge_0.3.log"])
def test_real_logs(name):
    assert answer(DATA / name, True) == answer(DATA / name, False)


@pytest.mark.parametrize(
    "wrap", ["{}", "[rank3]: {}", "\x1b[32m{}\x1b[0m", "{}\r", "\rTraining:  5%|#  | 3/9\r {}", "\u2588\u258f {}"]
)
@pytest.mark.parametrize("form", ["long", "nemo", "short"])
def test_usual_lines_are_read_many_at_once(wrap, form, tmp_path, monkeypatch):
    texts = {
        "long": LONG.format(7, 3, 5.0, 8.0, 0, 0),
        "nemo": "iteration 9/99 | global_step: 9 | train_step_timing in s: 9.315 | consumed_samples: 5120",
        "short": "Step Time : 2.05s GPU utilization: 412.7MODEL_TFLOP/s/GPU",
    }
    path = tmp_path / "job.log"
    path.write_bytes((wrap.format(texts[form]) + "\n").encode())
    read = []
    monkeypatch.setattr(rows_module.StepRows, "_read", lambda self, name, rows, place: read.append((name, place.line)))
    read_log([str(path)])
    assert len(read) == 1


def test_very_many_reports_and_starts_stay_bounded(monkeypatch):
    monkeypatch.setattr("advisor.check.readback.steps.MOST_REPORTS", 64)
    times, one = StepTimes(), StepTimes()
    place = rows_module.Place("x", 1, "")
    whole = list(range(1, 1001))
    times.extend(whole, [float(at % 7 + 1) for at in whole], [1.0] * 1000, place)
    for at in whole:
        one.extend([at], [float(at % 7 + 1)], [1.0], place)
    assert times.steps() == one.steps()
    assert times.steps().reports <= 65
    for at in range(3000, 0, -1):
        times.extend([at], [1.0], [1.0], place)
    assert len(times._starts) == 1000


def test_a_line_said_twice_counts_once(tmp_path):
    path = tmp_path / "job.log"
    path.write_text("\n".join(LONG.format(at // 2, 0, 10.0 * (at // 2), 1.0, 0, 0) for at in range(2, 102)) + "\n")
    found = read_log([str(path)]).steps
    assert (found.reports, found.left_out, found.last_iteration) == (40, 10, 50)
