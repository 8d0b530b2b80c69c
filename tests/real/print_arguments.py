"""Run by tests in a process of its own: prints what Megatron-LM prints before and while it trains.

The sources of megatron-core 0.19 are found in MEGATRON_SOURCE; its kernels (Transformer Engine, triton) are stood in.
JSON on stdin: `flags` and `gpus`; and for the training log `steps_s` and `peak_bytes`, which stand in for clock and
allocator: arguments, warnings and log lines are made by Megatron-LM's own validate_args() and training_log().
"""

from __future__ import annotations

import json
import os
import sys
import typing
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock, patch

sys.path[:0] = [os.environ["MEGATRON_SOURCE"], str(Path(__file__).parent)]

import te_stub  # noqa: E402

te_stub.install("transformer_engine", "triton")
if not hasattr(typing, "override"):
    typing.override = lambda function: function

import torch  # noqa: E402
from megatron.training import training  # noqa: E402
from megatron.training.arguments import parse_args, validate_args  # noqa: E402
from megatron.training.utils import common_utils  # noqa: E402

H100 = SimpleNamespace(major=9, minor=0, name="NVIDIA H100 80GB HBM3")


def arguments(job: dict[str, typing.Any]) -> typing.Any:
    """Arguments as start-up leaves them; Megatron-LM prints them and what it changes."""
    os.environ.update(WORLD_SIZE=str(job["gpus"]), RANK="0", CUDA_DEVICE_MAX_CONNECTIONS="1")
    sys.argv = ["pretrain_gpt.py", *job["flags"]]
    args = parse_args()
    return validate_args(args)


def train(args: typing.Any, job: dict[str, typing.Any]) -> None:
    """The lines of training_log() for as many iterations as there are times."""
    args.padded_vocab_size = args.padded_vocab_size or args.vocab_size
    timers = MagicMock()
    tensor, peak = torch.tensor, job["peak_bytes"]
    stand_ins = {
        "get_args": lambda: args, "get_timers": lambda: timers, "get_one_logger": lambda: None,
        "get_tensorboard_writer": lambda: None, "get_wandb_writer": lambda: None, "get_energy_monitor": lambda: None,
        "reduce_max_stat_across_model_parallel_group": lambda value, **_: value,
        "get_num_microbatches": lambda: args.global_batch_size // args.micro_batch_size // args.data_parallel_size,
        "is_last_rank": lambda: True,
        "get_moe_metrics_tracker": lambda: SimpleNamespace(report=lambda **_: ""),
    }  # fmt: skip
    with ExitStack() as stack:
        for name, value in stand_ins.items():
            if hasattr(training, name):
                stack.enter_context(patch.object(training, name, value))
        stack.enter_context(patch.object(common_utils, "get_args", lambda: args))
        stack.enter_context(patch.object(common_utils.mpu, "get_data_parallel_rank", lambda: 0))
        stack.enter_context(patch("torch.tensor", lambda *a, **k: tensor(*a, **{**k, "device": "cpu"})))
        stack.enter_context(patch("torch.distributed.get_rank", lambda *_: 0))
        for name, value in {"memory_allocated": peak / 2, "max_memory_allocated": peak, "memory_reserved": peak * 1.1,
                            "max_memory_reserved": peak * 1.1}.items():  # fmt: skip
            stack.enter_context(patch(f"torch.cuda.{name}", lambda value=value: value))
        total: dict[str, typing.Any] = {}
        report = True
        for iteration, seconds in enumerate(job["steps_s"], 1):
            args.consumed_train_samples = iteration * args.global_batch_size
            timers.return_value.elapsed.return_value = seconds
            report = training.training_log(
                {"lm loss": tensor([11.0 / iteration])}, total, 3e-4, iteration, 1.0, report, 0, 0.7, None, None, None
            )


def main() -> None:
    job = json.load(sys.stdin)
    with (
        patch("torch.cuda.get_device_capability", lambda *_: (9, 0)),
        patch("torch.cuda.get_device_properties", lambda *_: H100),
        patch("torch.cuda.is_available", lambda: True),
    ):
        args = arguments(job)
    if "steps_s" in job:
        train(args, job)


main()
