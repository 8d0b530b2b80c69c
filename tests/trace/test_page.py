"""One page in full as reviewable text (`make docs` writes it), and what the verb may import."""

from __future__ import annotations

import json
import re
import subprocess
import sys

from tests.trace.synthetic import collective, kernel, launch, mark, plan_of, write

HEAVY = {"torch", "megatron", "pandas", "optuna", "scipy", "matplotlib", "pydantic"}


def job(rank, late):
    """Two steps of 1000 us: a tensor-parallel all-reduce half hidden, a data-parallel one behind the compute."""
    events = []
    for step in range(2):
        at, number = 5_000_000 * rank + 1000 * step, 10 * step
        events += [mark(step, at, 1000)]
        events += [launch(at + 5 + index, number + index) for index in range(3)]
        events += [
            kernel(at + 10, 300, correlation=number),
            kernel(at + 400 + late, 300 - late, correlation=number + 1),
            collective(at + 200, 200, "tp", ranks="[0, 1]", stream=21),
            collective(at + 700 + late // 2, 200 - late // 2, "dp", op="reduce_scatter", correlation=number + 2),
            kernel(at + 920, 20, "Memcpy DtoH (Device -> Pinned)", cat="gpu_memcpy", stream=9),
            kernel(at + 950, 10, "void company::special_kernel<float>(float*)"),
        ]
    return events


def test_page_of_two_ranks_beside_a_plan(cli, golden, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "traces").mkdir()
    for rank in range(2):
        write(tmp_path / "traces" / f"rank-{rank}.json", job(rank, 40 * rank), rank=rank)
    zero = dict.fromkeys(("cp", "pp", "ep"), 0.0)
    step = {
        "step_s": 0.0009,
        "exposed_s": {"tp": 2e-5, "dp": 1e-5, **zero},
        "hidden_s": {"tp": 1.8e-4, "dp": 2e-4, **zero},
    }
    (tmp_path / "plan.json").write_text(json.dumps(plan_of(step)))
    ran = cli("trace", "traces", "--plan", "plan.json")
    assert ran.code == 1, ran.err
    golden("trace.txt", f"$ advisor trace traces --plan plan.json\n{ran.out}{ran.err}")
    assert "nan" not in re.findall(r"\w+", ran.out.lower())


def test_imports_nothing_heavy(tmp_path):
    path = write(tmp_path / "rank-0.json", job(0, 0))
    code = (
        "import sys; from advisor.cli.main import run; code = run(sys.argv[1:]);"
        "print(code, *sorted({name.split('.')[0] for name in sys.modules}), file=sys.stderr)"
    )
    for args, numpy in ((["trace", "--help"], False), (["trace", str(path)], True)):
        ran = subprocess.run(
            [sys.executable, "-c", code, *args], capture_output=True, text=True, timeout=120, check=True
        )
        found = set(ran.stderr.splitlines()[-1].split())
        assert "0" in found
        assert ("numpy" in found) == numpy
        assert not found & HEAVY
