"""Tells the gloo events of a trace apart by process group.

torch.profiler records what gloo does (`gloo:all_reduce`) without its group. But every gloo group has threads of its own
from its creation on, and an event names its thread, so that the group follows from the threads that were there before
and after it was made. Traces of NCCL name their groups themselves.
"""

from __future__ import annotations

import functools
import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

OF_THREAD: dict[int, tuple[str, str]] = {}
GLOO = "gloo:"


def _threads() -> set[int]:
    return {int(name) for name in os.listdir("/proc/self/task")}


@functools.cache
def watch() -> None:
    """From now on note the threads of every group that is made in this process, by its name and description."""
    for name in ("init_process_group", "new_group"):
        setattr(dist, name, _noting(getattr(dist, name)))


def _noting(make: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(make)
    def made(*args: Any, **kwargs: Any) -> Any:
        before = _threads()
        group = make(*args, **kwargs)
        real = dist.group.WORLD if group is None else group
        if isinstance(real, dist.ProcessGroup):
            said = distributed_c10d._world.pg_names.get(real, ""), real.group_desc
            OF_THREAD.update(dict.fromkeys(_threads() - before, said))
        return group

    return made


def name_groups(path: Path) -> None:
    """Write the group of every gloo event into a trace (gz), in the words of c10d; what is not known stays open."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        trace = json.load(file)
    for event in trace["traceEvents"]:
        if str(event.get("name", "")).startswith(GLOO) and event.get("tid") in OF_THREAD:
            name, description = OF_THREAD[event["tid"]]
            event.setdefault("args", {}).update({"Process Group Name": name, "Process Group Description": description})
    with gzip.open(path, "wt", encoding="utf-8") as file:
        json.dump(trace, file)
