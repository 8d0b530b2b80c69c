"""Run by tests in a process of its own: what Megatron-LM makes of flag lists (JSON on stdin) when it starts a job.

The sources of megatron-core 0.19 are found in MEGATRON_SOURCE; its kernels (Transformer Engine, triton) are stood in.
For every list: its own parser and validate_args(), the TransformerConfig of the arguments, and the rank grid of as many
processes. Prints what they hold in our names, or the message of whoever refused.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import typing
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

sys.path[:0] = [os.environ["MEGATRON_SOURCE"], str(Path(__file__).parents[2])]

from tests.real import te_stub  # noqa: E402

te_stub.install("transformer_engine", "triton")
if not hasattr(typing, "override"):
    typing.override = lambda function: function

import torch  # noqa: E402
from megatron.core import parallel_state  # noqa: E402
from megatron.training.arguments import core_transformer_config_from_args, parse_args, validate_args  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

from tests.real.held import in_megatron  # noqa: E402

H100 = SimpleNamespace(major=9, minor=0, name="NVIDIA H100 80GB HBM3")
REFUSALS = (AssertionError, ValueError, TypeError, RuntimeError, AttributeError, SystemExit)


def grid(args: Any) -> dict[str, int]:
    """Sizes of the groups of rank 0 in the grid that Megatron builds."""
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=args.world_size)
    try:
        parallel_state.initialize_model_parallel(
            args.tensor_model_parallel_size, args.pipeline_model_parallel_size,
            args.virtual_pipeline_model_parallel_size, context_parallel_size=args.context_parallel_size,
            expert_model_parallel_size=args.expert_model_parallel_size,
            num_distributed_optimizer_instances=args.num_distributed_optimizer_instances,
            expert_tensor_parallel_size=args.expert_tensor_parallel_size, create_gloo_process_groups=False,
        )  # fmt: skip
        return {"dp": parallel_state.get_data_parallel_world_size(), "edp": _expert_data_ranks()}
    finally:
        parallel_state.destroy_model_parallel()
        torch.distributed.destroy_process_group()


def _expert_data_ranks() -> int:
    group = parallel_state.get_expert_data_parallel_group(partial_expert_data_parallel=False)
    return torch.distributed.get_world_size(group)


def answer(job: dict[str, Any]) -> dict[str, Any]:
    """What one list of flags becomes."""
    os.environ.update(WORLD_SIZE=str(job["gpus"]), RANK="0", **job["environment"])
    said = io.StringIO()
    with patch.object(sys, "argv", ["pretrain_gpt.py", *job["flags"]]), contextlib.redirect_stderr(said):
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                args = validate_args(parse_args())
                config = core_transformer_config_from_args(args)
                return in_megatron(args, config) | grid(args)
        except REFUSALS as problem:
            return {"error": f"{type(problem).__name__}: {problem} {said.getvalue()[-300:]}"}


def main() -> None:
    with (
        patch("torch.cuda.get_device_capability", lambda *_: (9, 0)),
        patch("torch.cuda.get_device_properties", lambda *_: H100),
        patch("torch.cuda.is_available", lambda: True),
    ):
        answers = [answer(job) for job in json.load(sys.stdin)]
    print("ANSWERS" + json.dumps(answers))


main()
