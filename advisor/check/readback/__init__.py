"""Reads from a job's log what really took effect, and compares it with a plan."""

from __future__ import annotations

from advisor.check.readback.compare import ReadBack, compare
from advisor.check.readback.observed import Observed, Peak, Seen, Steps
from advisor.check.readback.read import read_log

__all__ = ["Observed", "Peak", "ReadBack", "Seen", "Steps", "compare", "read_log"]
