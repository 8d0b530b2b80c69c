"""Hardware queues of a GPU: which overlap is lost when the environment asks for another number than a layout needs.

CUDA_DEVICE_MAX_CONNECTIONS is the number of queues that launched kernels wait in. Before Blackwell, overlap of tensor
and context parallelism needs one, so that a transfer starts before the product that it runs beside
(ML:megatron/training/arguments.py:1453-1479, which excepts FSDP and the overlap of expert exchange). In one queue,
traffic of other streams waits behind compute.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from advisor.cost.setting import Setting
from advisor.spec.hardware import BLACKWELL
from advisor.spec.layout import Array, Fsdp


@dataclass(frozen=True, slots=True, eq=False)
class Queues:
    """What the queues of a table of layouts make of its overlap, as columns.

    `unordered`: nothing ensures that transfers of tensor and context parallelism start beside compute. `serial_data`:
    gradient and parameter traffic wait for compute. `ep_kept`: the share of what the overlap of expert exchange hides
    that stays hidden.
    """

    unordered: Array
    serial_data: Array
    ep_kept: Array


def queues(setting: Setting) -> Queues | None:
    """What the number of queues costs; None where the environment has as many as every layout needs."""
    connections, columns = setting.workload.connections, setting.columns
    if connections is None:
        return None
    one = np.asarray(connections == 1)
    old = setting.cluster.gpu.capability_major < BLACKWELL
    plain = old & (columns.fsdp == Fsdp.none) & ~columns.ep_overlap
    several = (columns.tp > 1) | (columns.cp > 1)
    kept = setting.profile.value("ep_overlap_kept_in_one_queue")
    return Queues(plain & several & ~one, plain & ~several & one, np.where(one, kept, 1.0))
