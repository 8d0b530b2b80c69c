import os
import random

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.errors import AdvisorError, InputError, UnknownNameError
from advisor.spec.load.fields import MAX_FILE_BYTES
from advisor.spec.load.system import (
    default_used_per_domain,
    gpu_names,
    load_gpu,
    load_system,
    make_cluster,
    ranks_per_node,
    system_names,
)

OWN = {
    "gpu": "h100",
    "gpus_per_node": 8,
    "nvlink_domain": 8,
    "nvlink_uni_gbs": 450,
    "nic_gbps_per_gpu": 400,
}


def write(tmp_path, values, name="own.yaml"):
    path = tmp_path / name
    path.write_text(values if isinstance(values, str) else yaml.safe_dump(values))
    return path


@pytest.mark.parametrize("name", system_names())
def test_every_system_preset_loads_with_a_source(name):
    system = load_system(name)
    assert system.name == name
    assert system.sources
    assert system.inter_domain_uni_gbs == pytest.approx(system.nic_gbps_per_gpu / 8)
    assert make_cluster(system, 2 * max(system.gpus_per_node, system.nvlink_domain)).usable_gib > 0


@pytest.mark.parametrize("name", gpu_names())
def test_every_gpu_has_a_natural_system_of_its_own_kind(name):
    assert load_system(name).gpu.name == name
    assert load_gpu(name).sources


@pytest.mark.parametrize(
    ("alias", "system"),
    [
        ("h100", "dgx-h100"), ("H100", "dgx-h100"), ("b200", "dgx-b200"), ("gb200", "gb200-nvl72"),
        ("gb300", "gb300-nvl72"), ("a100", "dgx-a100-80gb"), ("h200", "dgx-h200"), ("vr200", "vr200-nvl72"),
        ("gb200-nvl72", "gb200-nvl72"), (" dgx-h100 ", "dgx-h100"),
    ],
)  # fmt: skip
def test_a_gpu_alias_stands_for_its_natural_system(alias, system):
    assert load_system(alias).name == system


# torch's own print, GiB; the nominal peaks of the data sheets, TFLOP/s dense
@pytest.mark.parametrize(
    ("name", "usable", "bf16", "hbm"),
    [
        ("a100", 79.15, 312, 2039),
        ("h100", 79.19, 989.4, 3350),
        ("b200", 178.35, 2250, 7700),
        ("gb300", 276.5, 2500, 8000),
    ],
)
def test_facts_of_common_gpus(name, usable, bf16, hbm):
    gpu = load_gpu(name)
    assert (gpu.usable_gib, gpu.peak_tflops["bf16"], gpu.hbm_gbs) == (usable, bf16, hbm)
    assert gpu.usable_kind == "measured"


def test_a_format_the_gpu_lacks_is_absent():
    assert "fp8" not in load_gpu("a100").peak_tflops
    assert "nvfp4" not in load_gpu("h100").peak_tflops


@pytest.mark.parametrize(
    ("name", "close"), [("dgx-h10", "dgx-h100"), ("h10o", "h100"), ("gb200nvl72", "gb200-nvl72"), ("B2000", "b200")]
)
def test_unknown_names_get_the_closest(name, close):
    with pytest.raises(UnknownNameError) as error:
        load_system(name)
    assert close in error.value.hint
    assert name in error.value.message


@pytest.mark.parametrize("name", ["", "\0", "x" * 5000, "no such thing", "🙂", "-1"])
def test_nonsense_names_are_one_clear_error(name):
    with pytest.raises(InputError):
        load_system(name)
    with pytest.raises(UnknownNameError):
        load_gpu(name)


def test_a_file_of_the_same_form_describes_an_own_cluster(tmp_path):
    path = write(
        tmp_path,
        {
            **OWN,
            "usable_gib": 70,
            "used_per_domain": 4,
            "host_gib": 1024,
            "oversubscription": 2,
            "nic_gbps_per_gpu": 200,
        },
    )
    system = load_system(str(path))
    cluster = make_cluster(system, 16)
    assert system.name == "own"
    assert (cluster.usable_gib, cluster.used_per_domain, system.host_gib) == (70, 4, 1024)
    assert cluster.network_Bps == pytest.approx(200e9 / 8 / 2)
    assert cluster.origin["used_per_domain"] == "system"
    assert make_cluster(system, 16, used_per_domain=8).origin["used_per_domain"] == "given"


def test_presets_can_be_copied_as_an_own_file(tmp_path):
    from advisor import data

    for name, path in data.listing("presets", "systems", ".yaml").items():
        copy = write(tmp_path, path.read_text(), f"{name}.yaml")
        assert load_system(copy) == load_system(name)


def test_an_inline_gpu_needs_few_facts(tmp_path):
    gpu = {"name": "mine", "peak_dense_tflops": {"bf16": 500}, "hbm": {"capacity_gb": 64, "bandwidth_gbs": 2000}}
    system = load_system(write(tmp_path, {**OWN, "gpu": gpu}))
    assert system.gpu.name == "mine"
    assert make_cluster(system, 8).usable_kind == "assumed"


def test_numbers_that_yaml_takes_for_text_are_numbers(tmp_path):
    assert load_system(write(tmp_path, yaml.safe_dump(OWN) + "host_gib: 2e3\n")).host_gib == 2000


def test_all_problems_of_a_file_are_told_at_once(tmp_path):
    bad = {
        **OWN,
        "gpu": "h1000",
        "nic_gbps_per_gpu": -400,
        "gpus_per_nod": 8,
        "host_gib": float("nan"),
        "nvlink_domain": 3,
    }
    with pytest.raises(InputError) as error:
        load_system(write(tmp_path, bad))
    text = error.value.message
    for part in ("'h1000'", "h100", "-400", "gpus_per_nod", "did you mean gpus_per_node", "nan", "do not nest"):
        assert part in text


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("nic_gbps_per_gpu", 0), ("nic_gbps_per_gpu", 1e30), ("nic_gbps_per_gpu", float("inf")),
        ("nic_gbps_per_gpu", "fast"), ("nic_gbps_per_gpu", True), ("nic_gbps_per_gpu", [1]),
        ("nic_gbps_per_gpu", None), ("gpus_per_node", 0), ("gpus_per_node", 7.5), ("gpus_per_node", 10**400),
        ("used_per_domain", 9), ("used_per_domain", 0), ("usable_gib", 81), ("usable_gib", -1),
        ("rank_order", "dp-tp"), ("oversubscription", 0.5), ("gpu", 7), ("gpu", ["h100"]), ("gpu", {}),
        ("nvlink_uni_gbs", 0), ("notes", {"a": 1}), ("host_gib", "nan"),
    ],
)  # fmt: skip
def test_bad_values_name_the_key(tmp_path, key, value):
    with pytest.raises(InputError) as error:
        load_system(write(tmp_path, {**OWN, key: value}))
    assert key in error.value.message


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[1, 2]",
        "just text",
        "{a: [",
        "a: &x [*x",
        "!!python/object/apply:os.getcwd []",
        "\t- x: :",
        "? [a]\n: b",
        "3",
    ],
)
def test_files_that_hold_no_description_are_refused(tmp_path, content):
    with pytest.raises(InputError):
        load_system(write(tmp_path, content))


def test_unreadable_paths_are_refused(tmp_path):
    for path in (tmp_path, tmp_path / "missing.yaml", "/dev/null/x.yaml"):
        with pytest.raises(InputError):
            load_system(str(path))
    binary = tmp_path / "garbage.yaml"
    binary.write_bytes(random.Random(1).randbytes(4096))
    with pytest.raises(InputError):
        load_system(binary)
    huge = tmp_path / "huge.yaml"
    huge.write_bytes(b"a" * (MAX_FILE_BYTES + 1))
    with pytest.raises(InputError, match="1 MiB"):
        load_system(huge)
    deep = write(tmp_path, "[" * 20000, "deep.yaml")
    with pytest.raises(InputError):
        load_system(deep)


@settings(max_examples=150, deadline=None)
@given(raw=st.binary(max_size=300))
def test_random_bytes_never_end_in_a_traceback(raw, tmp_path_factory):
    path = tmp_path_factory.mktemp("fuzz") / "x.yaml"
    path.write_bytes(raw)
    with pytest.raises(AdvisorError):
        load_system(path)
    os.unlink(path)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=150, deadline=None)
@given(key=st.sampled_from([*OWN, "usable_gib", "host_gib", "sources", "name", "notes"]), value=VALUES)
def test_any_value_of_any_key_loads_or_is_refused(key, value, tmp_path_factory):
    path = write(tmp_path_factory.mktemp("fuzz"), {**OWN, key: value})
    message = ""
    try:
        load_system(path)
    except InputError as error:
        message = error.message
    assert "\n" not in message


def test_the_gpu_of_unknown_usable_memory_says_that_it_is_assumed():
    cluster = make_cluster(load_system("vr200"), 64)
    assert cluster.usable_kind == "assumed"
    assert cluster.usable_gib == pytest.approx(0.93 * 288)
    assert make_cluster(load_system("vr200"), 64, usable_gib=280).usable_kind == "measured"


@pytest.mark.parametrize(
    ("gpus", "used"), [(4, 4), (64, 64), (72, 72), (128, 64), (96, 64), (144, 72), (576, 64), (1024, 64)]
)
def test_a_rack_of_72_is_used_up_to_64_unless_whole_racks_are_asked_for(gpus, used):
    system = load_system("gb200")
    assert default_used_per_domain(system, gpus) == used
    assert make_cluster(system, gpus).used_per_domain == used


@pytest.mark.parametrize("gpus", [0, -8, 12, 10**6 + 8, 8.0, "8", None, True, float("nan")])
def test_gpu_counts_that_do_not_work_are_refused(gpus):
    with pytest.raises(InputError):
        make_cluster(load_system("h100"), gpus)


def test_the_nearest_counts_are_named():
    with pytest.raises(InputError) as error:
        make_cluster(load_system("h100"), 100)
    assert "96 or 104" in error.value.hint
    assert [make_cluster(load_system("h100"), n).gpus for n in (1, 3, 8, 1_000_000)] == [1, 3, 8, 1_000_000]


@pytest.mark.parametrize(
    "wrong",
    [
        {"used_per_domain": 0}, {"used_per_domain": 73}, {"used_per_domain": 66}, {"used_per_domain": 2.5},
        {"oversubscription": 0.5}, {"oversubscription": float("nan")}, {"rank_order": "pp-tp"},
        {"usable_gib": -1}, {"usable_gib": 1e9}, {"usable_gib": float("nan")},
    ],
)  # fmt: skip
def test_bad_choices_of_a_cluster_are_refused(wrong):
    with pytest.raises(InputError):
        make_cluster(load_system("gb200"), 144, **wrong)


def test_ranks_per_node_follow_the_used_share():
    assert ranks_per_node(load_system("h100"), 4) == 4
    assert ranks_per_node(load_system("gb200"), 64) == 4
    assert ranks_per_node(load_system("h100-pcie-8x"), 2) == 8
    assert ranks_per_node(load_system("l40s"), 1) == 8
