import ast
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.cost.profile import COLLECTIVES, load_profile
from advisor.cost.tables import RateTable, SizeTable
from advisor.errors import InputError, UnknownNameError
from advisor.spec.load.system import gpu_names, load_gpu, load_system
from advisor.spec.precision import PRECISIONS

ROOT = Path(__file__).resolve().parents[2]
PROFILES = ROOT / "profiles"
DIRECTIONS = ("fwd", "dgrad", "wgrad")


@pytest.mark.parametrize("name", gpu_names())
def test_every_gpu_has_a_profile_whose_numbers_know_their_kind_and_source(name):
    profile = load_profile(name)
    for one in (*profile.coefficients.values(), *profile.gemm.values()):
        assert one.kind in ("datasheet", "measured", "fitted", "assumed")
        assert one.source
        assert one.low <= one.value <= one.high
    for fmt, one in profile.gemm.items():
        assert one.value <= profile.gpu.peak_flops(fmt.removesuffix("-blockwise"))
    assert set(profile.collectives) == set(COLLECTIVES)
    assert profile.sources


# first fit on public runs, TFLOP/s: later calibrations stay near it (GB200 and GB300 are told apart by few runs)
@pytest.mark.parametrize(
    ("gpu", "precision", "tflops"),
    [
        ("a100", "bf16", 283), ("h100", "bf16", 709), ("h100", "fp8-current", 1630), ("b200", "bf16", 1140),
        ("gb200", "mxfp8", 2920), ("gb200", "nvfp4", 5310), ("gb300", "bf16", 1690), ("gb300", "nvfp4", 7850),
    ],
)  # fmt: skip
def test_sustained_rates(gpu, precision, tflops):
    rate = load_profile(gpu).gemm_rate(PRECISIONS[precision])
    assert rate.value == pytest.approx(tflops * 1e12, rel=0.3)
    assert rate.kind == "fitted"


def test_a_gpu_without_a_profile_gets_assumed_shares_of_its_datasheet():
    profile = load_profile("h20")
    assert profile.table_kind == "assumed"
    assert {one.kind for one in profile.gemm.values()} == {"assumed"}
    assert profile.gemm_flops(PRECISIONS["bf16"]) == pytest.approx(0.6 * 148e12)


def test_an_own_gpu_of_a_file_gets_a_profile(tmp_path):
    gpu = {"name": "mine", "peak_dense_tflops": {"bf16": 500}, "hbm": {"capacity_gb": 64, "bandwidth_gbs": 2000}}
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump({"gpu": gpu, "nic_gbps_per_gpu": 100, "nvlink_domain": 1}))
    profile = load_profile(load_system(path).gpu)
    assert profile.gpu.name == "mine"
    assert profile.memory_Bps == pytest.approx(profile.value("memory_share") * 2000e9)


def test_an_own_gpu_with_the_name_of_a_preset_is_not_mistaken_for_it(tmp_path):
    from dataclasses import replace

    preset = load_profile("h100")
    own = load_profile(replace(load_gpu("h100"), hbm_gbs=1000.0))
    assert own.memory_Bps == pytest.approx(own.value("memory_share") * 1000e9)
    assert load_profile("h100") is preset


def test_unknown_names_and_missing_formats_are_told():
    with pytest.raises(UnknownNameError):
        load_profile("h1oo")
    with pytest.raises(InputError, match="fp8"):
        load_profile("a100").gemm_flops(PRECISIONS["fp8-current"])
    with pytest.raises(KeyError):
        load_profile("a100").value("no_such_coefficient")


def test_small_local_shapes_are_slower_and_large_ones_reach_the_rate():
    profile = load_profile("h100")
    one = np.array([8192.0])
    full = profile.gemm_efficiency(one, one, one)
    assert full[0] == pytest.approx(1.0)
    for i in range(3):
        shape = [one, one, one]
        shape[i] = np.array([256.0])
        assert 0.3 < profile.gemm_efficiency(*shape)[0] < 0.9
    assert profile.gemm_efficiency(one * 16, one * 16, one * 16)[0] == pytest.approx(1.0)


# isolated fused expert kernels on H100 (aiconfigurator-core 0.12.0) over the dense asymptote of 838 TFLOP/s
@pytest.mark.parametrize(
    ("tokens", "hidden", "ffn", "share"),
    [(85, 7168, 2048, 0.24), (256, 7168, 2048, 0.56), (512, 7168, 2048, 0.66), (1024, 4096, 1536, 0.71),
     (4096, 4096, 14336, 0.96)],
)  # fmt: skip
def test_grouped_gemm_slows_with_few_tokens_per_expert_as_measured(tokens, hidden, ffn, share):
    profile = load_profile("h100")
    m, n, k = np.array([[tokens], [2 * ffn], [hidden]], dtype=float)
    # In training the rate that shares refer to is the sustained one; grouped products keep their isolated speed.
    got = profile.grouped_efficiency("fwd", m, n, k)[0] * profile.gemm_flops(PRECISIONS["bf16"]) / 838e12
    assert got == pytest.approx(share, rel=0.25)


def test_weight_gradients_are_the_slowest_direction():
    profile = load_profile("b200")
    m, n, k = np.array([[1024.0], [4096.0], [4096.0]])
    fwd, dgrad, wgrad = (profile.grouped_efficiency(one, m, n, k)[0] for one in DIRECTIONS)
    assert fwd > dgrad > wgrad


# causal forward, head dim 128, median over heads of isolated kernels, TFLOP/s; on Blackwell training kernels reach the
# rate of long sequences earlier (attention_seq_shift), so short ones are not compared
@pytest.mark.parametrize(
    ("gpu", "seq", "heads", "measured"),
    [
        ("h100", 8192, 64, 574),
        ("h100", 4096, 8, 425),
        ("b200", 8192, 64, 997),
        ("a100", 8192, 64, 197),
    ],
)
def test_attention_rate_is_near_the_measured(gpu, seq, heads, measured):
    rate = load_profile(gpu).attention_flops(np.array([float(seq)]), 128, heads)
    assert rate[0] / 1e12 == pytest.approx(measured, rel=0.2)


def sizes(low, high):
    """Two sizes, the smaller one first."""
    return st.tuples(st.floats(low, high), st.floats(low, high)).map(sorted)


@settings(max_examples=200, deadline=None)
@given(gpu=st.sampled_from(gpu_names()), fixed=st.floats(1, 1e6), other=st.floats(1, 1e6), grown=sizes(1, 1e6))
def test_more_work_never_takes_a_product_less_time(gpu, fixed, other, grown):
    profile = load_profile(gpu)
    for place in range(3):
        small, large = ([np.array([one]) for one in np.insert([fixed, other], place, size)] for size in grown)
        efficiencies = [profile.gemm_efficiency, *(partial(profile.grouped_efficiency, one) for one in DIRECTIONS)]
        for efficiency in efficiencies:
            before, after = (np.prod(shape) / efficiency(*shape)[0] for shape in (small, large))
            assert before <= after * (1 + 1e-12)


@pytest.mark.parametrize("gpu", gpu_names())
def test_more_work_never_takes_attention_less_time(gpu):
    profile = load_profile(gpu)
    seq, dim, heads = np.meshgrid(2.0 ** np.arange(6, 21, 0.25), np.arange(32.0, 640, 16), 2.0 ** np.arange(8))
    macs = seq**2 * dim * heads
    shape = (seq, dim, heads)
    seconds = macs / profile.attention_flops(*(one.ravel() for one in shape)).reshape(macs.shape)
    for axis in range(3):
        assert (np.diff(seconds, axis=axis) >= -1e-9 * np.abs(np.delete(seconds, -1, axis))).all(), axis


@settings(max_examples=60, deadline=None)
@given(
    gpu=st.sampled_from(["h100", "gb200", "l40s", "mi300x", "rtx5090"]),
    op=st.sampled_from(COLLECTIVES),
    sizes=st.tuples(st.floats(0, 1e13), st.floats(0, 1e13)),
    ranks=st.integers(2, 576),
)
def test_size_tables_rise_with_bytes(gpu, op, sizes, ranks):
    table = load_profile(gpu).collectives[op]
    small, large = (float(table.seconds(np.array(size), np.array(ranks))) for size in sorted(sizes))
    assert 0 < small <= large


def test_size_table_returns_its_points_and_goes_on_as_stated():
    table = SizeTable.of(
        {"2": {"bytes": [100, 200, 400], "us": [3, 4, 6]}, "4": {"bytes": [100, 200], "us": [5, 9]}}, 1e-6
    )
    sizes, ranks = np.array([100, 200, 300, 400, 50, 1000, 100.0]), np.array([2, 2, 2, 2, 2, 2, 4])
    expected = [3, 4, 5, 6, 3, 12, 5]
    np.testing.assert_allclose(table.seconds(sizes, ranks) * 1e6, expected, rtol=1e-6)
    assert table.seconds(np.array([100.0]), np.array([1])).tolist() == [0.0]
    eight = table.seconds(np.array([1000.0 * 6 / 7]), np.array([8]))
    four = table.seconds(np.array([1000.0]), np.array([4]))
    np.testing.assert_allclose(eight, four)


def test_rate_table_interpolates_in_logarithms_and_holds_outside():
    table = RateTable.of({"seq": [1024, 4096], "head_dims": [64, 256], "rate": [[1, 3], [5, 7]]}, 1.0)
    got = table.rate(np.array([512, 1024, 2048, 4096, 65536.0]), np.array([64, 64, 128, 256, 1024.0]))
    np.testing.assert_allclose(got, [1, 1, 4, 7, 7])


def test_a_bad_profile_is_told_with_its_key(tmp_path, monkeypatch):
    folder = tmp_path / "fitted"
    folder.mkdir()
    (folder / "h20-96gb.yaml").write_text("tp_exposed: {value: 2, low: 0, high: 1, kind: fitted, source: x}\n")
    monkeypatch.setenv("ADVISOR_PROFILES", str(tmp_path))
    monkeypatch.setattr("advisor.cost.profile._CACHE", [])
    with pytest.raises(InputError, match="tp_exposed"):
        load_profile("h20")


def names_in(tree):
    """String constants of a module, f-strings as patterns."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield re.escape(node.value)
        if isinstance(node, ast.JoinedStr):
            yield "".join(re.escape(p.value) if isinstance(p, ast.Constant) else r"\w+" for p in node.values)


def test_every_coefficient_is_read_by_a_formula():
    patterns = {
        name for path in (ROOT / "advisor" / "cost").glob("*.py") for name in names_in(ast.parse(path.read_text()))
    }
    patterns.discard(r"\w+")
    unread = [
        name for name in load_profile("h100").coefficients if not any(re.fullmatch(one, name) for one in patterns)
    ]
    assert unread == []


def test_a_profile_of_the_user_wins(tmp_path, monkeypatch):
    folder = tmp_path / "fitted"
    folder.mkdir()
    (folder / "h20-96gb.yaml").write_text("tp_exposed: {value: 0.5, kind: measured, source: own trial}\n")
    monkeypatch.setenv("ADVISOR_PROFILES", str(tmp_path))
    monkeypatch.setattr("advisor.cost.profile._CACHE", [])
    assert load_profile("h20").coefficients["tp_exposed"].source == "own trial"


def test_profiles_are_small():
    for gpu in gpu_names():
        files = [PROFILES / "kernels" / f"{gpu}.json", PROFILES / "fitted" / f"{gpu}.yaml"]
        assert sum(path.stat().st_size for path in files if path.exists()) < 2**20


def test_reading_a_profile_imports_no_heavy_package():
    code = (
        "import sys; from advisor.cost import comm, placement, profile; profile.load_profile('h100');"
        "print(sorted({'scipy', 'pandas', 'torch', 'matplotlib', 'megatron'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("path", sorted(PROFILES.glob("kernels/*.json")), ids=lambda path: path.stem)
def test_kernel_tables_name_their_source_and_grow(path):
    import json

    tables = json.loads(path.read_text())
    assert tables["sources"]
    assert tables["kind"] in ("measured", "assumed")
    for by_ranks in tables["collectives_us"].values():
        for curve in by_ranks.values():
            assert curve["bytes"] == sorted(curve["bytes"])
            assert len(curve["bytes"]) == len(curve["us"]) >= 2
            assert min(curve["us"]) > 0
