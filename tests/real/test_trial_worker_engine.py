"""The worker's GPU jobs, built with the real Python of Transformer Engine: every argument is one that it knows.

TRANSFORMER_ENGINE_WHEELS names folders of unpacked wheels (`pip download --no-deps transformer-engine==2.12.0`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("megatron.core")
if not os.environ.get("TRANSFORMER_ENGINE_WHEELS"):
    pytest.skip("TRANSFORMER_ENGINE_WHEELS names no unpacked wheel", allow_module_level=True)

from advisor.trial.trials import read_trials
from tests.real.test_trial_worker_gpu import CUDA, LAYOUTS
from tests.trial.layouts import write_estimate

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[2]
WHEELS = [Path(one) for one in os.environ["TRANSFORMER_ENGINE_WHEELS"].split(os.pathsep)]
# FSDP shards tensors over the fake group, quantised weights need the compiled part.
BUILT = [name for name in LAYOUTS if name not in {"fsdp", "fp8", "muon"}]


@pytest.fixture(scope="module", params=WHEELS, ids=lambda wheel: wheel.name)
def built(request, tmp_path_factory):
    """What was built of every job, by its name."""
    folder, jobs = tmp_path_factory.mktemp("engine"), {}
    for name in BUILT:
        model, options = LAYOUTS[name]
        (trial,), _ = read_trials(write_estimate(folder, model, 2, **options), 1, CUDA, None)
        jobs[name] = trial.job
    model, options = LAYOUTS["fp8"]
    plain = {**options, "fp8_params": False}
    (trial,), _ = read_trials(write_estimate(folder, model, 2, **plain), 1, CUDA, None)
    jobs["fp8"] = trial.job
    path = folder / "jobs.json"
    path.write_text(json.dumps(jobs))
    program = Path(__file__).parent / "engine_build.py"
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", str(program), str(request.param), str(path)],
        capture_output=True, text=True, check=False, timeout=300, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    lines = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith('{"job"')]
    assert len(lines) == len(jobs), ran.stderr[-2000:]
    return {line["job"]: line for line in lines}


@pytest.mark.parametrize("name", [*BUILT, "fp8"])
def test_a_job_is_built_of_the_engine(built, name):
    one = built[name]
    assert "problem" not in one, one["problem"]
    assert (one["spec"], one["ignored"]) == ("transformer_engine", [])
    assert {"TEDotProductAttention", "TERowParallelLinear"} <= set(one["modules"])
    if LAYOUTS[name][0] == "moe":
        assert any(kind.startswith("TEColumnParallelGroupedLinear") for kind in one["modules"])


def test_user_buffers_are_made_and_used(built):
    assert built["tp"]["tp_comm_overlap"]
    assert built["fp8"]["tp_comm_overlap"]
    assert not any("user buffers" in words for words in built["tp"]["stand_ins"])
