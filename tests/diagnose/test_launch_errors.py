"""Errors of starting jobs on several nodes, as the tables of the guide to multi-node Slurm jobs list them."""

# ruff: noqa: E501 - lines of logs are as long as they are

from __future__ import annotations

import pytest

from advisor.diagnose.run import diagnose

ROWS = {
    "no --gpus-per-node": ("srun: error: Unable to allocate resources: Cannot find GPU specification", "launch_misuse", "gpus-per-node"),
    "wrong partition": ("srun: error: Unable to allocate resources: invalid partition specified: pool0", "launch_misuse", "partition"),
    "wrong account": ("sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified", "launch_misuse", "account"),
    "-w against the allocation": ("srun: error: Unable to create step for job 123: Requested node configuration is not available", "launch_misuse", "no -w"),
    "no uv in the image": ("bash: line 1: uv: command not found", "container", "install uv"),
    "full uv cache": ("error: Failed to write to cache: No space left on device (os error 28) /root/.cache/uv", "cache_full", "UV_CACHE_DIR"),
    "full pip cache": ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device: '/root/.cache/pip/x'", "cache_full", "shared storage"),
    "two copies of megatron-core": ("[rank0]: ModuleNotFoundError: No module named 'megatron.core.activations'", "import_conflict", "3rdparty/Megatron-LM"),
    "two copies, another module": ("ModuleNotFoundError: No module named 'megatron.core.tensor_parallel'", "import_conflict", "uv sync"),
    "rank 0 busy": (
        "[rank8]: torch.distributed.DistBackendError: [8] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by key '0', but store->get('0') got error: wait timeout after 600000ms\n"
        "[rank8]: This may indicate a possible application crash on rank 0 or a network set up issue.",
        "nccl_rank0_busy", "raise the timeout",
    ),
    "srun without WORLD_SIZE": ("ERROR: This script must be launched with torchrun. Example:", "launch_misuse", "SLURM_NTASKS"),
    "packed files of one node": (
        "[rank8]: Traceback (most recent call last):\n"
        '[rank8]:   File "train.py", line 3, in main\n'
        "[rank8]: TypeError: 'NoneType' object is not an iterator",
        "dataloader", "NEMO_HOME",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("lines", "cause", "fix"), ROWS.values(), ids=ROWS)
def test_a_row_has_its_cause_and_its_fix(lines, cause, fix, tmp_path):
    path = tmp_path / "job.log"
    path.write_text(lines + "\n", encoding="utf-8")
    found = diagnose([str(path)])
    assert found.cause_id == cause
    assert fix in found.fix
