"""Public trouble reports as input files, through the command line as a user calls it."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import yaml

from advisor import data
from advisor.check import check

CASES = yaml.safe_load((Path(__file__).parent / "data" / "cases.yaml").read_text(encoding="utf-8"))
SIZES = ("gpus", "tp", "pp", "vpp", "cp", "ep", "etp", "mbs", "gbs")
SYSTEMS = {"h100": "dgx-h100", "b200": "dgx-b200", "b300": "dgx-b300", "gb200": "gb200-nvl72", "gb300": "gb300-nvl72",
           "vr200": "vr200-nvl72"}  # fmt: skip
CANNOT_START = {
    *(f"deepseek_v3_pretrain_64gpu_h100_{one}_config" for one in ("bf16", "fp8cs")),
    *(f"deepseek_v3_pretrain_128gpu_vr200_{one}_config" for one in ("bf16", "fp8cs", "fp8mx", "nvfp4")),
    *(f"qwen3_235b_a22b_pretrain_64gpu_gb200_{one}_config" for one in ("fp8cs", "fp8mx", "nvfp4")),
    *(f"qwen3_235b_a22b_pretrain_64gpu_gb300_{one}_config" for one in ("bf16", "fp8cs", "fp8mx", "nvfp4")),
    *(f"nemotronh_56b_pretrain_256gpu_{one}_bf16_config" for one in ("b200", "gb300")),
}
"""Recipes whose own layout does not fit the number of GPUs in their name (two grids, global batch)."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
@pytest.mark.parametrize("stated", [True, False], ids=["target", "inferred"])
def test_case(case, stated, tmp_path, cli):
    path = tmp_path / case["name"]
    path.write_text(case["file"], encoding="utf-8")
    target = ["--target", case["target"]] if stated else []
    ran = cli("check", str(path), "--gpus", str(case["gpus"]), "--system", case["system"], *target, "--format", "json")
    answer = json.loads(ran.out)
    assert set(answer) >= {"verdict", "findings"}
    for finding in answer["findings"]:
        assert set(finding) == {"rule", "severity", "message", "fix", "source", "file", "line"}
        assert finding["message"]
        assert finding["source"]
    quiet = "none" in case["accept"] and answer["verdict"] in ("slow", "info")
    assert answer["verdict"] in case["accept"] or quiet, answer["findings"]
    assert ran.code == (1 if answer["verdict"] in ("stop", "silent") else 0)


def test_stop_exactly_on_recipes_that_cannot_start(tmp_path):
    """Every published recipe as bare layout flags: 15 do not fit their GPUs, nothing else stops or is silent."""
    stopped, others = set(), set()
    path = tmp_path / "layout.txt"
    table = data.find("presets", "vendor_recipes.csv").read_text(encoding="utf-8")
    for row in csv.DictReader(table.splitlines()):
        words = [f"--{name} {row[name]}" for name in SIZES if row[name]] + [f"--seq-len {row['seq_len']}"]
        path.write_text(f"--model {row['model']} {' '.join(words)}\n", encoding="utf-8")
        report = check([path], system=SYSTEMS.get(row["gpu"]))
        for one in report.findings:
            (stopped.add(row["recipe"]) if one.severity == "stop" else others.add((one.rule, one.severity)))
    assert stopped == CANNOT_START
    # 72-GPU domains hold 64 of 72 used GPUs by habit: groups of 16, 32 and 64 straddle full domains.
    assert others <= {("ep-straddles-domains", "slow"), ("tp-inside-nvlink", "slow"), ("etp-follows-tp-note", "info")}
