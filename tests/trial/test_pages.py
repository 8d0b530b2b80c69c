"""The page of trials as text, from records of every kind that are written out here."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from advisor.cli.pages.trial import trial_document
from advisor.cli.render import csv_text, table_text
from advisor.trial.runner import Ran

LAYOUT = {"tp": 2, "pp": 2, "vpp": 1, "dp": 1, "mbs": 1, "gbs": 8}


def record(name: str, outcome: str = "measured", ratio: float = 1.0, **more: Any) -> dict[str, Any]:
    step = 0.5 * ratio
    measured = {
        "step_s": step, "steps_s": [step] * 3, "spread": 0.021, "tokens_per_s_per_gpu": 4096 / step, "losses": [6.1],
        "peak_allocated_bytes": None, "peak_reserved_bytes": None, "peak_resident_bytes": 3 << 28,
    }  # fmt: skip
    return {
        "name": name, "key": "0" * 64, "outcome": outcome, "device": "cpu", "seconds": 20.0,
        "folder": f"trials/{name}/1", "candidate": {"layout": LAYOUT},
        "predicted": {"step_s": 0.5, "low_s": 0.42, "high_s": 0.6, "tokens_per_s_per_gpu": 8192},
        "measured": measured if outcome == "measured" else None,
        "inside": 0.84 <= ratio <= 1.2 if outcome == "measured" else None,
        "ratio": ratio if outcome == "measured" else None,
        "failure": None, "full": None, "proxy": None, "hiding": [], "stand_ins": [],
        **more,
    }  # fmt: skip


OOM = {
    "cause": "cuda_oom", "rank": 3, "exit_code": 1, "message": "CUDA out of memory: rank 3 first",
    "excerpt": ["torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."], "fix": "plan again",
}  # fmt: skip
HIDING = [
    {"kind": "tp", "predicted_share": 0.7, "measured_share": 0.65, "verdict": "confirmed", "reason": ""},
    {"kind": "pp", "predicted_share": 0.9, "measured_share": 0.1, "verdict": "not effective", "reason": "check vpp"},
]
PROXY = {"layers": 4, "gbs": 4, "num_microbatches": 4}
FULL = {"factor": 1.1, "step_s": 5.5, "low_s": 4.6, "high_s": 6.6, "tokens_per_s_per_gpu": 7447, "rule": "the rule"}


@pytest.fixture
def document():
    def ran(one: dict[str, Any] | None, name: str = "", fresh: bool = True) -> Ran:
        return Ran(SimpleNamespace(name=name or one["name"]), one, fresh)

    trials = [
        ran(record("tp2-pp2-mbs1-aaaaaaaa", hiding=HIDING, stand_ins=["gloo in place of NCCL"])),
        ran(record("tp4-mbs1-bbbbbbbb", ratio=1.4), fresh=False),
        ran(record("pp4-mbs2-cccccccc", ratio=1.1, proxy=PROXY, full=FULL)),
        ran(record("dp4-mbs4-dddddddd", "oom", failure=OOM)),
        ran(None, "dp4-mbs8-eeeeeeee"),
    ]
    return trial_document(trials, ["candidate 2: there is nothing to offload to from a CPU"], Path("trials"))


def test_the_page(document, golden):
    text = table_text(document.blocks, None)
    golden("trial.txt", "\n".join([text, *document.hints, ""]))


def test_the_rows(document):
    assert [row["outcome"] for row in document.rows] == ["measured", "measured", "measured", "oom"]
    head, *lines = csv_text(document.rows).splitlines()
    assert {"name", "ratio", "measured.step_s", "predicted.low_s", "layout.tp"} <= set(head.split(","))
    assert len(lines) == 4
    assert document.record["not_run"] == ["dp4-mbs8-eeeeeeee"]


@pytest.mark.parametrize(("spread", "words"), [(0.3, "steps vary by up to 30%"), (0.02, "may not be that of the plan")])
def test_a_step_outside_its_interval_says_what_may_be_wrong(spread, words):
    one = record("tp4-mbs1-bbbbbbbb", ratio=1.4)
    one["measured"]["spread"] = spread
    document = trial_document([Ran(SimpleNamespace(name=one["name"]), one, True)], [], Path("trials"))
    assert words in table_text(document.blocks, None)
