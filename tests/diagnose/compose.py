"""Parts of logs as the real software prints them, to compose failures of known cause from."""

# ruff: noqa: E501 - lines of logs are as long as they are

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Case:
    """Files of one failed job and what must come out; None = not asked. `never` are causes that must not be given."""

    name: str
    cause: str
    files: dict[str, str]
    accept: tuple[str, ...] = ()
    rank: int | None = None
    node: str | None = None
    code: int | None = None
    never: tuple[str, ...] = ()
    unsure: bool = False
    extra: dict[str, Any] = field(default_factory=dict)


def log(*parts: str | Iterable[str]) -> str:
    """Parts and lists of parts as one text."""
    lines: list[str] = []
    for part in parts:
        lines += [part] if isinstance(part, str) else list(part)
    return "\n".join(lines) + "\n"


def one(name: str, cause: str, *parts: str | Iterable[str], **expected: Any) -> Case:
    """A case of one file."""
    return Case(name, cause, {"job.log": log(*parts)}, **expected)


def head(world: int = 16, tp: int = 4, pp: int = 1) -> list[str]:
    return [
        f"using world size: {world}, data-parallel size: {world // tp // pp}, context-parallel size: 1, "
        f"tensor-model-parallel size: {tp}, pipeline-model-parallel size: {pp}",
        f"> initialized tensor model parallel with size {tp}",
        f"> initialized pipeline model parallel with size {pp}",
        "NCCL version 2.27.3+cuda12.9",
        "WARNING:megatron.core.utils:no apex found, using local layer norm",
        "[rank0]: UserWarning: barrier(): using the device under current context",
        "time to initialize megatron (seconds): 31.593",
        "[after dataloaders are built] datetime: 2026-03-04 08:13:10 ",
        "done with setup ...",
        "training ...",
    ]


def steps(first: int = 100, count: int = 3, at: str = "2026-03-04 09:11", dated: bool = True) -> list[str]:
    return [
        (f" [{at}:{10 + 2 * i:02d}]" if dated else "")
        + f" iteration {first + i:8d}/   20000 | consumed samples: {(first + i) * 256:12d} | elapsed time per iteration (ms): "
        f"{2010.5 + i} | learning rate: 1.098875E-04 | global batch size:   256 | lm loss: 3.109939E+00 | loss scale: 1.0 | "
        "grad norm: 1.297 | number of skipped iterations:   0 | number of nan iterations:   0 |"
        for i in range(count)
    ]


def traceback(tag: str, frames: Sequence[tuple[str, int, str]], *last: str) -> list[str]:
    lines = ["Traceback (most recent call last):"]
    for path, line, function in frames:
        lines += [f'  File "{path}", line {line}, in {function}', "    ..."]
    return [tag + line for line in (*lines, *last)]


PRETRAIN = [
    ("/opt/megatron-lm/pretrain_gpt.py", 302, "<module>"),
    ("/opt/megatron-lm/megatron/training/training.py", 888, "pretrain"),
    ("/opt/megatron-lm/megatron/training/training.py", 2301, "train"),
    ("/opt/megatron-lm/megatron/training/training.py", 1422, "train_step"),
]
LOAD = [
    ("/opt/megatron-lm/megatron/training/training.py", 1180, "setup_model_and_optimizer"),
    ("/opt/megatron-lm/megatron/training/checkpointing.py", 1512, "load_checkpoint"),
    ("/opt/megatron-lm/megatron/training/checkpointing.py", 1130, "_load_base_checkpoint"),
]
SAVE = [
    ("/opt/megatron-lm/megatron/training/training.py", 2551, "checkpoint_and_decide_exit"),
    ("/opt/megatron-lm/megatron/training/checkpointing.py", 640, "save_checkpoint"),
]


def banner(rank: int, host: str, code: int, local: int | None = None, others: Sequence[int] = ()) -> list[str]:
    local = rank % 8 if local is None else local
    names = {-6: "SIGABRT", -9: "SIGKILL", -11: "SIGSEGV", -15: "SIGTERM", -7: "SIGBUS"}
    said = f"Signal {-code} ({names[code]}) received by PID 33{rank:02d}" if code < 0 else (
        "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
    )  # fmt: skip
    lines = [
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        "=" * 60,
        "pretrain_gpt.py FAILED",
        "-" * 60,
    ]
    lines += ["Failures:"]
    for index, other in enumerate(others, start=1):
        lines += [
            f"[{index}]:", "  time      : 2026-03-04_09:12:44", f"  host      : {host}",
            f"  rank      : {other} (local_rank: {other % 8})", "  exitcode  : 1 (pid: 4400)", "  error_file: <N/A>",
            "  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html",
        ]  # fmt: skip
    if not others:
        lines += ["  <NO_OTHER_FAILURES>"]
    return [
        *lines, "-" * 60, "Root Cause (first observed failure):", "[0]:", "  time      : 2026-03-04_09:12:41",
        f"  host      : {host}", f"  rank      : {rank} (local_rank: {local})", f"  exitcode  : {code} (pid: 33{rank:02d})",
        "  error_file: <N/A>", f"  traceback : {said}", "=" * 60,
    ]  # fmt: skip


def closing(count: int = 3, stamp: str = "W0304 09:12:41") -> list[str]:
    where = "torch/distributed/elastic/multiprocessing/api.py:900]"
    return [f"{stamp}.{i:06d} 2201 {where} Sending process {3300 + i} closing signal SIGTERM" for i in range(count)]


def watchdog(
    rank: int,
    seq: int,
    op: str = "ALLREDUCE",
    numel: int = 1048576,
    form: str = "new",
    group: str = "default_pg",
    at: str = "09:41",
) -> list[str]:
    work = f"WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn={numel}, NumelOut={numel}, Timeout(ms)=600000)"
    ran = f"ran for 6000{rank % 90:02d} milliseconds before timing out."
    if form == "old":
        tag = f"[E ProcessGroupNCCL.cpp:474] [Rank {rank}]"
        return [f"{tag} Watchdog caught collective operation timeout: {work} {ran}"]
    if form == "guid":
        tag = f"[rank{rank}]:[E304 {at}:34.227531918 ProcessGroupNCCL.cpp:632]"
        who = f"[PG ID 0 PG GUID 0({group}) Rank {rank}]"
        return [
            f"[rank{rank}]:[E304 {at}:34.127531918 ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective operation timeout: {work} {ran}",
            f"{tag} {who}  failure detected by watchdog at work sequence id: {seq} PG status: last enqueued work: {seq + 1}, last completed work: {seq - 1}",
            f"[rank{rank}]:[E304 {at}:34.327531918 ProcessGroupNCCL.cpp:681] [Rank {rank}] Some NCCL operations have failed or timed out. "
            "Due to the asynchronous nature of CUDA kernels, subsequent GPU operations might run on corrupted/incomplete data.",
            f"[rank{rank}]:[E304 {at}:34.427531918 ProcessGroupNCCL.cpp:695] [Rank {rank}] To avoid data inconsistency, we are taking the entire process down.",
        ]
    tag = f"[rank{rank}]:[E ProcessGroupNCCL.cpp:632] [PG 0 ({group}) Rank {rank}]"
    return [f"{tag} Watchdog caught collective operation timeout: {work} {ran}"]


def unique_id(rank: int, owner: int = 0) -> str:
    return (
        f"[rank{rank}]: torch.distributed.DistBackendError: [{rank}] is setting up NCCL communicator and retrieving ncclUniqueId "
        f"from [{owner}] via c10d key-value store by key '{owner}', but store->get('{owner}') got error: wait timeout after "
        f"600000ms, keys: /default_pg/0//cuda//{owner}"
    )


def remote_error(rank: int) -> list[str]:
    return [
        f"[rank{rank}]: torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1970, "
        "remote process exited or there was a network error, NCCL version 2.21.5",
        f"[rank{rank}]: ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
        f"[rank{rank}]: Last error:",
        f"[rank{rank}]: socketProgress: Connection closed by remote peer node-000<41232>",
    ]
