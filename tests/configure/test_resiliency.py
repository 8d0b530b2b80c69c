"""Resiliency settings: derived values and their order, refused pairs, and the texts that carry them."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from advisor.configure.chosen import read_plan
from advisor.configure.conflicts import CONFLICTS, Wishes
from advisor.configure.facts import reliability_facts
from advisor.configure.recovery import hazards
from advisor.configure.resiliency import bridge_target, resiliency
from advisor.configure.timeouts import timeouts
from advisor.errors import InputError, UnknownNameError
from advisor.export.resiliency import bridge_overrides, bridge_python, megatron_flags, nemo_run_plugins, without_flag
from tests.configure.plans import plan_file

PRESETS = Path(__file__).parents[2] / "presets"
FIELDS = json.loads((PRESETS / "check" / "bridge_fields.json").read_text())["sections"]
MEGATRON = json.loads((PRESETS / "launch" / "megatron_arguments.json").read_text())["flags"]
FLAGS = yaml.safe_load((PRESETS / "launch" / "resiliency_flags.yaml").read_text())["flags"]


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plans")
    return {name: read_plan(plan_file(folder, name)) for name in ("m2", "dense", "fsdp", "graph", "llama405")}


WAYS = {
    "plain": Wishes(checkpoint_dir="/ckpt"),
    "local": Wishes(checkpoint_dir="/ckpt", local_dir="/nvme"),
    "in process": Wishes(launcher="srun", in_process=True, spares=2),
    "synchronous": Wishes(async_save=False, rerun="report_determinism_stats"),
    "torchrun": Wishes(launcher="torchrun", detector="legacy"),
    "plugins": Wishes(launcher="nemo-run", preemption_plugin=True),
    "no saves": Wishes(launcher="srun", checkpoint_dir=None, detector="none", preemption=False),
    "old": Wishes(target="0.3", stop_on_straggler=True),
}


@pytest.fixture(scope="module")
def found(plans):
    return {name: resiliency(plans["m2"], wishes) for name, wishes in WAYS.items()}


@pytest.mark.parametrize("name", WAYS)
def test_every_field_exists_in_the_target(found, name):
    one = found[name]
    for value in one.values:
        section, _, field = value.path.partition(".")
        entry = FIELDS[section][field]
        assert entry.get("only", one.wishes.target) == one.wishes.target, value.path
        assert value.reason


@pytest.mark.parametrize("name", WAYS)
def test_every_flag_exists_in_megatron(found, name):
    words = iter(megatron_flags(found[name]))
    for word in words:
        entry = MEGATRON[word.removeprefix("--")]
        if entry["kind"] in {"on", "off"}:
            continue
        value = next(words)
        assert (
            value in entry["choices"]
            if "choices" in entry
            else {"int": int, "float": float}.get(entry["kind"], str)(value) is not None
        )


def test_fields_without_a_flag_are_known(found):
    for one in found.values():
        assert set(without_flag(one)) <= {
            "checkpoint.most_recent_k", "rerun_state_machine.check_for_spiky_loss",
            *(value.path for value in one.values if value.path.startswith("nvrx_straggler.")),
        }  # fmt: skip
    for form in FLAGS.values():
        assert next(form[key] for key in ("if_true", "if_false", "value") if key in form) in MEGATRON


def test_a_word_that_the_two_spell_differently(found):
    assert "rerun_state_machine.rerun_mode=report_determinism_stats" in bridge_overrides(found["synchronous"])
    flags = megatron_flags(found["synchronous"])
    assert flags[flags.index("--rerun-mode") + 1] == "report_stats"


def test_local_checkpoints_need_more_than_the_two_lines(found):
    one = found["local"]
    assert one.value("checkpoint.non_persistent_ckpt_type") == "local"
    assert one.value("checkpoint.non_persistent_save_interval") > 0
    assert one.value("checkpoint.non_persistent_local_ckpt_dir") == "/nvme"
    assert one.value("checkpoint.replication_jump") == 8
    assert one.value("checkpoint.save_interval") > one.value("checkpoint.non_persistent_save_interval")


def test_timeouts_are_learnt_only_from_synchronous_saves(found):
    assert found["plain"].value("ft.calc_ft_timeouts") is False
    assert found["synchronous"].value("ft.calc_ft_timeouts") is True
    assert found["torchrun"].value("ft.enable_ft_package") is None


def test_the_loss_is_not_looked_at_inside_a_full_graph(plans):
    assert resiliency(plans["graph"], Wishes()).value("rerun_state_machine.check_for_nan_in_loss") is False
    assert resiliency(plans["m2"], Wishes()).value("rerun_state_machine.check_for_nan_in_loss") is True


def test_the_format_follows_fsdp_and_the_target(plans):
    new = resiliency(plans["fsdp"], Wishes())
    assert new.value("checkpoint.ckpt_format") == "fsdp_dtensor"
    assert new.value("checkpoint.async_save") is True
    assert "async-save-dtensor" in {one.rule for one in new.findings}
    assert resiliency(plans["fsdp"], Wishes(target="0.3")).value("checkpoint.async_save") is False


def test_spares_wait_in_reserve(found):
    assert found["in process"].value("inprocess_restart.active_world_size") == 64
    assert found["in process"].setup.spares == 2
    assert {one.path: one.value for one in found["in process"].environment} == {
        "TORCH_CPP_LOG_LEVEL": "error", "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0", "NCCL_NVLS_ENABLE": "0",
    }  # fmt: skip


REFUSED = [
    (Wishes(launcher="nemo-run", in_process=True), "in-process-with-nemo-run"),
    (Wishes(launcher="srun", in_process=True, preemption_plugin=True), "in-process-with-preemption-plugin"),
    (Wishes(launcher="ft_launcher", in_process=True), "in-process-with-ft-launcher"),
    (Wishes(launcher="srun", in_process=True, fault_tolerance=True), "in-process-with-ft-launcher"),
    (Wishes(launcher="torchrun", fault_tolerance=True), "ft-with-torchrun"),
    (Wishes(launcher="srun", fault_tolerance=True), "ft-with-srun"),
    (Wishes(nsys=True), "ft-with-nsys"),
    (Wishes(checkpoint_dir=None), "ft-without-checkpoint"),
    (Wishes(detector="both"), "two-straggler-detectors"),
    (Wishes(detector="legacy", stop_on_straggler=True), "stop-without-detector"),
    (Wishes(async_save=True, ckpt_format="torch"), "async-save-format"),
    (Wishes(launcher="srun", async_save=True, checkpoint_dir=None), "async-save-without-directory"),
    (Wishes(ckpt_format="fsdp_dtensor"), "dtensor-without-fsdp"),
]


@pytest.mark.parametrize(("wishes", "rule"), REFUSED)
def test_pairs_that_exclude_each_other(plans, wishes, rule):
    with pytest.raises(InputError, match=f"{rule}: ") as refused:
        resiliency(plans["m2"], wishes)
    assert refused.value.hint


def test_pairs_that_a_plan_excludes(plans):
    with pytest.raises(InputError, match="fsdp-format: "):
        resiliency(plans["fsdp"], Wishes(ckpt_format="torch_dist"))
    with pytest.raises(InputError, match="nan-check-in-full-graph: "):
        resiliency(plans["graph"], Wishes(nan_check=True))


def test_every_conflict_is_tested_and_has_a_source():
    tested = {rule for _, rule in REFUSED} | {"fsdp-format", "nan-check-in-full-graph"}
    assert tested == {one.id for one in CONFLICTS}
    assert all(one.source and one.fix for one in CONFLICTS)


def test_all_conflicts_are_told_at_once(plans):
    with pytest.raises(InputError) as refused:
        resiliency(plans["m2"], Wishes(launcher="torchrun", fault_tolerance=True, nsys=True, detector="both"))
    assert all(
        rule in refused.value.message for rule in ("ft-with-torchrun", "ft-with-nsys", "two-straggler-detectors")
    )


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    step=st.floats(0.01, 600), spread=st.floats(1, 2), write=st.floats(0.1, 5000), copy=st.floats(0.1, 100),
    async_save=st.booleans(), in_process=st.booleans(),
)  # fmt: skip
def test_timeouts_fire_in_order(plans, step, spread, write, copy, async_save, in_process):
    one = plans["m2"]
    slow = dataclasses.replace(one.step, step_s=step, high_s=step * spread)
    chosen = dataclasses.replace(one, candidate=dataclasses.replace(one.candidate, step=slow))
    met = hazards(chosen)
    met = dataclasses.replace(met, cost=dataclasses.replace(met.cost, write_s=write, load_s=write, snapshot_s=copy))
    got = timeouts(chosen, met, reliability_facts(), async_save=async_save, in_process=in_process)
    assert step * spread < got.soft_s < got.hard_s < got.barrier_s
    assert got.heartbeat_s < got.barrier_s
    assert got.hard_s < got.nccl_min * 60 or not in_process
    assert step * spread < got.step_s
    if not in_process:
        assert max(got.step_s, got.checkpointing_s, got.outside_s) < got.nccl_min * 60
    assert write < got.checkpointing_s
    assert write < got.setup_s
    if not async_save:
        assert write < got.soft_s
    assert got.preempt_lead_s > 2 * step * spread + write
    assert re.fullmatch(r"setup:\d+,step:\d+,checkpointing:\d+", got.sections)


def test_a_larger_job_fails_and_saves_more_often(plans):
    small, large = (resiliency(plans[name], Wishes()) for name in ("dense", "llama405"))
    assert large.met.mtbf_s < small.met.mtbf_s / 500
    assert large.result.interval.seconds < small.result.interval.seconds
    assert large.max_restarts > small.max_restarts == 3
    assert large.setup.spares > small.setup.spares == 0


@pytest.mark.parametrize(
    ("name", "target"), [("0.6", "0.6"), ("0.6.2", "0.6"), ("bridge-0.3", "0.3"), ("0.3.1", "0.3")]
)
def test_targets(name, target):
    assert bridge_target(name) == target


def test_unknown_targets_are_refused():
    with pytest.raises(UnknownNameError):
        bridge_target("0.9")


@pytest.mark.parametrize("name", WAYS)
def test_python_compiles_and_sets_every_field(found, name):
    one = found[name]
    text = bridge_python(one)
    compile(text, "resiliency.py", "exec")
    for value in one.values:
        assert value.path.partition(".")[2] in text
    compile(nemo_run_plugins(one), "plugins.py", "exec")


def test_plugins(found):
    text = nemo_run_plugins(found["plugins"])
    assert "FaultTolerancePlugin(" in text
    assert f"preempt_time={found['plugins'].limits.preempt_lead_s}" in text
    assert nemo_run_plugins(found["no saves"]) == "plugins = []\n"


@pytest.mark.parametrize("to", ["bridge", "bridge-overrides", "megatron-lm", "plugins", "launcher", "env"])
def test_texts_of_the_verb(cli, tmp_path, to):
    ran = cli("resiliency", str(plan_file(tmp_path, "dense")), "--to", to)
    assert ran.code == 0, ran.err


def test_record_and_page_of_the_verb(cli, tmp_path):
    path = str(plan_file(tmp_path, "m2"))
    ran = cli("resiliency", path, "--mtbf-hours", "8", "--checkpoint-write-gbs", "20", "--format", "json")
    assert ran.code == 0, ran.err
    record = json.loads(ran.out)
    assert record["mtbf_s"] == 8 * 3600
    assert record["checkpoint"]["write_s"] == pytest.approx(160, rel=0.01)
    assert {one["field"] for one in record["settings"]} >= {"checkpoint.save_interval", "ft.enable_ft_package"}
    assert record["result"]["goodput"]["productive"] > 0.8
    page = cli("resiliency", path, "--mtbf-hours", "8").out
    assert "because" in page
    assert "Young/Daly" in page


def test_a_wish_that_cannot_work_gives_a_negative_answer(cli, tmp_path):
    system = tmp_path / "small_host.yaml"
    system.write_text(
        "gpu: h100-sxm-80gb\ngpus_per_node: 8\nnvlink_domain: 8\nnvlink_uni_gbs: 450\nnic_gbps_per_gpu: 400\n"
        "node_nic_gbps: 3200\ninter_domain_uni_gbs: 50\nhost_gib: 100\nsources: [test]\n"
    )
    path = str(plan_file(tmp_path, "m2", system=str(system)))
    asked = cli("resiliency", path, "--async-save")
    assert asked.code == 1
    assert "async-save-host-memory" in asked.out
    left = cli("resiliency", path, "--format", "json")
    assert left.code == 0
    values = {one["field"]: one["value"] for one in json.loads(left.out)["settings"]}
    assert values["checkpoint.async_save"] is False


def test_days_and_cost(cli, tmp_path):
    path = str(plan_file(tmp_path, "dense"))
    words = ("--tokens", "1T", "--gpu-hour-price", "2.5", "--replicas", "2", "--format", "json")
    record = json.loads(cli("goodput", path, *words).out)
    got, chosen = record["result"], read_plan(path)
    assert got["ideal_days"] == pytest.approx(1e12 / (64 * 4096) * chosen.step.step_s / 86400)
    assert got["days"] == pytest.approx(got["ideal_days"] / got["productive"])
    assert got["gpu_hours"] == pytest.approx(got["days"] * 24 * 16)
    assert got["cost"] == pytest.approx(2.5 * got["gpu_hours"])
    assert record["simulated"]["replicas"] == 2
    none = json.loads(cli("goodput", path, "--tokens", "1T", "--replicas", "0", "--format", "json").out)
    assert (none["simulated"], none["result"]["cost"]) == (None, None)
    assert "lost days" in cli("goodput", path, "--tokens", "15T").out


@pytest.mark.parametrize("tokens", ["", "x", "-1T", "0", "1P", "1e30", "nan", "1TT"])
def test_no_tokens(cli, tmp_path, tokens):
    ran = cli("goodput", str(plan_file(tmp_path, "dense")), f"--tokens={tokens}")
    assert (ran.code, ran.out) == (2, "")
    assert "tokens" in ran.err


@pytest.mark.parametrize(
    "words",
    ["--mtbf-hours 0", "--mtbf-hours x", "--rate nasa", "--checkpoint-write-gbs -1", "--spare-nodes -1",
     "--candidate 0", "--target-version 9", "--straggler x", "--launcher mpirun"],
)  # fmt: skip
def test_bad_words(cli, tmp_path, words):
    ran = cli("resiliency", str(plan_file(tmp_path, "dense")), *words.split())
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.count("error: ") == 1
