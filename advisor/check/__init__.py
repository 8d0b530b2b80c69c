"""Reads somebody's configuration without running it and asks every rule about it."""

from __future__ import annotations

from advisor.check.run import Found, Report, check

__all__ = ["Found", "Report", "check"]
