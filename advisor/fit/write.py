"""Writes fitted coefficients back into profiles/fitted/*.yaml, line by line, so that comments and order stay."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from advisor import files
from advisor.fit.calibrate import Fit
from advisor.fit.changed import FROM, origin

_ENTRY = re.compile(r"^(?P<indent> *)(?P<name>[a-z0-9_]+): \{value: (?P<value>[^,]+), (?P<rest>.*)\}(?P<tail>.*)$")
_SOURCE = re.compile(r'kind: (?P<kind>\w+), source: "(?P<source>[^"]*)"')


def write_fit(fit: Fit, folder: Path, note: str) -> list[Path]:
    """Writes the fitted values into the YAML files of `folder`; returns the files that changed.

    Dials without GPUs change default.yaml, and the rates of every GPU; dials of some GPUs change or add entries in the
    files of these. A value is its start times the factors of its dials, so writing twice changes nothing. `note` goes
    before the source of a changed entry. Its kind becomes fitted, or assumed in the files of GPUs that no run used.
    """
    changed = []
    for path in sorted(folder.glob("*.yaml")):
        before = path.read_text(encoding="utf-8")
        after = _turned_text(before, path.stem, fit, folder, note)
        if after != before:
            files.write_text(path, after)
            changed.append(path)
    return changed


def _turned_text(text: str, stem: str, fit: Fit, folder: Path, note: str) -> str:
    kind = "fitted" if stem == "default" or stem in fit.gpus else "assumed"
    lines = text.rstrip("\n").split("\n")
    factors: dict[str, float] = {}
    own: dict[str, bool] = {}
    for dial, factor in zip(fit.dials, fit.factors, strict=True):
        if stem != "default" and dial.where and not stem.startswith(dial.where):
            continue
        if stem == "default" and dial.where:
            continue
        for name in dial.names:
            factors[name] = factors.get(name, 1.0) * float(factor)
            own[name] = own.get(name, False) or bool(dial.where) or name.startswith("gemm.")
    for name, factor in factors.items():
        if own[name] or stem == "default":
            _turn(lines, name, factor, (kind, note), _inherited(folder, name) if stem != "default" else None)
    return "\n".join(lines) + "\n"


def _inherited(folder: Path, name: str) -> str | None:
    """The line of default.yaml that a GPU's own entry would override, None for rates."""
    if name.startswith("gemm."):
        return None
    text = (folder / "default.yaml").read_text(encoding="utf-8")
    return next((line for line in text.split("\n") if line.startswith(f"{name}: ")), None)


def _turn(lines: list[str], name: str, factor: float, origin: tuple[str, str], inherited: str | None) -> None:
    key, indent = (name[5:], 2) if name.startswith("gemm.") else (name, 0)
    for i, line in enumerate(lines):
        found = _ENTRY.match(line)
        if found and found["name"] == key and len(found["indent"]) == indent:
            lines[i] = _line(line, factor, *origin)
            return
    if inherited is not None:
        lines.append(_line(inherited, factor, *origin))


def _line(line: str, factor: float, kind: str, note: str) -> str:
    found = _ENTRY.match(line)
    if found is None:
        return line
    numbers = {key: float(one) for key, one in re.findall(r"(start|low|high): ([^,]+),", found["rest"])}
    start = numbers.get("start", float(found["value"]))
    value = float(np.clip(start * factor, numbers["low"], numbers["high"]))

    def refitted(match: re.Match[str]) -> str:
        return f'kind: {kind}, source: "{note}{FROM}{origin(match["source"])}"'

    rest = _SOURCE.sub(refitted, found["rest"])
    if "start" not in numbers:
        rest = f"start: {start:g}, {rest}"
    return f"{found['indent']}{found['name']}: {{value: {value:.4g}, {rest}}}{found['tail']}"
