"""A sampler that proposes legal values only; one of the modules that need Optuna."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from optuna.samplers import TPESampler

MOST_TRIES = 16


class LegalSampler(TPESampler):
    """TPE, one parameter at a time, that answers with values of `allowed` only."""

    allowed: Sequence[Any] = ()

    def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
        """Nothing is sampled together, because what is allowed depends on what was chosen before."""
        return {}

    def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: Any) -> Any:
        """What TPE says, if that is allowed; else the nearest number, or the first name, that is."""
        if len(self.allowed) == 1:
            return self.allowed[0]
        for _ in range(MOST_TRIES):
            value = super().sample_independent(study, trial, param_name, param_distribution)
            if value in self.allowed:
                return value
            if isinstance(value, int):
                return min(self.allowed, key=lambda one: abs(math.log1p(one) - math.log1p(value)))
        return self.allowed[0]
