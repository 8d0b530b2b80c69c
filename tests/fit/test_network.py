"""A network calibrated by nccl-tests: what was measured is what is predicted, and plans change with it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

import advisor
from advisor.cost import comm
from advisor.cost.placement import Span
from advisor.cost.profile import load_profile
from advisor.errors import InputError
from advisor.fit.network import calibrate_network
from advisor.spec.load.system import load_system, make_cluster
from tests.fit.nccl_logs import log

SIZES = [1 << n for n in range(10, 34)]
PROGRAMS = {"all_reduce": comm.all_reduce, "all_gather": comm.all_gather, "reduce_scatter": comm.reduce_scatter,
            "alltoall": comm.all_to_all}  # fmt: skip


def times(latency_us: float, gbs: float) -> dict[int, float]:
    """Out of place; the log prints twice that in place."""
    return {size: latency_us + size / gbs / 1e3 for size in SIZES}


def measured(latency_us: float, gbs: float, program: str) -> dict[int, float]:
    factor = 1 if program == "alltoall" else 2
    return {size: factor * us * 1e-6 for size, us in times(latency_us, gbs).items()}


@pytest.fixture(scope="module")
def logs(tmp_path_factory) -> list[Path]:
    """Every program on 2 and 8 ranks of a node, and on 2 and 4 nodes of a slow network."""
    folder = tmp_path_factory.mktemp("logs")
    paths = []
    for program in PROGRAMS:
        for ranks, (latency, gbs) in {2: (12, 300), 8: (25, 320), 16: (60, 100), 32: (90, 70)}.items():
            path = folder / f"{program}_{ranks}.log"
            path.write_text(log(program, ranks, 8, times(latency, gbs)), encoding="utf-8")
            paths.append(path)
    return paths


@pytest.fixture(scope="module")
def mine(logs, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("own") / "mine.yaml"
    path.write_text(calibrate_network(logs, "dgx-h100").text(), encoding="utf-8")
    return path


def seconds(system, program: str, size: int, inside: int, domains: int) -> float:
    found = load_system(system)
    cluster, profile = make_cluster(found, 64), load_profile(found.gpu)
    one = np.array([inside * domains])
    span = Span(one, np.array([1]), np.array([inside]), np.array([domains]), np.array([domains]))
    return float(PROGRAMS[program](profile, cluster, np.array([float(size)]), span)[0])


@pytest.mark.parametrize("program", list(PROGRAMS))
@pytest.mark.parametrize(("inside", "domains", "curve"), [(2, 1, (12, 300)), (8, 1, (25, 320)), (8, 2, (60, 100)),
                                                          (8, 4, (90, 70))])  # fmt: skip
def test_what_was_measured_is_predicted(mine, program, inside, domains, curve) -> None:
    for size, expected in measured(*curve, program).items():
        assert seconds(str(mine), program, size, inside, domains) == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize("program", list(PROGRAMS))
def test_outside_the_measured_sizes_latency_holds_and_the_last_slope_goes_on(mine, program) -> None:
    small, large = measured(60, 100, program)[SIZES[0]], measured(60, 100, program)
    assert seconds(str(mine), program, 8, 8, 2) == pytest.approx(small, rel=2e-3)
    slope = (large[SIZES[-1]] - large[SIZES[-2]]) / (SIZES[-1] - SIZES[-2])
    beyond = large[SIZES[-1]] + slope * SIZES[-1]
    assert seconds(str(mine), program, 2 * SIZES[-1], 8, 2) == pytest.approx(beyond, rel=5e-3)


@pytest.mark.parametrize("program", list(PROGRAMS))
def test_more_bytes_domains_or_ranks_per_card_are_never_faster(mine, program) -> None:
    grown = [seconds(str(mine), program, size, 8, 2) for size in (1, 999, 4096, 10**6, 3 * 10**8, 10**10)]
    assert grown == sorted(grown)
    wide = [seconds(str(mine), program, 1 << 28, 8, domains) for domains in (2, 3, 4, 6, 8)]
    assert wide == sorted(wide)
    if program != "alltoall":
        # A group with one rank per domain has one card there, not eight.
        assert seconds(str(mine), program, 1 << 30, 1, 2) > 3 * seconds(str(mine), program, 1 << 30, 8, 2)


def test_ranks_that_were_not_measured_keep_the_shipped_curve(mine) -> None:
    assert seconds(str(mine), "all_gather", 1 << 26, 4, 1) == seconds("dgx-h100", "all_gather", 1 << 26, 4, 1)
    assert seconds(str(mine), "all_gather", 1 << 26, 8, 1) != seconds("dgx-h100", "all_gather", 1 << 26, 8, 1)


def test_coefficients_come_along(logs) -> None:
    found = calibrate_network(logs, "dgx-h100")
    share, latency = found.fitted["network_share"], found.fitted["network_latency_s"]
    best = max(table.best_Bps / 8 for table in found.across if table.operation != "all_to_all")
    assert share.value == pytest.approx(best / 50e9)
    assert share.kind == latency.kind == "measured"
    assert len(found.inside) == len(found.across) == 8


def test_messages_measure_the_link(tmp_path) -> None:
    path = tmp_path / "sendrecv.log"
    path.write_text(log("sendrecv", 8, 8, times(14, 360)), encoding="utf-8")
    found = calibrate_network([path], "dgx-h100")
    assert found.fitted["p2p_link_share"].value == pytest.approx(360 / 450, rel=1e-3)
    assert found.fitted["p2p_latency_s"].value == pytest.approx(14e-6, rel=1e-2)
    assert not found.kernels.get("collectives_us")


def test_a_rack_is_one_domain_over_many_nodes(tmp_path) -> None:
    """GB200 NVL72: 16 nodes of 4 GPUs lie in one NVLink domain, 32 in two."""
    for ranks in (64, 128):
        (tmp_path / f"{ranks}.log").write_text(log("all_reduce", ranks, 4, times(30, 500)), encoding="utf-8")
    found = calibrate_network([tmp_path / "64.log", tmp_path / "128.log"], "gb200-nvl72")
    assert [one.ranks for one in found.inside] == [64]
    assert [one.ranks for one in found.across] == [128]
    assert list(found.kernels["network_us"]["all_reduce"]) == ["2"]


def test_sizes_slower_than_a_larger_one_are_left_out(tmp_path) -> None:
    rough = times(30, 100) | {1 << 20: 900_000.0}
    (tmp_path / "a.log").write_text(log("all_gather", 8, 8, rough), encoding="utf-8")
    found = calibrate_network([tmp_path / "a.log"], "dgx-h100")
    assert "1 sizes were slower than a larger one" in found.notes[0]
    assert 1 << 20 not in found.kernels["collectives_us"]["all_gather"]["8"]["bytes"]


def test_logs_of_another_system_are_refused(tmp_path) -> None:
    (tmp_path / "a.log").write_text(log("all_gather", 16, 16, times(30, 100)), encoding="utf-8")
    with pytest.raises(InputError, match="a node of dgx-h100 has 8 GPUs"):
        calibrate_network([tmp_path / "a.log"], "dgx-h100")


def test_calibrate_writes_a_system_that_plans_with_it(cli, logs, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = [word for path in logs for word in ("--nccl-tests", str(path))]
    ran = cli("calibrate", *words, "--system", "dgx-h100", "--out", "mine.yaml", "--format", "json")
    assert ran.code == 0, ran.err
    record = json.loads(ran.out)
    assert {(one["operation"], one["lie"], one["ranks"]) for one in record["tables"]} >= {
        ("all_reduce", "inside", 8), ("all_to_all", "across", 32),
    }  # fmt: skip
    body = yaml.safe_load(Path("mine.yaml").read_text(encoding="utf-8"))
    assert set(body["profile"]["kernels"]["network_us"]) == {"all_reduce", "all_gather", "reduce_scatter", "all_to_all"}
    job = {"model": "llama3-8b", "gpus": 16, "tp": 1, "gbs": 16, "recompute": "full"}
    own, shipped = (advisor.estimate(**job, system=name).candidate.step for name in ("mine.yaml", "dgx-h100"))
    assert own.terms["exposed_dp"].value > 1.2 * shipped.terms["exposed_dp"].value
    page = cli("calibrate", *words[:2])
    assert "outside the measured sizes" in page.out


def test_a_log_that_cannot_be_read_is_one_error(cli, tmp_path) -> None:
    (tmp_path / "a.log").write_text("nothing", encoding="utf-8")
    ran = cli("calibrate", "--nccl-tests", str(tmp_path / "a.log"))
    assert ran.code == 2
    assert "a table of times is missing" in ran.err
