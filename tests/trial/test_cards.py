"""What the verbs think of the GPUs of this host, told by an nvidia-smi that only acts."""

from __future__ import annotations

import os

import pytest

from tests.trial.layouts import write_estimate

pytestmark = pytest.mark.real


@pytest.fixture
def two_cards(tmp_path, monkeypatch):
    """An nvidia-smi that lists two GPUs."""
    folder = tmp_path / "bin"
    folder.mkdir()
    tool = folder / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'GPU 0: NVIDIA H100 (UUID: GPU-a)'\necho 'GPU 1: NVIDIA H100 (UUID: GPU-b)'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.parametrize(("visible", "held"), [(None, 2), ("0", 1), ("", 0)])
def test_more_gpus_than_there_are_is_an_environment_error(cli, tmp_path, monkeypatch, two_cards, visible, held):
    pytest.importorskip("megatron.core")
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    plan = write_estimate(tmp_path, "dense", 4)
    ran = cli("trial", str(plan), "--out", str(tmp_path / "out"))
    assert ran.code == 3
    assert f"for 4 GPUs, this host has {held}" in ran.err
    assert not (tmp_path / "out").exists()


def test_where_there_are_gpus_they_are_taken(cli, tmp_path, two_cards):
    ran = cli("trial", str(write_estimate(tmp_path, "dense", 2)), "--dry-run", "--format", "json")
    assert ran.code == 0
    assert '"device": "cuda"' in ran.out
