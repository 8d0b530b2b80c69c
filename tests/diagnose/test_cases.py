"""Causes of failed jobs: public trouble reports, and composed logs of every cause, some made to mislead."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from advisor.diagnose.run import diagnose
from tests.diagnose.composed import CASES

DATA = Path(__file__).parent / "data"
PUBLIC = yaml.safe_load((DATA / "expected.yaml").read_text(encoding="utf-8"))


def stated(found, case):
    """Pairs (found, expected) of what a case states."""
    names = ("first_failing_rank", "first_failing_node", "exit_code")
    return [(name, getattr(found, name), case[name]) for name in names if case[name] is not None]


@pytest.mark.parametrize("case", PUBLIC, ids=lambda case: case["log"])
def test_public_reports(case):
    found = diagnose([str(DATA / case["log"])])
    assert found.cause_id in {case["cause_id"], *case["accept_causes"]}, found.reason
    for name, got, wanted in stated(found, case):
        assert got == wanted, name
    said = f"rank {found.first_failing_rank} {found.fix} {found.next_step} {found.title}"
    for innocent in case["must_not_blame"]:
        assert innocent not in said
    assert found.evidence


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_composed(case, tmp_path):
    for name, text in case.files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    found = diagnose([str(tmp_path)])
    assert found.cause_id in {case.cause, *case.accept}, f"{found.cause_id}: {found.reason} {found.evidence}"
    assert found.cause_id not in case.never
    if case.unsure:
        assert found.confidence != "high"
    for name, got, wanted in (
        ("rank", found.first_failing_rank, case.rank),
        ("node", found.first_failing_node, case.node),
        ("code", found.exit_code, case.code),
    ):
        assert wanted is None or got == wanted, f"{name}: {found}"


def test_enough_of_them():
    assert len(CASES) >= 60
    assert len({case.cause for case in CASES}) >= 25
    assert len({case.name for case in CASES}) == len(CASES)
