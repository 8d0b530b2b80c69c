"""One rank of a small gloo job under torch.profiler: python gloo_job.py RANK FOLDER.

Every step multiplies beside an asynchronous all-reduce of a data-parallel group, then gathers with nothing beside it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, schedule

STEPS = 3


def main(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    group = dist.new_group([0, 1], group_desc="DATA_PARALLEL_GROUP")
    matrix, gradient = torch.randn(256, 256), torch.randn(1 << 20)
    target = str(folder / f"rank-{rank}.json.gz")
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=0, warmup=1, active=STEPS),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(target),
    ) as profiler:
        for _ in range(STEPS + 1):
            handle = dist.all_reduce(gradient, group=group, async_op=True)
            for _ in range(20):
                matrix = torch.tanh(matrix @ matrix)
            handle.wait()
            dist.all_gather([torch.empty_like(gradient) for _ in range(2)], gradient, group=group)
            dist.barrier()
            profiler.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
