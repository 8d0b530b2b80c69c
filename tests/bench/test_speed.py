"""Speed as ratios to something measured in the same minute; nothing is asserted about time (`make bench`).

The figures asked for: 100,000 rows per second with memory and step evaluated, a cold `advisor plan` within 5 times the
import of its runtime dependencies, 16,384 GPUs within 4 times the time of 64, and 400 MiB. Times are the least of
`REPEATS` runs, so that other work on the host disturbs little.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import resource
import subprocess
import sys
import time

import numpy as np
import pytest

from advisor.cost.memory import memory
from advisor.cost.profile import forget, load_profile
from advisor.cost.step import step
from advisor.rules import legality
from advisor.search.parts import make_parts
from advisor.search.request import resolve
from advisor.search.solve import search
from advisor.search.sources import Setting
from advisor.search.space import layouts
from advisor.search.stages import balanced_split
from advisor.spec.layout import KNOB_COLUMNS, Columns, Dispatcher, Knobs, knob_values

pytestmark = pytest.mark.bench
REPEATS = 5
ROWS = 100_000
PIECE = 12_500
DEPENDENCIES = "import numpy, click, rich.console, rich.table, pydantic, yaml, msgspec, platformdirs, jinja2"
PLAN = ["-m", "advisor", "plan", "--model", "minimax-m2", "--format", "json"]


def _least(action):
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A command of this interpreter as it runs where it is installed: compiled modules are kept between calls."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment = kept | {"PYTHONPYCACHEPREFIX": str(tmp_path_factory.mktemp("compiled"))}

    def command(*arguments):
        return lambda: subprocess.run([sys.executable, *arguments], check=True, capture_output=True, env=environment)

    return command


def _request(gpus, gbs):
    given = {"model": "minimax-m2", "gpus": gpus, "gbs": gbs}
    return resolve({name: Setting(value, "argument") for name, value in given.items()})


def _rows(request):
    """Legal rows of the search with one choice of knobs each, repeated up to `ROWS`."""
    parts, _, _ = make_parts(request)
    (splits,) = {part.splits for part in parts}
    columns = {name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns}
    index = np.resize(np.arange(len(columns["tp"])), ROWS)
    knobs = knob_values(Knobs(recompute=("moe_act",), dispatcher=Dispatcher.alltoall))
    values = {name: np.full(ROWS, knobs[name]) for name in KNOB_COLUMNS}
    return Columns(**{name: column[index] for name, column in columns.items()}, **values, splits=splits)


def test_rows_per_second():
    request = _request(64, 512)
    columns, profile = _rows(request), load_profile(request.cluster.gpu.name)
    job = (request.model, request.cluster, request.workload)

    pieces = [columns.pick(np.arange(start, start + PIECE)) for start in range(0, ROWS, PIECE)]

    def evaluate():
        for piece in pieces:
            legality(*job, piece)
            memory(*job, piece)
            step(*job, piece, profile)

    rate = ROWS / _least(evaluate)
    print(f"\nrows with memory and step evaluated: {rate:,.0f} per second, {rate / 1e5:.2f} x of the 100,000 asked for")
    found = search(request)
    entries = sum(part.entries for part in found.parts)
    rate = entries / _least(lambda: search(request))
    print(f"row x knob entries of a whole search ({entries:,}): {rate:,.0f} per second")


def test_a_large_cluster_against_a_small_one(run):
    small, large = _request(64, 512), _request(16_384, 16_384)
    ratio = _least(lambda: search(large)) / _least(lambda: search(small))
    print(f"\nsearch at 16,384 GPUs: {ratio:.2f} x the time of 64")
    times = [_least(run(*PLAN, "--gpus", str(gpus), "--gbs", str(gbs))) for gpus, gbs in ((64, 512), (16_384, 16_384))]
    print(f"cold command at 16,384 GPUs: {times[1] / times[0]:.2f} x the time of 64 (4 asked for)")


def test_the_cold_command_against_its_dependencies(run):
    imports = _least(run("-c", DEPENDENCIES))
    cold = _least(run(*PLAN, "--gpus", "64"))
    shown = _least(run("-m", "advisor", "--help"))
    print(f"\ncold plan: {cold / imports:.2f} x the import of the runtime dependencies (5 asked for)")
    print(f"advisor --help: {shown / imports:.2f} x")


def test_the_pieces_of_a_search():
    for gpus, gbs in ((64, 512), (16_384, 16_384)):
        request = _request(gpus, gbs)
        job = (request.model, request.cluster, request.workload)
        took = _least(lambda job=job, gbs=gbs: layouts(*job, gbs, {}))
        print(f"\nlayouts of {gpus:,} GPUs enumerated in {took * 1e3:.0f} ms")
    request, vocabularies = _request(64, 512), itertools.count(50_000)

    def deal():  # another vocabulary every time, so that nothing is cached
        model = dataclasses.replace(request.model, vocab_size=next(vocabularies))
        balanced_split(model, request.workload, 16, 3, 0)

    print(f"62 layers dealt over 48 chunks in {_least(deal) * 1e3:.1f} ms")

    def read():
        forget()
        load_profile(request.cluster.gpu.name)

    print(f"a profile read in {_least(read) * 1e3:.1f} ms (50 asked for)")


def test_peak_memory(run):
    for gpus, gbs in ((64, 512), (16_384, 16_384)):
        run(*PLAN, "--gpus", str(gpus), "--gbs", str(gbs))()
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        print(f"\npeak memory of a plan on {gpus:,} GPUs: {peak:.0f} MiB (400 asked for)")


def test_help_imports_no_numpy(run):
    code = (
        "import sys, runpy; sys.argv = ['advisor', '--help']\ntry: runpy.run_module('advisor', run_name='__main__')\n"
    )
    code += "except SystemExit: pass\nassert 'numpy' not in sys.modules"
    run("-c", code)()
