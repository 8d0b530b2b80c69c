"""One GPU beside what advisor expects of it: memory of real layers, kernel rates, and the trial worker where it runs.

`python probe.py [--out FILE.json] [--limit SECONDS] [--self-test]`. What advisor expects of layers lies in
expected.json (test_gpu.py writes it); torch alone is needed. The report is written after every part, so that what was
measured stays whatever comes after. Exit code 1: a layer keeps other bytes than expected, or a part failed; 3: no GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from device import Device, SkippedError, TimeUpError
from kernels import attention, fp8_gemms, gemms, streams
from layers import memory
from trial import trials

HERE = Path(__file__).parent
LIMIT_S = 420.0
Rows = Iterator[dict[str, Any]]


def parts(device: Device) -> dict[str, Callable[[], Rows]]:
    """What is measured, by name, most wanted first."""
    cases = json.loads((HERE / "expected.json").read_text(encoding="utf-8"))["cases"]
    return {
        "memory": lambda: memory(device, cases),
        "gemm": lambda: gemms(device),
        "attention": lambda: attention(device),
        "streams": lambda: streams(device),
        "fp8": lambda: fp8_gemms(device),
        "trial": lambda: trials(device),
    }


def measure(device: Device, found: dict[str, Callable[[], Rows]], out: Path) -> dict[str, Any]:
    """The report: rows by part, `left_out` and `failed` with a reason by part; rows from before a failure stay."""
    report: dict[str, Any] = {"schema_version": 2, "facts": device.facts(), "left_out": {}, "failed": {}}
    for name, part in found.items():
        report[name] = []
        try:
            device.check()
            for row in part():
                report[name].append(row)
                device.check()
        except (SkippedError, TimeUpError) as reason:
            report["left_out"][name] = str(reason)
        except Exception as problem:  # one part that fails must not take the others with it
            report["failed"][name] = f"{type(problem).__name__}: {next(iter(str(problem).splitlines()), '')}"
        report["seconds"] = time.monotonic() - device.begin
        out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return report


def table(report: dict[str, Any]) -> str:
    """The report as lines."""
    lines = [", ".join(f"{name} {value}" for name, value in report["facts"].items()), ""]
    lines += [f"{one['dtype']:>5} {one['m']:6d} x {one['n']:6d} x {one['k']:6d}  {one['tflops']:8.1f} TFLOP/s"
              for one in (*report["gemm"], *report["fp8"])]  # fmt: skip
    lines += [f"attention seq {one['seq']:6d} dim {one['dim']:4d}: forward {one['fwd_tflops']:7.1f}, backward "
              f"{one['bwd_tflops']:7.1f} TFLOP/s, backward / forward {one['backward_ratio']:.2f}"
              for one in report["attention"]]  # fmt: skip
    lines += [f"{one['name']:>14} {one['gbs']:8.0f} GB/s" for one in report["streams"]]
    lines += [line for one in report["memory"] for line in _of_case(one)]
    lines += [line for one in report["trial"] for line in _of_trial(one)]
    for kind in ("left_out", "failed"):
        lines += [f"{name}: {kind.replace('_', ' ').upper()}: {why}" for name, why in report[kind].items()]
    return "\n".join([*lines, f"{report['seconds']:.0f} s"])


def _of_case(one: dict[str, Any]) -> Iterator[str]:
    if "left_out" in one:
        yield f"{one['case']}: left out, {one['left_out']}"
    for what in ("kept", "peak"):
        if f"{what}_bytes" in one:
            found, wanted = (one[name] / 2**20 for name in (f"{what}_bytes", f"expected_{what}_bytes"))
            verdict = "as expected" if one[f"{what}_ok"] else "DIFFERS"
            yield f"{one['case']}: {what} {found:.1f} MiB, expected {wanted:.1f}: {verdict}"


def _of_trial(one: dict[str, Any]) -> Iterator[str]:
    yield f"trial {one['model']}: {one['outcome']}, layers of {one['layer_spec']} {one['failure'] or ''}".rstrip()
    for name, scale, unit in (("step_s", 1e3, "ms"), ("allocated_bytes", 2**-20, "MiB")):
        if one[name] is not None:
            found, wanted = one[name] * scale, one[f"predicted_{name}"] * scale
            yield f"trial {one['model']}: {name.partition('_')[0]} {found:.1f} {unit}, predicted {wanted:.1f}"
    yield from (f"trial {one['model']}: stands in: {words}" for words in one["stand_ins"])


def passed(report: dict[str, Any]) -> bool:
    """Whether no part failed and everything that was judged is as expected; what was left out is not judged."""
    rows = [*report["memory"], *report["trial"]]
    return not report["failed"] and all(value for row in rows for name, value in row.items() if name.endswith("_ok"))


def main() -> int:
    """Run everything, print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("gpu-report.json"))
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds for everything")
    parser.add_argument("--self-test", action="store_true", help="small, also on a CPU")
    options = parser.parse_args()
    if not torch.cuda.is_available() and not options.self_test:
        print("probe.py: torch sees no GPU; --self-test runs small on the CPU", file=sys.stderr)
        return 3
    device = Device(options.self_test, options.limit)
    report = measure(device, parts(device), options.out)
    print(table(report))
    return 0 if passed(report) else 1


if __name__ == "__main__":
    sys.exit(main())
