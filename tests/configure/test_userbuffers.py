"""User buffers: exact, nearest with its differences, generated, or none with a reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from advisor.configure.job import preset
from advisor.configure.userbuffers import choose, generate, preset_gemms, preset_names
from advisor.errors import UnknownNameError
from advisor.spec.load.system import load_system, make_cluster
from advisor.spec.precision import PRECISIONS
from tests.configure.jobs import job_for_preset

LLAMA_70B = "userbuffers_bf16_h100_h8192_tp4_mbs1_seqlen8192"


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_is_exact_for_its_own_shape(name: str) -> None:
    lora = bool(preset("userbuffers.yaml")["presets"][name]["lora"])
    found = choose(job_for_preset(name), active=True, why_not="", lora=lora)
    assert (found.match, found.name, found.differences) == ("exact", name, ())
    assert found.gemms == preset_gemms(name)


def test_there_are_nineteen_with_all_gemms() -> None:
    gemms = set(preset("userbuffers.yaml")["schema"]["gemms"])
    assert len(preset_names()) == 19
    for name in preset_names():
        frozen = {"qkv_wgrad", "fc1_wgrad"} if name.endswith("lora") else set()
        assert set(preset_gemms(name)) == gemms - frozen


def test_nearest_says_what_differs() -> None:
    job = job_for_preset(LLAMA_70B)
    job = replace(job, layout=replace(job.layout, tp=8, cp=2), workload=replace(job.workload, seq_len=4096))
    found = choose(job, active=True, why_not="")
    assert (found.match, found.name) == ("nearest", LLAMA_70B)
    assert found.differences == ("tp 4 (here 8)", "cp 1 (here 2)", "seq_len 8192 (here 4096)")
    assert found.custom


def test_hidden_size_architecture_and_format_must_agree() -> None:
    job = job_for_preset(LLAMA_70B)
    other = replace(job, model=replace(job.model, hidden=5120))
    found = choose(other, active=True, why_not="")
    assert (found.match, found.name) == ("none", None)
    assert "5120" in found.reason
    assert "default" in found.reason
    assert found.custom
    for changed in (
        replace(job, cluster=make_cluster(load_system("dgx-a100-80gb"), 64)),
        replace(job, workload=replace(job.workload, precision=PRECISIONS["nvfp4"])),
    ):
        found = choose(changed, active=True, why_not="")
        assert (found.match, dict(found.custom)) == ("none", {})


@pytest.mark.parametrize("system", ["dgx-b200", "dgx-b300", "gb200-nvl72", "gb300-nvl72"])
def test_blackwell_systems_share_their_presets(system: str) -> None:
    job = job_for_preset("userbuffers_fp8_b200_h8192_tp2_mbs1_seqlen8192")
    cluster = make_cluster(load_system(system), 64)
    job = replace(job, cluster=cluster, workload=replace(job.workload, precision=PRECISIONS["mxfp8"]))
    assert choose(job, active=True, why_not="").match == "exact"


def test_lora_takes_only_lora_presets() -> None:
    job = job_for_preset(LLAMA_70B)
    assert choose(job, active=True, why_not="", lora=True).match == "none"
    assert set(generate(job, lora=True)) == set(preset_gemms(LLAMA_70B)) - {"qkv_wgrad", "fc1_wgrad"}


def test_off_means_none_with_the_reason() -> None:
    found = choose(job_for_preset(LLAMA_70B), active=False, why_not="TP is 1")
    assert (found.match, dict(found.gemms)) == ("none", {})
    assert "TP is 1" in found.reason


def test_generated_settings_have_the_method_of_each_gemm() -> None:
    made = generate(job_for_preset(LLAMA_70B))
    methods = {gemm: row["method"] for gemm, row in made.items()}
    assert methods["qkv_fprop"] == methods["fc1_fprop"] == methods["proj_dgrad"] == "ring_exchange"
    assert methods["proj_fprop"] == "pipeline"
    assert {methods[gemm] for gemm in ("qkv_dgrad", "fc1_dgrad", "qkv_wgrad", "fc1_wgrad")} == {"bulk"}
    assert made["proj_fprop"]["num_splits"] == 4
    fp8 = generate(job_for_preset(LLAMA_70B.replace("bf16", "fp8")))
    assert fp8["fc2_fprop"]["method"] == "ring_exchange"


def test_a_preset_by_name_is_taken_with_its_differences() -> None:
    name = "userbuffers_bf16_h100_h12288_tp4_mbs1_seqlen2048"
    found = choose(job_for_preset(LLAMA_70B), active=True, why_not="", named=name)
    assert (found.match, found.name) == ("nearest", name)
    assert "hidden_size 12288 (here 8192)" in found.differences
    with pytest.raises(UnknownNameError, match="no user-buffer preset"):
        choose(job_for_preset(LLAMA_70B), active=True, why_not="", named="userbuffers_h100")
