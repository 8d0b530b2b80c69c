"""A system file with its own profile: somebody's cluster, with what was measured there, as one file to plan with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from advisor.errors import InputError
from advisor.spec.load.fields import read_yaml_mapping
from advisor.spec.load.system import load_system, system_path

MAX_TEXT_BYTES = 1 << 20


def own_system(system: str, fitted: Mapping[str, Any], kernels: Mapping[str, Any], note: str, **changed: Any) -> str:
    """The file of `system` (name as for `load_system`) with its section `profile` changed, as YAML.

    `fitted` and `kernels` have the forms of profiles/fitted and profiles/kernels and go over what the file holds
    already, collective by collective; `changed` are keys of the system itself. `note` is the comment on top. Raises
    InputError where there is no such system, or where the result would be too long to be read.
    """
    before = read_yaml_mapping(system_path(system))
    before.setdefault("name", load_system(system).name)
    held = before.pop("profile", None) or {}
    merged = {**held.get("kernels", {}), **kernels}
    for curves in ("collectives_us", "network_us"):
        if curves in merged:
            merged[curves] = {**held.get("kernels", {}).get(curves, {}), **merged[curves]}
    rates = {**held.get("fitted", {}).get("gemm_tflops", {}), **fitted.get("gemm_tflops", {})}
    profile = {
        "fitted": {**held.get("fitted", {}), **fitted, **({"gemm_tflops": rates} if rates else {})},
        "kernels": merged,
    }
    body = {**before, **changed, "profile": {name: section for name, section in profile.items() if section}}
    return system_text(body, note)


def system_text(body: Mapping[str, Any], note: str) -> str:
    """A system file with `note` as the comment on top; InputError where it would be too long to be read."""
    text = "".join(f"# {line}\n" for line in note.splitlines())
    text += yaml.safe_dump(body, sort_keys=False, width=120, default_flow_style=None)
    if len(text) > MAX_TEXT_BYTES:
        raise InputError(f"a system file of {len(text)} bytes is more than can be read again", "fewer sizes or ranks")
    return text
