"""What the last fit found, as committed: factors of the dials, with and without the runs of one model, GPU or group.

`profiles/factors.json` holds them per dial on the starting values of profiles/fitted; `profiles/stacks.yaml` names the
training stacks that have factors of their own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal

from advisor import data
from advisor.cost.profile import Profile, load_profile
from advisor.fit.dials import DIALS, STACK_DIALS, at_start, turned
from advisor.fit.runs import Run
from advisor.spec.load.fields import read_yaml_mapping

LeaveOut = Literal["none", "model", "gpu", "group"]
LEAVE_OUTS: tuple[LeaveOut, ...] = ("none", "model", "gpu", "group")
FACTORS, STACKS = "factors.json", "stacks.yaml"


@lru_cache(maxsize=1)
def stacks() -> Mapping[str, Any]:
    """Entries of profiles/stacks.yaml by the group of runs they hold for."""
    return read_yaml_mapping(data.require("profiles", STACKS))


@lru_cache(maxsize=1)
def factors() -> Mapping[str, Any]:
    """Content of profiles/factors.json."""
    found: Mapping[str, Any] = json.loads(data.require("profiles", FACTORS).read_text(encoding="utf-8"))
    return found


def sweep_of(run: Run) -> str:
    """Runs that differ in their layout only: same source, model, cluster size and sequence."""
    return f"{run.group} {run.model_name} {run.cluster.gpus} GPUs {run.workload.seq_len}"


def stack_key(run: Run) -> str:
    """What is left out together with a run of a stack of its own."""
    return sweep_of(run) if stacks()[run.group]["key"] == "sweep" else run.model_name


def left_out_key(run: Run, leave_out: LeaveOut) -> str:
    """The model, GPU or group of a run as fits without it are named."""
    names = {"model": run.model_name, "gpu": run.cluster.gpu.name, "group": run.group}
    return names.get(leave_out, "")


def profile_of(run: Run, leave_out: LeaveOut = "none") -> Profile:
    """The profile a run is predicted with: that of its GPU, or of its stack; without what `leave_out` leaves out.

    A model, GPU or group that no run of the fit had needs nothing left out. For stacks of their own "model" leaves out
    one sweep or model of theirs, "gpu" and "group" everything that is known of the stack.
    """
    base = load_profile(run.cluster.gpu)
    if run.group in stacks() and leave_out in ("none", "model"):
        own = factors()["stacks"][run.group]
        chosen = own["left_out"].get(stack_key(run)) if leave_out == "model" else None
        return turned(at_start(base, (*DIALS, *STACK_DIALS)), STACK_DIALS, chosen or own["factors"])
    unseen = factors()["left_out"].get(leave_out, {}).get(left_out_key(run, leave_out))
    return base if unseen is None else turned(at_start(base, DIALS), DIALS, unseen)
