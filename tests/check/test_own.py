"""Configurations written for these tests: every rule has one that breaks it, and near misses stay silent."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from advisor.check import check
from advisor.rules.lint import CONFIG_RULES

DATA = Path(__file__).parent / "data"
OWN = [
    case
    for name in ("own", "checks", "reports", "vendor")
    for case in yaml.safe_load((DATA / f"{name}.yaml").read_text(encoding="utf-8"))
]
SCRIPT = """#!/bin/bash
{env}
torchrun --nnodes 1 --nproc_per_node 8 pretrain_gpt.py \\
  --num-layers {layers} --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 \\
  --micro-batch-size 1 --global-batch-size 64 --train-iters 10 --lr 1e-4 --bf16 --swiglu --attention-dropout 0 \\
  --hidden-dropout 0 --transformer-impl transformer_engine --mock-data --tokenizer-type NullTokenizer \\
  --vocab-size 32000 {moe} {flags}
"""
EXPERTS = (
    "--num-experts 8 --moe-ffn-hidden-size 1536 --moe-router-topk 2 --moe-grouped-gemm {bias} "
    "--moe-token-dispatcher-type alltoall"
)
PYTHON = """import torch
from megatron.bridge.models.gpt_provider import GPTModelProvider
from megatron.bridge.training.comm_overlap import CommOverlapConfig, userbuffers_bf16_h100_h8192_tp4_mbs1_seqlen8192

def configure(cfg):
{body}
    return cfg
"""
PROVIDER = "GPTModelProvider(num_layers=32, num_attention_heads=32, num_query_groups=8, "


def written(case: dict, folder: Path) -> Path:
    """The case as the file a user would have."""
    if "mlm" in case:
        experts = EXPERTS.format(bias="" if case.get("bias") else "--disable-bias-linear")
        text = SCRIPT.format(
            env=case.get("env", "export CUDA_DEVICE_MAX_CONNECTIONS=1"), layers=case.get("layers", 32),
            moe=experts if case.get("moe") else "", flags=case["mlm"],
        )  # fmt: skip
        name = "train.sh"
    elif "py" in case:
        body = "\n".join("    " + row for row in case["py"].replace("provider(", PROVIDER).splitlines())
        text, name = PYTHON.format(body=body), "config.py"
    else:
        text, name = case["text"] + "\n", case.get("name", "settings.txt")
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_there_are_enough():
    assert len(OWN) >= 380
    assert len({case["id"] for case in OWN}) == len(OWN)


@pytest.mark.parametrize("case", OWN, ids=lambda case: case["id"])
def test_own(case, tmp_path):
    launched = "mlm" in case or "py" in case
    report = check(
        [written(case, tmp_path)],
        target=case.get("target"),
        gpus=case.get("gpus", 8 if launched else None),
        system=case.get("system", "dgx-h100"),
    )
    found = [(one.rule, one.severity, one.message) for one in report.findings]
    verdict = report.verdict if report.verdict in ("stop", "silent") else "none"
    assert verdict == case["verdict"], found
    if "rule" in case:
        assert case["rule"] in {one.rule for one in report.findings}, found
    assert case.get("without") not in {one.rule for one in report.findings}


PAIRS = yaml.safe_load((DATA / "pairs.yaml").read_text(encoding="utf-8"))


def rules_of(pair: dict, which: str, folder: Path) -> dict[str, str]:
    """Rules found, with their severity, in the bad or the good configuration of a pair."""
    kind = next(key for key in ("o", "m", "p") if key in pair)
    text = pair[kind] if which == "bad" else pair["good"]
    name = {"o": "text", "m": "mlm", "p": "py"}[kind]
    path = written({name: text, "moe": pair.get("moe")}, folder)
    target = "megatron-lm" if kind == "m" else "bridge"
    return {one.rule: one.severity for one in check([path], gpus=8, system="dgx-h100", target=target).findings}


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair["rule"])
def test_pair(pair, tmp_path):
    bad = rules_of(pair, "bad", tmp_path)
    assert pair["rule"] in bad, bad
    assert bad[pair["rule"]] == {one.id: one for one in CONFIG_RULES}[pair["rule"]].severity
    assert pair["rule"] not in rules_of(pair, "good", tmp_path)
