"""Fixtures of tests against the real stack: a Slurm of two nodes on this host."""

from __future__ import annotations

import pytest

from tests.real.slurm import running


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    with running(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@pytest.fixture
def at_cluster(slurm, monkeypatch):
    """This process finds the clients and the cluster, as on a login node."""
    for name in ("PATH", "SLURM_CONF", "ADVISOR_MASTER_ADDR"):
        monkeypatch.setenv(name, slurm.environment[name])
    return slurm
