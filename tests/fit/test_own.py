"""`advisor calibrate --runs`: what changed says that it is of the own cluster, on the page, in JSON and in the file."""

from __future__ import annotations

import json

import pytest
import yaml

pytest.importorskip("scipy")

RUNS = (
    "id,model,system,gpus,precision,seq_len,gbs,mbs,tp,pp,vpp,cp,ep,recompute,step_s\n"
    "mine-1,llama3-70b,dgx-h100,64,bf16,4096,128,1,4,4,5,1,1,none,9.9\n"
    "mine-2,llama3-70b,dgx-h100,64,bf16,4096,128,1,8,4,5,1,1,none,10.4\n"
)


def test_own_runs_are_the_source(cli, tmp_path):
    runs, out = tmp_path / "own.csv", tmp_path / "mine.yaml"
    runs.write_text(RUNS)
    ran = cli("calibrate", "--runs", str(runs), "--out", str(out), "--format", "json")
    assert ran.code == 0, ran.err
    (changed,) = json.loads(ran.out)["coefficients"].values()
    assert "gemm_tflops.bf16" in changed
    for one in changed.values():
        assert one["source"].startswith("own cluster; started from: ")
        assert "profiles/runs" not in one["source"]
        assert one["source"].count("started from") == 1
    fitted = yaml.safe_load(out.read_text())["profile"]["fitted"]
    assert fitted["gemm_tflops"]["bf16"]["source"].startswith("own cluster; ")
    assert "started from" not in fitted["gemm_tflops"]["bf16"]["source"]
