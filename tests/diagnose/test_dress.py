"""The same failure in other clothes: cascade printed before or after, container timestamps, labels of srun."""

from __future__ import annotations

import re

import pytest

from advisor.diagnose.run import diagnose
from tests.diagnose.compose import closing, log, remote_error, watchdog
from tests.diagnose.composed import CASES

WAITING = {
    *("nccl_rank0_busy", "nccl_missing_rank", "nccl_pipeline_stage", "nccl_all_ranks_network"),
    *("hang_process", "undetermined"),
}
EARLY = log(watchdog(30, 9001), watchdog(31, 9001), remote_error(28))
LATE = log(
    closing(),
    remote_error(29),
    watchdog(27, 9001, form="guid"),
    "srun: error: node-009: tasks 0-7: Terminated",
    "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.",
    "[rank26]: KeyboardInterrupt",
)


def stamped(text):
    lines = text.splitlines()
    return log(
        f"2026-03-04T{9 + i // 3600:02d}:{i // 60 % 60:02d}:{i % 60:02d}.1Z stdout F {lines[i]}"
        for i in range(len(lines))
    )


def labelled(text):
    return re.sub(r"^\[rank(\d+)\]: ", r"\1: ", text, flags=re.M)


DRESSES = {
    "cascade first": lambda text: EARLY + text,
    "cascade last": lambda text: text + LATE,
    "cascade around": lambda text: EARLY + text + LATE,
    "stamped": stamped,
    "labelled": labelled,
}
BEGUN = [case for case in CASES if len(case.files) == 1 and case.cause not in WAITING]


@pytest.mark.parametrize("dress", DRESSES)
@pytest.mark.parametrize("case", BEGUN, ids=lambda case: case.name)
def test_cause_rank_and_node_stay(case, dress, tmp_path):
    path = tmp_path / "job.log"
    path.write_text(DRESSES[dress](case.files["job.log"]), encoding="utf-8")
    found = diagnose([str(path)])
    assert found.cause_id in {case.cause, *case.accept}, found.reason
    if dress != "labelled":
        assert case.rank in {None, found.first_failing_rank}
    assert case.node in {None, found.first_failing_node}
