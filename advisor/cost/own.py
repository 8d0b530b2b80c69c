"""The section `profile` of somebody's own system file: what was measured on that cluster, checked before it is used.

`fitted` has the form of profiles/fitted/<gpu>.yaml, `kernels` that of profiles/kernels/<gpu>.json and, in `network_us`,
the same curves by number of NVLink domains (`cost.network`); both may hold a part only, the shipped files of the GPU
give the rest. `advisor calibrate --out` writes such files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from advisor.spec.hardware import Gpu
from advisor.spec.load.fields import Fields, read_yaml_mapping, shown

MAX_BYTES, MAX_US, MAX_TFLOPS = 2.0**42, 1e12, 1e7
MAX_SEQ, MAX_HEAD_DIM = 1 << 24, 1 << 16


def own_sections(
    gpu: Gpu, coefficients: Iterable[str], operations: Sequence[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """`fitted` and `kernels` of the file that `gpu.profile` names, empty where there is none.

    `coefficients` are the names that a formula reads, `operations` the collectives that a table may be of. Raises
    InputError that lists every problem of the file.
    """
    if gpu.profile is None:
        return {}, {}
    fields = Fields(read_yaml_mapping(gpu.profile), "").mapping("profile")
    fitted, kernels = fields.mapping("fitted", False), fields.mapping("kernels", False)
    fields.refuse_unknown()
    fitted.ignore("gemm_tflops", *coefficients)
    fitted.refuse_unknown()
    fitted.mapping("gemm_tflops", False)
    _check_kernels(kernels, operations)
    fields.finish(f"system file {gpu.profile}")
    return fitted.values, kernels.values


def _check_kernels(kernels: Fields, operations: Sequence[str]) -> None:
    kernels.choice("kind", ("datasheet", "measured", "fitted", "assumed"), "measured")
    kernels.texts("sources")
    kernels.optional_number("link_gbs", 1e-3, 1e5)
    for section, of in (("collectives_us", "ranks"), ("network_us", "domains")):
        collectives = kernels.mapping(section, False)
        for operation in operations:
            curves = collectives.mapping(operation, False)
            for count, curve in curves.values.items():
                if not count.isdecimal() or int(count) < 2:
                    curves.problems.append(f"{curves.where}{shown(count)} is not a number of {of} (2 or more)")
                _check_curve(Fields(_mapping(curve), f"{curves.where}{count}.", curves.problems))
        collectives.refuse_unknown()
    if kernels.has("attention_fwd_tflops"):
        _check_rates(kernels.mapping("attention_fwd_tflops"))
    kernels.refuse_unknown()


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _check_curve(curve: Fields) -> None:
    """Two points or more, at growing sizes."""
    sizes, times = _numbers(curve, "bytes", MAX_BYTES), _numbers(curve, "us", MAX_US)
    if len(sizes) != len(times) or len(sizes) < 2:
        curve.problems.append(f"{curve.where}: {len(sizes)} bytes and {len(times)} us are not two points or more")
    if any(after <= before for before, after in pairwise(sizes)):
        curve.problems.append(f"{curve.where}bytes do not grow")
    curve.refuse_unknown()


def _check_rates(rates: Fields) -> None:
    seqs, dims = _numbers(rates, "seq", MAX_SEQ), _numbers(rates, "head_dims", MAX_HEAD_DIM)
    rows = rates.values.get("rate")
    shape = [len(row) for row in rows if isinstance(row, list)] if rates.has("rate") and isinstance(rows, list) else []
    if not seqs or shape != [len(seqs)] * len(dims):
        rates.problems.append(
            f"{rates.where}rate is not one row of {len(seqs)} rates for each of {len(dims)} head_dims"
        )
    else:
        for at, row in enumerate(rows or ()):
            _numbers(Fields({"rate": row}, f"{rates.where}[{at}].", rates.problems), "rate", MAX_TFLOPS)
    for name, axis in (("seq", seqs), ("head_dims", dims)):
        if any(after <= before for before, after in pairwise(axis)):
            rates.problems.append(f"{rates.where}{name} does not grow")
    rates.refuse_unknown()


def _numbers(fields: Fields, key: str, high: float) -> list[float]:
    """A list of finite numbers above 0, up to `high`."""
    value = fields.values.get(key) if fields.has(key) else None
    items = value if isinstance(value, list) else []
    places = {str(at): item for at, item in enumerate(items)}
    one = Fields(places, f"{fields.where}{key}.", fields.problems)
    found = [one.number(at, 1e-9, high) for at in places]
    if not found:
        fields.problems.append(f"{fields.where}{key} is missing (a list of numbers)")
    return found
