"""Whole MoE layers measured on 8 H100 against the step formulae of one layer.

Source: NVIDIA/Megatron-LM:tests/functional_tests/test_cases/common/moe_perf/baseline.json@d98e8a64, condensed in
data/moe_layer_h100.csv: forward plus backward of one MoE layer, no attention, forced balance. The layers are timed
alone, so the profile is taken without the derate of a training step (`advisor.cost.alone`).
"""

from __future__ import annotations

import csv
from itertools import combinations
from pathlib import Path
from statistics import median

import numpy as np
import pytest

from advisor.cost.alone import alone
from advisor.cost.profile import load_profile
from advisor.cost.step import layer_seconds, setting_of, total
from advisor.spec.layout import Dispatcher, Knobs, Layout, table
from advisor.spec.load.system import load_system, make_cluster
from advisor.spec.model import ExpertMlp, Layer, Model
from advisor.spec.precision import PRECISIONS
from advisor.spec.split import PipelineSplit
from advisor.spec.workload import Workload

ROWS = list(csv.DictReader((Path(__file__).parent / "data" / "moe_layer_h100.csv").open(encoding="utf-8")))
DEEPSEEK = (7168, ExpertMlp(experts=32, topk=8, ffn=2048, shared_ffn=2048))
MIXTRAL = (4096, ExpertMlp(experts=8, topk=2, ffn=14336))


def case(row: dict[str, str]) -> str:
    return row["note"].split()[1]


def predicted_s(row: dict[str, str]) -> float:
    hidden, mlp = DEEPSEEK if "deepseek" in row["model"] else MIXTRAL
    layer = Layer(mixer=None, mlp=mlp, norms=0)
    model = Model("layer", "test", hidden, 32000, (layer,), (0,), tied_embeddings=False)
    precision = PRECISIONS["bf16" if row["precision"] == "BF16" else "fp8-blockwise"]
    workload = Workload(seq_len=int(row["seq_len"]), precision=precision)
    dispatcher = {"a2a": Dispatcher.alltoall, "deepep": Dispatcher.deepep, "hybridep": Dispatcher.hybridep}
    layout = Layout(
        tp=1, pp=1, vpp=1, cp=1, ep=8, etp=1, dp=8, edp=1, mbs=1, gbs=8, sp=False, split=PipelineSplit(1, 1, (1,))
    )
    columns = table([layout], [Knobs(dispatcher=dispatcher[case(row).split("_")[1]], grad_dtype="fp32")])
    cluster = make_cluster(load_system("dgx-h100"), 8)
    setting = setting_of(model, cluster, workload, columns, alone(load_profile(cluster.gpu)))
    return float(np.ravel(total(layer_seconds(layer, setting)))[0])


def measured_s(row: dict[str, str]) -> float:
    return float(row["measured_step_ms"]) / 1e3


def test_median_error_of_whole_layers() -> None:
    errors = {case(row): predicted_s(row) / measured_s(row) - 1 for row in ROWS}
    assert len(errors) == 8
    assert median(abs(error) for error in errors.values()) <= 0.12, errors


@pytest.mark.parametrize("family", ["deepseek", "mixtral"])
def test_order_of_dispatchers(family: str) -> None:
    """Wherever two dispatchers differ by more than 3 % at the same precision, the faster one is predicted faster."""
    rows = [row for row in ROWS if family in row["model"]]
    compared = 0
    for one, other in combinations(rows, 2):
        if one["precision"] != other["precision"]:
            continue
        if abs(measured_s(one) / measured_s(other) - 1) <= 0.03:
            continue
        compared += 1
        faster = measured_s(one) < measured_s(other)
        assert (predicted_s(one) < predicted_s(other)) == faster, (case(one), case(other))
    assert compared
