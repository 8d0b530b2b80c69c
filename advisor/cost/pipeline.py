"""How microbatch times of the stages become the time of a step."""

from __future__ import annotations

import numpy as np

from advisor.spec.layout import Array, Columns, CudaGraph


def fill_and_drain_s(mean_stage_s: Array, columns: Columns, share: float) -> Array:
    """Seconds in which a rank waits for the pipeline to fill and to drain: share x (pp - 1) / vpp x mean stage.

    `mean_stage_s` is forward plus backward of one microbatch on the mean rank. With equal stages the in-order
    schedules of Megatron (1F1B and interleaved, any microbatch group) take m (F + B) + (pp - 1) (F + B) / vpp
    exactly, and one slower rank of time x takes m x + (pp - 1) / vpp x mean. `share` (<= 1, fitted) is the part that is
    seen: real runs start filling while the last gradients are reduced.
    """
    out: Array = share * (columns.pp - 1) / columns.vpp * mean_stage_s
    return out


def steady_s(slowest_stage_s: Array, columns: Columns) -> Array:
    """Seconds in which the slowest rank works: one forward and backward per microbatch."""
    out: Array = columns.num_microbatches * slowest_stage_s
    return out


def chunk_passes(columns: Columns) -> Array:
    """Forward and backward passes of model chunks that the host of a rank walks through in a step, one by one.

    0 without a pipeline, and under a graph of the whole iteration. Each pays for message handles, freeing of outputs,
    an autograd graph and hooks of parameter buckets (ML:megatron/core/pipeline_parallel/schedules.py:1100-1900).
    """
    walked = (columns.pp > 1) & (columns.cuda_graph != CudaGraph.full_iteration)
    out: Array = np.where(walked, 2.0 * columns.num_microbatches * columns.vpp, 0.0)
    return out


def p2p_exposed(columns: Columns, share: float) -> tuple[Array, Array]:
    """How many stage-to-stage messages of one microbatch chunk show on a step's critical path, and how many hide.

    Each microbatch crosses a rank vpp times forward and as often backward. 1F1B sends and receives in one blocking
    call; interleaving with overlapped p2p shows `share` of them, and all of the (pp - 1) hops of filling and of
    draining.
    """
    messages = np.where(columns.pp > 1, 2.0 * columns.num_microbatches * columns.vpp, 0.0)
    hides = (columns.vpp > 1) & columns.overlap_p2p
    exposed: Array = np.where(hides, share, 1.0) * messages + 2.0 * (columns.pp - 1)
    hidden: Array = np.where(hides, 1.0 - share, 0.0) * messages
    return exposed, hidden
