"""The loop on a CPU host, by hand: measure, estimate, trial, calibrate; predicted against measured.

`python tests/bench/closed_loop/run.py [--out DIR] [--budget SECONDS]` needs torch and megatron-core, and a machine
that nobody else uses. Every step is the command that a user gives. The host is measured with as many ranks at work as
the trials have, once per number of ranks. Rounds over all layouts are repeated, forward and backward in turn, until the
budget is spent (at least two), so that a slow minute hits no layout alone; the median of its runs counts. Left out: the
error of a trial under the fit that has not seen it. Layouts in bf16 are shown apart. Writes report.md and report.json;
exit code 1 where a goal is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from advisor.fit.validate import kendall_tau

HERE = Path(__file__).parent
LAYOUTS: tuple[tuple[str, int, str], ...] = (
    ("dense", 2, "--mbs 1"),
    ("dense", 2, "--mbs 4"),
    ("dense", 2, "--tp 2"),
    ("dense", 2, "--pp 2"),
    ("dense", 2, "--pp 2 --vpp 2"),
    ("dense", 2, "--recompute full"),
    ("moe", 2, "--ep 2 --dispatcher alltoall"),
    ("moe", 2, "--dispatcher alltoall"),
    ("dense", 4, "--mbs 1"),
    ("dense", 4, "--mbs 2"),
    ("dense", 4, "--tp 2"),
    ("dense", 4, "--tp 4"),
    ("dense", 4, "--pp 2"),
    ("dense", 4, "--pp 4"),
    ("dense", 4, "--tp 2 --pp 2"),
    ("moe", 4, "--ep 4 --dispatcher alltoall"),
)
APART: tuple[tuple[str, int, str], ...] = (
    ("dense", 2, "--precision bf16 --mbs 1"),
    ("dense", 2, "--precision bf16 --pp 2"),
)
"""In bf16, calibrated by themselves and counted in no goal: CPUs differ most in what they have kernels for."""
JOB = "--seq-len 256 --gbs 8 --cuda-graph none"
DRIVE = "--device cpu --steps 5 --warmup 1 --profile-steps 0"
LEAST_ROUNDS = 2
MOST_BEFORE_PCT, MOST_AFTER_PCT, LEAST_TAU = 20.0, 8.0, 0.6


def advisor(words: str, *more: str, fine: tuple[int, ...] = (0,)) -> str:
    """stdout of one call of the command line; RuntimeError with its stderr where the exit code is not in `fine`."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "advisor", *words.split(), *more]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if ran.returncode not in fine:
        raise RuntimeError(f"advisor {words} ended with {ran.returncode}: {ran.stderr[-2000:]}")
    return ran.stdout


def system(out: Path, ranks: int) -> Path:
    """The file of the host as a system of this many ranks."""
    return out / f"local-cpu-{ranks}.yaml"


def measure(out: Path, ranks: int) -> None:
    """Write the system, with its rates while this many ranks work."""
    words = f"measure --ranks {ranks} --name local-cpu-{ranks} --time 0.2s --quiet --out"
    advisor(words, str(system(out, ranks)))


def trials(out: Path, one: tuple[str, int, str]) -> Path:
    """The folder of the trials that are calibrated together."""
    return out / f"trials-{one[1]}{'-bf16' if one in APART else ''}"


def estimates(out: Path) -> list[Path]:
    """One file per layout, each with its own prediction."""
    found = []
    for one in (*LAYOUTS, *APART):
        model, ranks, layout = one
        job = JOB if one in APART else f"{JOB} --precision fp32"
        path = out / "estimates" / f"{model}-{ranks}{layout.replace('--', '').replace(' ', '-')}.json"
        path.parent.mkdir(exist_ok=True)
        advisor(f"estimate --gpus {ranks} {job} {layout} --quiet --model", str(HERE / f"{model}.json"), "--system",
                str(system(out, ranks)), "--out", str(path))  # fmt: skip
        found.append(path)
    return found


def rounds(out: Path, paths: list[Path], budget_s: float, begin: float) -> list[dict[str, Any]]:
    """Runs of all layouts, again and again; every run with the load of the machine before it."""
    runs: list[dict[str, Any]] = []
    spent: list[float] = []
    while len(spent) < LEAST_ROUNDS or time.monotonic() - begin + max(spent) < budget_s:
        start = time.monotonic()
        order = list(zip((*LAYOUTS, *APART), paths, strict=True))
        for one, path in order if len(spent) % 2 == 0 else reversed(order):
            load = os.getloadavg()[0]
            words = f"trial {path} {DRIVE} --quiet --format json --out"
            (record,) = json.loads(advisor(words, str(trials(out, one)), fine=(0, 1)))["trials"]
            measured = record["measured"]
            if measured is None:
                print(f"{path.stem}: {record['outcome']}: {record['failure']['message']}", file=sys.stderr)
                continue
            runs.append({
                "layout": path.stem, "apart": one in APART, "round": len(spent), "load": load, "name": record["name"],
                "step_s": measured["step_s"], "spread": measured["spread"], "inside": record["inside"],
            })  # fmt: skip
            print(f"round {len(spent) + 1} {path.stem}: {measured['step_s']:.3f} s, "
                  f"ratio {record['ratio']:.2f}, load {load:.1f}", file=sys.stderr, flush=True)  # fmt: skip
        spent.append(time.monotonic() - start)
    return runs


def rows(out: Path, runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per layout: measured, and the errors that calibrate says, in the order of `LAYOUTS` and `APART`."""
    errors: dict[str, dict[str, Any]] = {}
    for folder in sorted({trials(out, one) for one in (*LAYOUTS, *APART)}):
        answer = advisor("calibrate --quiet --format json --trials", str(folder), "--out",
                         str(out / f"calibrated-{folder.name}.yaml"))  # fmt: skip
        (fit,) = json.loads(answer)["fits"]
        errors |= {row["name"]: row for row in fit["trials"]}
    found = []
    for layout in dict.fromkeys(run["layout"] for run in runs):
        mine = [run for run in runs if run["layout"] == layout]
        steps = [run["step_s"] for run in mine]
        row = errors[mine[0]["name"]]
        found.append({
            "layout": layout, "apart": mine[0]["apart"], "runs": len(mine), "measured_s": row["measured_step_s"],
            "between_pct": 50 * (max(steps) - min(steps)) / statistics.median(steps),
            "within_pct": 100 * statistics.median(run["spread"] for run in mine),
            "inside": sum(run["inside"] for run in mine),
            **{f"{when}_pct": row[f"error_{when}_pct"] for when in ("before", "after", "left_out")},
        })  # fmt: skip
    return found


def summary(table: list[dict[str, Any]], runs: list[dict[str, Any]], seconds: float) -> dict[str, Any]:
    """Medians over layouts, rank correlation of the predicted with the measured step, and the noise."""

    def median(name: str) -> float:
        return float(statistics.median(abs(row[name]) for row in table))

    def tau(name: str, rows: list[dict[str, Any]] = table) -> float:
        measured = np.array([row["measured_s"] for row in rows])
        return float(kendall_tau(measured * (1 + np.array([row[name] for row in rows]) / 100), measured))

    def by_ranks(name: str) -> dict[str, float]:
        ranks = sorted({str(ranks) for _, ranks, _ in LAYOUTS})
        return {n: tau(name, [row for row in table if row["layout"].split("-", 1)[1].startswith(n)]) for n in ranks}

    found = {
        "layouts": len(table),
        "rounds": min(row["runs"] for row in table),
        "before_pct": median("before_pct"), "after_pct": median("after_pct"), "left_out_pct": median("left_out_pct"),
        **{f"tau_{when}": tau(f"{when}_pct") for when in ("before", "after", "left_out")},
        "tau_before_by_ranks": by_ranks("before_pct"),
        "inside": sum(row["inside"] for row in table) / len(runs),
        "noise_between_runs_pct": median("between_pct"), "noise_within_run_pct": median("within_pct"),
        "load": [min(run["load"] for run in runs), max(run["load"] for run in runs)],
        "cores": len(os.sched_getaffinity(0)), "seconds": seconds,
    }  # fmt: skip
    met = (found["before_pct"] <= MOST_BEFORE_PCT and found["after_pct"] <= MOST_AFTER_PCT
           and found["tau_after"] >= LEAST_TAU)  # fmt: skip
    return {**found, "met": bool(met)}


def page(table: list[dict[str, Any]], found: dict[str, Any]) -> str:
    """The report as Markdown."""
    by_ranks = ", ".join(f"{one:.2f} ({ranks})" for ranks, one in found["tau_before_by_ranks"].items())
    head = [
        "# The loop on a CPU host: predicted against measured", "",
        f"{found['layouts']} layouts, the median of {found['rounds']} runs or more of each, {found['cores']} cores, "
        f"{found['seconds'] / 60:.0f} minutes, load average {found['load'][0]:.1f} to {found['load'][1]:.1f}. "
        "Written by tests/bench/closed_loop/run.py.", "",
        "| | found | goal |", "| --- | --: | --: |",
        f"| median error of the step before calibration | {found['before_pct']:.1f} % | {MOST_BEFORE_PCT:.0f} % |",
        f"| after it, all trials seen | {found['after_pct']:.1f} % | {MOST_AFTER_PCT:.0f} % |",
        f"| after it, each trial left out of the fit | {found['left_out_pct']:.1f} % | |",
        f"| Kendall tau after it | {found['tau_after']:.2f} | {LEAST_TAU} |",
        f"| Kendall tau before it / left out | {found['tau_before']:.2f} / {found['tau_left_out']:.2f} | |",
        f"| Kendall tau before it, among layouts of as many ranks | {by_ranks} | |",
        f"| runs inside their 80 % interval before | {100 * found['inside']:.0f} % | |",
        f"| noise: half the range between runs of a layout, median | {found['noise_between_runs_pct']:.1f} % | |",
        f"| noise: half the quartile distance of steps in a run, median | {found['noise_within_run_pct']:.1f} % | |",
        "", f"Goals {'met' if found['met'] else 'missed'}.", "",
        "| layout | measured s | runs ± % | steps ± % | before % | after % | left out % |",
        "| --- | --: | --: | --: | --: | --: | --: |",
    ]  # fmt: skip
    body = [_line(row) for row in table if not row["apart"]]
    bf16 = [_line(row) for row in table if row["apart"]]
    title = ["", "In bf16, counted in no goal and calibrated by themselves:", "", *head[-2:]] if bf16 else []
    return "\n".join([*head, *body, *title, *bf16]) + "\n"


def _line(row: dict[str, Any]) -> str:
    left = row["left_out_pct"]
    return (
        f"| {row['layout']} | {row['measured_s']:.3f} | {row['between_pct']:.1f} | {row['within_pct']:.1f} | "
        f"{row['before_pct']:+.1f} | {row['after_pct']:+.1f} | {'' if left is None else f'{left:+.1f}'} |"
    )


def main() -> int:
    """Run the loop; the report goes to --out, this folder where none is given."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=HERE, help="folder of the report")
    parser.add_argument("--work", type=Path, default=Path("closed-loop"), help="folder of trials, emptied first")
    parser.add_argument("--budget", type=float, default=840.0, help="seconds for everything")
    options = parser.parse_args()
    begin, out = time.monotonic(), options.work.resolve()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    for ranks in sorted({ranks for _, ranks, _ in LAYOUTS}):
        measure(out, ranks)
    runs = rounds(out, estimates(out), options.budget, begin)
    table = rows(out, runs)
    counted = [row for row in table if not row["apart"]], [run for run in runs if not run["apart"]]
    found = summary(*counted, time.monotonic() - begin)
    text = page(table, found)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "report.md").write_text(text, encoding="utf-8")
    record = {"summary": found, "layouts": table, "runs": runs}
    (options.out / "report.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(text)
    return 0 if found["met"] else 1


if __name__ == "__main__":
    sys.exit(main())
