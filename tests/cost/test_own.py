"""A system file that carries its own profile: used over the shipped one, and refused whole when it is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from advisor.cost.profile import load_profile
from advisor.errors import InputError
from advisor.spec.load.system import load_system

CURVE = {"bytes": [1024, 1 << 20, 1 << 26], "us": [50.0, 500.0, 20_000.0]}


def system_file(folder: Path, profile: Mapping[str, Any], gpu: Any = "h100-sxm-80gb") -> Path:
    path = folder / "mine.yaml"
    body = {"gpu": gpu, "nvlink_domain": 8, "nic_gbps_per_gpu": 400, "profile": profile}
    path.write_text(yaml.safe_dump(body), encoding="utf-8")
    return path


def entry(value: float) -> dict[str, Any]:
    return {"value": value, "kind": "measured", "source": "own cluster"}


def test_the_own_section_wins_and_the_rest_stays(tmp_path: Path) -> None:
    shipped = load_profile("h100-sxm-80gb")
    own = {
        "fitted": {"network_share": entry(0.5), "gemm_tflops": {"bf16": entry(432.1)}},
        "kernels": {"collectives_us": {"all_reduce": {"8": CURVE}}},
    }
    found = load_profile(load_system(system_file(tmp_path, own)).gpu)
    assert found.value("network_share") == 0.5 != shipped.value("network_share")
    assert found.gemm["bf16"].value == pytest.approx(432.1e12)
    assert found.gemm["fp8"] == shipped.gemm["fp8"]
    eight = np.array([8])
    assert found.collectives["all_reduce"].seconds(np.array([1 << 20]), eight)[0] == pytest.approx(500e-6)
    for op in ("all_gather", "all_to_all"):
        size = np.array([1 << 20])
        assert found.collectives[op].seconds(size, eight) == shipped.collectives[op].seconds(size, eight)


def test_a_file_without_the_section_is_the_shipped_profile(tmp_path: Path) -> None:
    path = tmp_path / "plain.yaml"
    path.write_text("{gpu: h100-sxm-80gb, nvlink_domain: 8, nic_gbps_per_gpu: 400}", encoding="utf-8")
    gpu = load_system(path).gpu
    assert gpu.profile is None
    assert load_profile(gpu) is load_profile("h100-sxm-80gb")


@pytest.mark.parametrize(
    ("profile", "said"),
    [
        ({"fited": {}}, "did you mean fitted?"),
        ({"fitted": {"network_shar": entry(0.5)}}, "did you mean network_share"),
        ({"fitted": {"network_share": {"value": "fast"}}}, "is not a number"),
        ({"fitted": 3}, "is not a mapping"),
        ({"kernels": {"collectives_us": {"all_reduce": {"one": CURVE}}}}, "is not a number of ranks"),
        ({"kernels": {"collectives_us": {"all_reduce": {"8": {"bytes": [2, 1], "us": [1, 2]}}}}}, "bytes do not grow"),
        ({"kernels": {"collectives_us": {"all_reduce": {"8": {"bytes": [1], "us": [1, 2]}}}}}, "not two points"),
        ({"kernels": {"collectives_us": {"all_reduce": {"8": {"bytes": [1, 2], "us": [1, "x"]}}}}}, "is not a number"),
        ({"kernels": {"collectives_us": {"broadcast": {"8": CURVE}}}}, "broadcast is not a known key"),
        ({"kernels": {"attention_fwd_tflops": {"seq": [1, 2], "head_dims": [64], "rate": [[1]]}}}, "one row of 2"),
        ({"kernels": {"attention_fwd_tflops": {"seq": [1, 2], "head_dims": [64], "rate": [[1, -1]]}}}, "outside"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, profile: Mapping[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=r"mine\.yaml") as caught:
        load_profile(load_system(system_file(tmp_path, profile)).gpu)
    assert said in caught.value.message
