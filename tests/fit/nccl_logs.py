"""Output of nccl-tests as the programs print it (src/common.cu, src/common.h of NVIDIA/nccl-tests), for given times."""

from __future__ import annotations

from collections.abc import Mapping

PROGRAMS = {
    "all_reduce": ("sum", -1), "all_gather": ("none", -1), "reduce_scatter": ("sum", -1), "alltoall": ("none", -1),
    "sendrecv": ("sum", -1),
}  # fmt: skip
TABLE_HEAD = """#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""
TAIL = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 177.012\n#\n"


def time_text(us: float) -> str:
    """As getTime formats it: fewer digits for longer times."""
    return f"{us:7.0f}" if us >= 10_000 else f"{us:7.1f}" if us >= 100 else f"{us:7.2f}"


def half(size: int, us: float, ranks: int, program: str, wrong: str = "0") -> str:
    share = {"all_reduce": 2, "sendrecv": ranks / (ranks - 1)}.get(program, 1) * (ranks - 1) / ranks
    algorithm = size / us / 1e3
    return f"{time_text(us)} {algorithm:7.2f} {algorithm * share:7.2f} {wrong:>6}"


def row(size: int, us: float, ranks: int, program: str, *, wrong: str = "0") -> str:
    """One line: in place twice as long as out of place, which all-to-all does not offer."""
    redop, root = PROGRAMS[program]
    in_place = f"{'N/A':>7} {'N/A':>7} {'N/A':>7} {'N/A':>6}"
    if program not in {"alltoall"}:
        in_place = half(size, 2 * us, ranks, program, wrong)
    out = half(size, us, ranks, program, wrong)
    return f"{size:12d} {size // 4:13d} {'float':>9} {redop:>7} {root:>7} {out} {in_place}"


def ranks_head(ranks: int, per_node: int, *, bus: str = "[0x1b]", groups: int = 1) -> str:
    return "".join(
        f"#  Rank {rank:2d} Group {rank % groups:2d} Pid {4000 + rank:6d} on {f'dgx-{rank // per_node:02d}':>10} device"
        f" {rank % per_node:2d} {bus} NVIDIA H100 80GB HBM3\n"
        for rank in range(ranks)
    )


def log(
    program: str, ranks: int, per_node: int, times: Mapping[int, float], *, announced: bool = True, groups: int = 1
) -> str:
    """The whole output of one program; `times` are out-of-place microseconds by bytes."""
    size = ranks // groups
    head = "# nThread 1 nGpus 1 minBytes 8 maxBytes 8589934592 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1"
    text = f"{head} validation: 1 graph: 0\n#\n"
    if announced:
        version = "# nccl-tests version 2.17.1 nccl-headers=22705 nccl-library=22705"
        text = f"{version}\n# Collective test starting: {program}_perf\n{text}"
    text += "# Using devices\n" + ranks_head(ranks, per_node, groups=groups) + TABLE_HEAD
    return text + "".join(row(n, us, size, program) + "\n" for n, us in times.items()) + TAIL
