"""`advisor check --log` on what Megatron-LM itself prints: arguments, changes that it makes to them, training log."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from advisor.check.readback import ReadBack, compare, read_log
from advisor.check.readback.wording import wordings
from advisor.configure.chosen import Chosen, read_plan
from tests.configure.plans import plan_file
from tests.export.plans import golden_chosen
from tests.real.test_megatron_export import SOURCE, words_of

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not SOURCE, reason="MEGATRON_SOURCE does not name the sources of megatron-core 0.19"),
]
BESIDE = (
    "--lr", "3e-4", "--train-iters", "100", "--mock-data", "--tokenizer-type", "NullTokenizer", "--eval-iters", "0",
    "--log-throughput", "--log-interval", "1",
)  # fmt: skip


def log_of(chosen: Chosen, path: Path, flags: list[str], **job: Any) -> Path:
    text = json.dumps({"gpus": chosen.cluster.gpus, "flags": [*flags, *BESIDE], **job})
    program = Path(__file__).parent / "print_arguments.py"
    ran = subprocess.run(
        [sys.executable, str(program)], check=False, input=text, capture_output=True, text=True,
        env={**os.environ, "MEGATRON_SOURCE": SOURCE},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-2000:]
    path.write_text(ran.stdout + ran.stderr, encoding="utf-8")
    return path


def lost(found: ReadBack) -> dict[str, tuple[str, Any, Any]]:
    return {
        row.key: (row.status, row.planned, row.seen and row.seen.value)
        for row in found.rows
        if row.status in ("silently off", "differs")
    }


@pytest.mark.parametrize("name", ["dense", "llama3-70b", "minimax-m2"])
def test_what_is_exported_is_read_back_as_effective(name: str, tmp_path: Path) -> None:
    golden = name in ("llama3-70b", "minimax-m2")
    chosen = golden_chosen(name, tmp_path) if golden else read_plan(plan_file(tmp_path, name))
    seconds, peak = chosen.step.step_s, chosen.candidate.memory.peak_allocated_bytes
    path = log_of(
        chosen, tmp_path / "job.log", words_of(chosen, "0.19"), steps_s=[5 * seconds] * 10 + [seconds] * 5,
        peak_bytes=peak,
    )  # fmt: skip
    found = compare(read_log([str(path)]), chosen)
    assert lost(found) == {}
    assert (found.observed.framework, found.observed.version) == ("megatron-lm", "0.19")
    assert {one.name: round(one.ratio, 3) for one in found.measures} == {"step_s": 1.0, "peak_allocated_bytes": 1.0}
    assert found.outcome == "as planned"


def test_overlap_that_megatron_switches_off_is_seen(tmp_path: Path) -> None:
    chosen = golden_chosen("llama3-70b", tmp_path)
    flags = words_of(chosen, "0.19")
    at = flags.index("--pipeline-model-parallel-layout")
    del flags[at : at + 2]
    found = compare(read_log([str(log_of(chosen, tmp_path / "job.log", flags))]), chosen)
    gone = lost(found)
    assert gone["model.overlap_p2p_comm"] == ("silently off", True, False)
    assert gone["model.virtual_pipeline_model_parallel_size"][0] == "differs"
    assert found.outcome == "silently off"
    assert "non-interleaved schedule" in found.observed.settings["model.overlap_p2p_comm"].why


def test_sentences_of_the_table_are_in_the_sources() -> None:
    checked = 0
    for one in wordings().all:
        for part in one.source.split("; "):
            names, _, path = part.rpartition(" ")
            if "MC" not in names or one.tells == "arguments":
                continue
            text = " ".join((Path(SOURCE) / path).read_text(encoding="utf-8").split())
            text = re.sub(r"['\"] (?:\+ )?f?['\"]", "", text)
            assert any(word.rstrip(":") in text for word in one.text), one.id
            checked += 1
    assert checked >= 15
