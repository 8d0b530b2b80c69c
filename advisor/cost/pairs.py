"""How wrong a predicted ratio of two steps is: profiles/pairs.yaml, from pairs of measured runs of the same job."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from advisor import data
from advisor.spec.load.fields import read_yaml_mapping
from advisor.spec.plan import StepEstimate


@lru_cache(maxsize=1)
def pair_errors() -> Mapping[str, Any]:
    """Widths of the error of a predicted ratio by dials turned, and the dials that measured pairs turn."""
    return read_yaml_mapping(data.require("profiles", "pairs.yaml"))


def ratio_spread(step: StepEstimate, turned: int) -> float:
    """Factor (>= 1) that the ratio of a step to one that differs in `turned` dials errs by, either way.

    So many half widths of the interval of one prediction, in logarithms; 1 where the step has no interval.
    """
    if step.low_s <= 0:
        return 1.0
    width = float(pair_errors()["turned"][turned]["width"])
    return math.exp(width * math.log(step.high_s / step.low_s) / 2)
