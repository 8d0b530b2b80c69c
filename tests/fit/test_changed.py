"""Names and units of changed coefficients: rates are shown and written in TFLOP/s, the rest as it is."""

from __future__ import annotations

import pytest

from advisor.cost.profile import load_profile
from advisor.fit.changed import before, changed_by, fitted_entries, origin
from advisor.fit.dials import Dial


def test_rates_are_shown_and_written_in_tflops() -> None:
    profile = load_profile("h100")
    found = changed_by(profile, [Dial(("gemm.bf16",)), Dial(("memory_share",))], [0.95, 1.02], "own cluster")
    assert set(found) == {"gemm_tflops.bf16", "memory_share"}
    old, unit = before(profile, "gemm_tflops.bf16")
    assert old.value / unit == pytest.approx(profile.gemm["bf16"].value / 1e12)
    assert before(profile, "memory_share") == (profile.coefficients["memory_share"], 1.0)
    entries = fitted_entries(found)
    assert entries["gemm_tflops"]["bf16"]["value"] == pytest.approx(0.95 * old.value / 1e12, rel=1e-5)
    assert origin(entries["memory_share"]["source"]) == origin(profile.coefficients["memory_share"].source)
