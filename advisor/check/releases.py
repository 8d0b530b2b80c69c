"""Releases that a configuration may be meant for: those in presets/versions.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from advisor.export.subject import version_pair, versions
from advisor.rules.lint import Setup
from advisor.rules.lint.releases import Release, hold, release
from advisor.rules.lint.setup import Framework


@lru_cache(maxsize=16)
def releases(framework: Framework, version: str) -> Mapping[str, Release]:
    """Releases by product for a `version` of Bridge, or of megatron-core under other frameworks.

    Raises InputError for a version that is not in presets/versions.yaml.
    """
    bridge, core = version_pair("bridge" if framework == "bridge" else "megatron-lm", version)
    found = {"megatron-core": release(core)}
    return found | {"bridge": release(bridge)} if framework == "bridge" else found


def limits(rule_versions: str, setup: Setup) -> str:
    """What to add to the message of a rule that some releases lack, where nobody said which one runs; else ""."""
    if setup.releases:
        return ""
    target = "bridge" if setup.framework == "bridge" else "megatron-lm"
    everywhere = all(hold(rule_versions, releases(setup.framework, one)) for one in versions(target))
    return "" if everywhere else f" [{rule_versions}]"
