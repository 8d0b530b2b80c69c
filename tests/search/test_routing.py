"""What router statistics cost a layout, as plan, estimate and why say it."""

from __future__ import annotations

import json

import jsonschema
import pytest

import advisor
from advisor import data
from advisor.errors import InputError

JOB = {"model": "qwen3-30b-a3b", "gpus": 16, "ep": 8}


@pytest.fixture(autouse=True)
def nowhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def stats(tmp_path_factory):
    """One hot expert per layer: 16 x the mean of the others."""
    path = tmp_path_factory.mktemp("router") / "stats.csv"
    rows = [f"{layer},{one},{1600 if one == layer else 100}" for layer in range(48) for one in range(128)]
    path.write_text("\n".join(["layer,expert,tokens", *rows]), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def found(stats):
    return advisor.estimate(**JOB, router_stats=stats)


def schema(name):
    return jsonschema.Draft202012Validator(
        json.loads(data.find("presets", f"schemas/{name}.schema.json").read_text(encoding="utf-8"))
    )


def test_the_hottest_rank_is_named(found):
    """Expert 0 of 128 has 1600 of 14300 tokens; its rank of 16 experts 3100, 1.734 x the mean of 8 ranks."""
    routing = found.imbalance
    assert routing.hottest == pytest.approx(3100 / (14300 / 8))
    assert (routing.worst_layer, routing.worst_rank, routing.ep) == (0, 0, 8)
    even = advisor.estimate(**JOB)
    assert routing.slowdown == pytest.approx(found.candidate.step.step_s / even.candidate.step.step_s - 1)
    freed = found.candidate.memory.peak_device_bytes - even.candidate.memory.peak_device_bytes
    assert routing.extra_bytes == pytest.approx(freed)
    assert routing.slowdown > 0.1


def test_changes_are_what_an_estimate_of_them_says(found, stats):
    changes = {(one.name, one.value): one for one in found.imbalance.changes}
    fewer = advisor.estimate(**(JOB | {"ep": 4}), router_stats=stats)
    assert changes["ep", 4].gain == pytest.approx(found.candidate.step.step_s / fewer.candidate.step.step_s - 1)
    capped = advisor.estimate(**JOB, router_stats=stats, routing="token-drop", capacity_factor=2.0)
    own = changes["capacity_factor", 2.0]
    assert own.gain == pytest.approx(found.candidate.step.step_s / capped.candidate.step.step_s - 1)
    mean = 14300 / 128
    assert own.dropped == pytest.approx((1600 - 2 * mean) / 14300)
    assert own.hottest == pytest.approx((2 * mean + 1500) / (14300 / 8))


def test_the_finding_says_both_and_takes_what_fits(found):
    (finding,) = [one for one in found.findings if one.rule == "router-imbalance"]
    assert finding.severity == "info"
    assert "1.73 x the mean" in finding.message
    assert finding in found.candidate.findings


def test_records_follow_their_schemas(found, stats):
    schema("estimate").validate(json.loads(json.dumps(found.to_dict())))
    plan = advisor.plan("qwen3-30b-a3b", 16, router_stats=stats, fix="ep=8,tp=1,pp=2")
    record = json.loads(json.dumps(plan.to_dict()))
    schema("plan").validate(record)
    assert record["router"]["worst_layer"] == 0
    assert [one["rule"] for one in record["candidates"][0]["findings"]].count("router-imbalance") == 1
    broken = record | {"router": record["router"] | {"hottest": 1.0}}
    with pytest.raises(jsonschema.ValidationError):
        schema("plan").validate(broken)
    assert advisor.estimate(**JOB).to_dict()["router"] is None


def test_a_search_under_statistics_knows_the_best_it_can_be(stats):
    """Priced with statistics, the best layout is at least as fast as the one that is best when experts are even."""
    fix = "tp=1,mbs=1,recompute=full,dispatcher=alltoall"
    even = advisor.plan("qwen3-30b-a3b", 16, fix=fix)
    uneven = advisor.plan("qwen3-30b-a3b", 16, fix=fix, router_stats=stats)
    layout = even.best.layout
    same = advisor.estimate(
        "qwen3-30b-a3b", 16, router_stats=stats, dispatcher="alltoall", recompute="full",
        **{name: getattr(layout, name) for name in ("tp", "pp", "vpp", "cp", "ep", "etp", "mbs", "gbs")},
    )  # fmt: skip
    assert uneven.best.step.step_s <= same.candidate.step.step_s * (1 + 1e-9)


def test_what_contradicts_statistics_is_refused(stats):
    with pytest.raises(InputError, match="say the same thing twice"):
        advisor.estimate(**JOB, router_stats=stats, router_skew=1.5)
    with pytest.raises(InputError, match="count in training"):
        advisor.estimate(**JOB, router_stats=stats, mode="weights")
    with pytest.raises(InputError, match="has no experts"):
        advisor.estimate("llama3-8b", 16, router_stats=stats)


@pytest.mark.parametrize("verb", ["estimate", "why"])
def test_pages_show_the_block(cli, stats, verb):
    words = [verb, "--model", "qwen3-30b-a3b", "--gpus", "16", "--ep", "8", "--pp", "2", "--router-stats", stats]
    ran = cli(*words)
    assert ran.code in {0, 1}
    assert "router statistics: 48 layers of 128 experts" in ran.out
    assert "what would even it out" in ran.out
    assert "router-imbalance" in ran.out


def test_a_bad_file_is_one_error(cli, tmp_path):
    bad = tmp_path / "bad.csv"
    bad.write_text("layer,expert,tokens\n0,0,nan\n", encoding="utf-8")
    ran = cli("estimate", "--model", "qwen3-30b-a3b", "--gpus", "16", "--ep", "8", "--router-stats", str(bad))
    assert ran.code == 2
    assert "line 2" in ran.err
