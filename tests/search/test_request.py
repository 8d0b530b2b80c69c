"""Settings and their origins, defaults, and clear errors for everything that cannot be used."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.errors import AdvisorError, InputError, UnknownNameError
from advisor.search.dials import fixed_fields, knob_fields, knob_words, recompute_fields
from advisor.search.options import PlanOptions
from advisor.search.request import default_gbs, resolve
from advisor.search.sources import Setting, merge
from advisor.search.values import headroom_bytes, pairs, real, switch, whole
from advisor.spec.layout import CudaGraph, Dispatcher, Fsdp, Knobs

ALLOWED = frozenset({"model", "gpus", *PlanOptions.__annotations__} - {"given_by"})


@pytest.fixture(autouse=True)
def nowhere(tmp_path, monkeypatch):
    """No settings file and no ADVISOR_* variable of the host reaches a test."""
    import os

    for name in [name for name in os.environ if name.startswith("ADVISOR_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _given(**more):
    return {name: Setting(value, "argument") for name, value in {"model": "minimax-m2", "gpus": 64, **more}.items()}


@pytest.mark.parametrize(
    ("gpus", "seq_len", "gbs"),
    [(64, 4096, 512), (16384, 4096, 16384), (8, 4096, 128), (1024, 4096, 4096), (64, 8192, 256), (64, 131072, 16)],
)
def test_default_batch(gpus, seq_len, gbs):
    assert default_gbs(gpus, seq_len) == gbs


@given(st.integers(1, 20_000), st.sampled_from([1, 512, 4096, 8192, 131072, 1_000_000]))
def test_default_batch_keeps_the_odd_part(gpus, seq_len):
    odd = gpus
    while odd % 2 == 0:
        odd //= 2
    gbs = default_gbs(gpus, seq_len)
    assert gbs >= 1
    assert gbs % odd == 0
    assert (gbs // odd) & (gbs // odd - 1) == 0, "the rest is a power of two"


def test_origin_order(nowhere, monkeypatch):
    (nowhere / "config" / "advisor").mkdir(parents=True)
    (nowhere / "config" / "advisor" / "advisor.toml").write_text("top = 9\nsystem = 'dgx-a100-80gb'\nseq-len = 1024\n")
    (nowhere / "pyproject.toml").write_text("[tool.advisor]\nsystem = 'dgx-b200'\nprecision = 'fp16'\n")
    (nowhere / "advisor.toml").write_text("precision = 'mxfp8'\nformat = 'json'\n")
    monkeypatch.setenv("ADVISOR_SEQ_LEN", "2048")
    found = merge({"gpus": 8, "top": None}, ALLOWED, "flag")
    assert found["gpus"] == Setting(8, "flag")
    assert found["seq_len"] == Setting("2048", "ADVISOR_SEQ_LEN")
    assert found["precision"] == Setting("mxfp8", "./advisor.toml")
    assert found["system"] == Setting("dgx-b200", "./pyproject.toml [tool.advisor]")
    assert found["top"].value == 9
    assert found["top"].origin.endswith("advisor.toml")
    assert "format" not in found, "settings of the command line are none of a search"


def test_resolved_settings_show_alias_and_origin():
    request = resolve(_given(precision="fp8", system="h100"))
    assert request.settings["precision"] == Setting("fp8-current", "argument", "fp8 is an alias of fp8-current")
    assert request.settings["system"].value == "dgx-h100"
    assert request.settings["seq_len"] == Setting(4096, "default")
    assert request.settings["gbs"].value == request.gbs == 512
    assert request.settings["gbs"].origin == "default"
    assert "odd part" in request.settings["gbs"].note
    assert list(request.settings)[:4] == ["model", "gpus", "system", "precision"]


@pytest.mark.parametrize("headroom", ["8%", "0.08", 0.08, " 8 % "])
def test_headroom_is_cut_from_the_usable_memory(headroom):
    request = resolve(_given(headroom=headroom))
    assert request.budget_bytes == pytest.approx(0.92 * request.cluster.usable_bytes)


def test_headroom_in_gib():
    assert headroom_bytes("4GiB", 80 * 2**30) == 4 * 2**30
    assert headroom_bytes(4, 80 * 2**30) == 4 * 2**30
    with pytest.raises(InputError, match="leaves nothing"):
        headroom_bytes("100%", 80 * 2**30)


@pytest.mark.parametrize(
    "more",
    [
        {"gpus": "NaN"}, {"gpus": -8}, {"gpus": 0}, {"gpus": 1e300}, {"gpus": float("nan")}, {"gpus": True},
        {"gpus": 8.5}, {"gpus": None}, {"gpus": "8; rm"}, {"seq_len": 0}, {"seq_len": "x"}, {"gbs": 0}, {"gbs": "inf"},
        {"headroom": "-5%"}, {"headroom": "lots"}, {"headroom": float("nan")}, {"router_skew": 0.5},
        {"router_skew": "nan"}, {"oversubscription": 0}, {"usable_gib": float("inf")}, {"precision": "bf17"},
        {"objective": "beauty"}, {"top": 0}, {"allow": "everything"}, {"fix": "tp"}, {"fix": "tp="}, {"fix": "tq=2"},
        {"fix": "tp=0"}, {"fix": 7}, {"routing": "random"}, {"rank_order": "pp-tp"}, {"model": "minimax-m22"},
        {"system": "dgx-h1000"}, {"gpus": 12},
    ],
)  # fmt: skip
def test_input_that_cannot_be_used_is_one_clear_error(more):
    with pytest.raises(AdvisorError) as caught:
        resolve(_given(**more))
    assert caught.value.message
    assert caught.value.exit_code == 2


def test_unknown_settings_name_the_closest(nowhere):
    with pytest.raises(UnknownNameError, match="sistem") as caught:
        merge({"sistem": "dgx-h100"}, ALLOWED)
    assert "system" in (caught.value.hint or "")
    (nowhere / "advisor.toml").write_text("sistem = 'dgx-h100'")
    with pytest.raises(UnknownNameError, match=r"\./advisor\.toml"):
        merge({}, ALLOWED)


@pytest.mark.parametrize("text", [b"\xff\x00binary", b"system = ", b"[tool"])
def test_a_broken_settings_file_is_an_input_error(nowhere, text):
    (nowhere / "advisor.toml").write_bytes(text)
    with pytest.raises(InputError, match=r"advisor\.toml"):
        merge({}, ALLOWED)


def test_a_directory_as_settings_file_is_an_input_error(nowhere):
    (nowhere / "advisor.toml").mkdir()
    with pytest.raises(InputError, match=r"advisor\.toml"):
        merge({}, ALLOWED)


def test_fixed_fields_are_parsed_once():
    fixed = fixed_fields(pairs("fix", "tp=2, ep=32,recompute=moe_act+layernorm,dispatcher=hybridep,fsdp=true"))
    assert fixed == {
        "tp": 2, "ep": 32, "recompute": ("moe_act", "layernorm"), "full_uniform": 0, "full_block": 0,
        "dispatcher": Dispatcher.hybridep, "fsdp": Fsdp.optim_grads_params,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("none", {"recompute": (), "full_uniform": 0, "full_block": 0}),
        ("full", {"recompute": (), "full_uniform": 1, "full_block": 0}),
        ("full-block:3", {"recompute": (), "full_uniform": 0, "full_block": 3}),
        (["mla-up-proj", "core_attn"], {"recompute": ("core_attn", "mla_up_proj"), "full_uniform": 0, "full_block": 0}),
    ],
)
def test_recompute_words(text, expected):
    assert recompute_fields(text) == expected


def test_recompute_cannot_be_full_and_selective():
    with pytest.raises(InputError, match="mixes"):
        recompute_fields("full,moe_act")


@given(
    st.fixed_dictionaries(
        {
            "recompute": st.sampled_from(["none", "full", "full-block:2", "moe_act,mlp"]),
            "dispatcher": st.sampled_from(list(Dispatcher.__members__)),
            "cuda_graph": st.sampled_from(list(CudaGraph.__members__)),
            "fsdp": st.sampled_from(list(Fsdp.__members__)),
            "ep_overlap": st.booleans(),
            "optimizer_offload": st.floats(0, 1),
            "grad_dtype": st.sampled_from(["fp32", "bf16"]),
        }
    )
)
def test_knob_words_are_read_back(given_words):
    knobs = Knobs(**knob_fields(given_words))
    assert Knobs(**knob_fields(knob_words(knobs))) == knobs


def test_plain_values():
    assert whole("n", "1,024") == 1024
    assert switch("x", "Off") is False
    assert real("x", "1.5", 1, 2) == 1.5
    for broken in ("maybe", 2, None):
        with pytest.raises(InputError):
            switch("x", broken)


def test_a_system_file_keeps_its_path(nowhere):
    (nowhere / "own.yaml").write_text("{gpu: h100, gpus_per_node: 8, nic_gbps_per_gpu: 200, name: mine}")
    for path in ("own.yaml", str(nowhere / "own.yaml")):
        system = resolve(_given(system=path)).settings["system"]
        assert (system.value, system.note) == (path, "describes mine")
