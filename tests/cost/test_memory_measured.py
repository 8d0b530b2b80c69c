"""Predicted against published peaks (max_memory_allocated), nothing fitted."""

from __future__ import annotations

import csv
from pathlib import Path
from statistics import median

import pytest
import yaml

from advisor.cost.memory import memory
from advisor.spec.layout import Dispatcher, Knobs, table
from advisor.spec.load.model import load_model
from advisor.spec.load.system import load_system, make_cluster
from advisor.spec.workload import Workload
from advisor.units import gib
from tests.cost.layouts import first_layers, knobs_of, layout_of

DATA = Path(__file__).parent / "data"
SIMUMAX = list(csv.DictReader((DATA / "simumax_b200.csv").open()))
CASES = yaml.safe_load((DATA / "memory_cases.yaml").read_text())


def simumax_error(row: dict[str, str]) -> float:
    """Relative error of one row; expert layouts use the all-to-all dispatcher, all overlaps are off."""
    model = first_layers(load_model(row["model"]), int(row["num_layers"]))
    cluster = make_cluster(load_system(row["system"]), int(row["gpus"]))
    sizes = {name: int(row[name]) for name in ("tp", "pp", "cp", "ep", "mbs", "gbs")}
    dispatcher = Dispatcher.alltoall if sizes["ep"] > 1 else Dispatcher.none
    columns = table([layout_of(model, int(row["gpus"]), **sizes)], [Knobs(dispatcher=dispatcher)])
    found = memory(model, cluster, Workload(seq_len=int(row["seq_len"])), columns)
    return float(gib(found.allocated_bytes[0])) / float(row["peak_allocated_gib"]) - 1


def test_simumax_peaks_without_a_fitted_constant():
    errors = {row["id"]: abs(simumax_error(row)) for row in SIMUMAX}
    assert len(errors) == 22
    assert median(errors.values()) <= 0.01, errors
    assert max(errors.values()) <= 0.04, errors


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_public_case(case):
    model = load_model(case["model"])
    cluster = make_cluster(load_system(case["system"]), case["gpus"])
    workload = Workload(**case.get("workload", {}))
    columns = table([layout_of(model, case["gpus"], **case["layout"])], [knobs_of(case.get("knobs", {}))])
    found = memory(model, cluster, workload, columns)
    detail = found.detail(0)
    fits = detail.peak_device_bytes <= detail.budget_bytes
    assert case["verdict"] == ("fits" if fits else "oom"), gib(detail.peak_device_bytes)
    terms = {name: gib(term.value) for name, term in detail.terms.items()}
    if "weights_gib" in case:
        assert terms["weights"] == pytest.approx(case["weights_gib"], rel=2e-3)
    if "states_gib" in case:
        states = terms["weights"] + terms["gradients"] + terms["optimizer"]
        assert states == pytest.approx(case["states_gib"], rel=2e-3)
    if "peak_gib" in case:
        assert gib(detail.peak_allocated_bytes) == pytest.approx(case["peak_gib"], rel=0.06)


def test_activations_of_minimax_training_match_the_stated_figure():
    case = next(case for case in CASES if case["id"] == "A25e-0")
    model = load_model(case["model"])
    columns = table([layout_of(model, case["gpus"], **case["layout"])], [knobs_of(case["knobs"])])
    detail = memory(model, make_cluster(load_system(case["system"]), 64), Workload(), columns).detail(0)
    assert detail.worst_moment == "loss"
    assert gib(detail.terms["activations"].value) == pytest.approx(22.9, abs=0.1)
