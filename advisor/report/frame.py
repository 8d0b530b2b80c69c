"""Answers as pandas data frames; pandas is imported when a frame is asked for, never before."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from advisor.search.dials import LISTS, knob_words
from advisor.spec.plan import Candidate, Dial, ScalingPoint
from advisor.units import gib

if TYPE_CHECKING:
    from pandas import DataFrame

LAYOUT_FIELDS = ("tp", "pp", "vpp", "cp", "ep", "etp", "dp", "edp", "mbs", "gbs", "num_microbatches")


def candidate_row(candidate: Candidate) -> dict[str, Any]:
    """One candidate as flat columns: layout, knobs, sizes in GiB, times in seconds; rates are None outside training."""
    layout, memory, step = candidate.layout, candidate.memory, candidate.step
    row: dict[str, Any] = {"rank": candidate.rank}
    row.update({name: getattr(layout, name) for name in LAYOUT_FIELDS})
    words = knob_words(candidate.knobs)
    row.update({name: "+".join(word) or "none" if name in LISTS else word for name, word in words.items()})
    row["peak_device_gib"] = gib(memory.peak_device_bytes)
    row["peak_allocated_gib"] = gib(memory.peak_allocated_bytes)
    row["headroom_gib"] = gib(memory.budget_bytes - memory.peak_device_bytes)
    row["worst_stage"], row["worst_moment"] = memory.worst_stage, memory.worst_moment
    row["step_s"] = None if step is None else step.step_s
    row["low_s"] = None if step is None else step.low_s
    row["high_s"] = None if step is None else step.high_s
    row["tokens_per_s_per_gpu"] = None if step is None else step.tokens_per_s_per_gpu
    row["tflops_per_gpu"] = None if step is None else step.tflops_per_gpu
    row["mfu"] = None if step is None else step.mfu
    row["exposed_s"] = None if step is None else sum(step.exposed_s.values())
    row["bubble_s"] = None if step is None else step.bubble_s
    return row


def candidate_frame(candidates: Iterable[Candidate]) -> DataFrame:
    """One row per candidate."""
    import pandas as pd

    return pd.DataFrame([candidate_row(candidate) for candidate in candidates])


def dial_frame(dials: Iterable[Dial]) -> DataFrame:
    """One row per single change of a layout."""
    import pandas as pd

    return pd.DataFrame(
        [
            {
                "dial": dial.name,
                "before": dial.before,
                "after": dial.after,
                "verdict": dial.verdict,
                "gain": dial.gain,
                "freed_gib": None if dial.freed_bytes is None else gib(dial.freed_bytes),
            }
            for dial in dials
        ]
    )


def scaling_frame(points: Iterable[ScalingPoint]) -> DataFrame:
    """One row per GPU count; the columns of the candidate are missing where nothing fits."""
    import pandas as pd

    rows = []
    for point in points:
        own: dict[str, Any] = {"gpus": point.gpus, "efficiency": point.efficiency, "grown_term": point.grown_term}
        rows.append(own if point.candidate is None else candidate_row(point.candidate) | own)
    return pd.DataFrame(rows)
