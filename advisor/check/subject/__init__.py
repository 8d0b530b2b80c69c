"""Somebody's configuration as a job that can be priced: as it is written, and as it takes effect."""

from __future__ import annotations

from advisor.check.subject.form import Subject
from advisor.check.subject.read import read_subject

__all__ = ["Subject", "read_subject"]
