"""Measured runs correct every point of a scaling curve of the same model, GPU and precision."""

from __future__ import annotations

import csv

import pytest

from advisor import plan, scale
from advisor.errors import InputError

JOB = {"system": "dgx-h100", "seq_len": 8192, "precision": "bf16", "gbs": 128}


@pytest.fixture
def faster(tmp_path):
    """A file with the planned run on 8 GPUs, measured a quarter faster than predicted."""
    best = plan("llama3-8b", 8, **JOB).best
    row = {name: getattr(best.layout, name) for name in ("tp", "pp", "vpp", "cp", "mbs", "gbs")}
    row |= {"model": "llama3-8b", "system": "dgx-h100", "gpus": 8, "precision": "bf16", "seq_len": 8192}
    row |= {"step_s": best.step.step_s / 1.25, "grad_dtype": best.knobs.grad_dtype, "fsdp": "no"}
    path = tmp_path / "measured.csv"
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(row))
        writer.writeheader()
        writer.writerow(row)
    return str(path)


def test_an_anchor_moves_every_point_of_a_curve(faster) -> None:
    plain, anchored = (scale("llama3-8b", [8, 16], **JOB, **more) for more in ({}, {"anchor": faster}))
    for one, other in zip(plain.points, anchored.points, strict=True):
        assert 0.75 < other.candidate.step.step_s / one.candidate.step.step_s < 0.95
        assert other.searched == one.searched


def test_an_anchor_of_another_model_changes_nothing(faster) -> None:
    plain, anchored = (scale("llama3-8b", [8, 16], **{**JOB, "precision": "fp8"}, **more)
                       for more in ({}, {"anchor": faster}))  # fmt: skip
    assert [one.candidate for one in plain.points] == [one.candidate for one in anchored.points]


def test_a_missing_file_of_anchors_is_one_clear_error() -> None:
    with pytest.raises(InputError, match=r"nowhere\.csv"):
        scale("llama3-8b", [8, 16], **JOB, anchor="nowhere.csv")
