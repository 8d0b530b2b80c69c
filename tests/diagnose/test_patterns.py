"""The tables: every pattern matches its own example, every cause is one of the closed list, every number has a kind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from advisor.diagnose.events import events_of
from advisor.diagnose.judge import EXPLAINS
from advisor.diagnose.patterns import SAID_ONCE, knowledge
from advisor.errors import InputError
from advisor.logs.gate import shape_of
from advisor.logs.scan import Hit
from advisor.logs.sources import Source
from advisor.logs.tags import read_tag

CLOSED_LIST = {
    *("cuda_oom", "cuda_oom_fragmentation", "host_oom", "shm_full", "disk_full", "cache_full"),
    *("nccl_rank0_busy", "nccl_missing_rank", "nccl_pipeline_stage", "nccl_all_ranks_network", "network_ib"),
    *("network_socket", "gpu_hardware", "nvlink_fabric", "port_in_use", "rendezvous", "import_conflict", "container"),
    *("ckpt_save", "ckpt_load", "dataloader", "nan", "rerun_exit", "preempted", "time_limit", "node_fail"),
    *("launch_misuse", "hang_process", "python_error", "native_crash", "undetermined"),
}
KNOWN = knowledge()


def found_in(line: str) -> list[str]:
    """Ids of the patterns that one line gives rise to."""
    marks = KNOWN.gate.marks(shape_of(line.encode()))
    hit = Hit(Source("x.log", Path("x.log")), 1, line, read_tag(line), None, marks)
    return [event.pattern.id for event in events_of(hit, 0, KNOWN.patterns)]


@pytest.mark.parametrize("pattern", KNOWN.patterns, ids=lambda pattern: pattern.id)
def test_every_pattern_is_the_first_for_its_example(pattern):
    found = found_in(pattern.example)
    assert pattern.id in found
    if pattern.role in SAID_ONCE:
        said = [name for name in found if next(p for p in KNOWN.patterns if p.id == name).role in SAID_ONCE]
        assert said == [pattern.id]


def test_causes_are_the_closed_list():
    assert set(KNOWN.causes) == CLOSED_LIST
    used = {pattern.cause for pattern in KNOWN.patterns if pattern.cause} | {rule.cause for rule in KNOWN.frames}
    assert used | set(KNOWN.phases.values()) <= CLOSED_LIST
    for cause, after in EXPLAINS.items():
        assert {cause, *after} <= CLOSED_LIST
        assert all(cause not in EXPLAINS.get(other, ()) for other in after), f"{cause} and another explain each other"


def test_ids_are_unique_and_sources_are_named():
    ids = [pattern.id for pattern in KNOWN.patterns]
    assert len(ids) == len(set(ids))
    assert all(pattern.source for pattern in KNOWN.patterns)
    assert all(xid.kind in {"hardware", "fabric", "application", "teardown", "notice"} for xid in KNOWN.xids.values())


@pytest.mark.parametrize(
    "line",
    [
        "[rank0]: UserWarning: The given NumPy array is not writable (tensor_numpy.cpp)",
        "/usr/lib/python3/dist-packages/requests: urllib3 version mismatch warning ignored",
        "WARNING:megatron.core.utils:no apex found, using local layer norm",
        "FutureWarning: `torch.cuda.amp.custom_bwd(args...)` is deprecated.",
        "srun: job 95514 queued and waiting for resources",
        "pyxis: imported docker image",
        "nvidia-smi: persistence mode is enabled on all devices",
        "  max_nodes        : 2",
        "node-000:771:771 [0] NCCL INFO NET/IB : No device found.",
        "node-000:771:771 [0] transport/net_ib.cc:120 NCCL WARN NET/IB : Got async event : GID table change",
        "[rank12]: For debugging consider passing CUDA_LAUNCH_BLOCKING=1",
        "[rank12]: CUDA kernel errors might be asynchronously reported at some other API call",
        "  error_file: <N/A>",
        "WARNING: could not find the metadata file /ckpt/latest_checkpointed_iteration.txt",
        "error correction of the learning rate: off",
    ],
)
def test_harmless_lines_are_no_causes(line):
    roles = {next(p for p in KNOWN.patterns if p.id == name).role for name in found_in(line)}
    assert not roles & {"root", "error", "symptom"}


def test_an_own_table_that_is_broken_is_an_input_error(tmp_path, monkeypatch):
    folder = tmp_path / "diagnose"
    folder.mkdir()
    (folder / "patterns.yaml").write_text("groups: [{about: x, source: y, patterns: [{id: a}]}]", encoding="utf-8")
    monkeypatch.setenv("ADVISOR_PRESETS", str(tmp_path))
    knowledge.cache_clear()
    try:
        with pytest.raises(InputError, match="presets/diagnose"):
            knowledge()
    finally:
        knowledge.cache_clear()


def test_the_arguments_that_megatron_prints_are_no_causes():
    path = Path(__file__).parents[2] / "presets" / "launch" / "megatron_arguments.json"
    names = json.loads(path.read_text(encoding="utf-8"))["flags"]
    assert len(names) > 200
    for name in names:
        for line in (f"  {name.replace('-', '_')} {'.' * 20} True", f"+ torchrun pretrain_gpt.py --{name} 1"):
            roles = {next(p for p in KNOWN.patterns if p.id == one).role for one in found_in(line)}
            assert not roles & {"root", "error", "symptom"}, line
