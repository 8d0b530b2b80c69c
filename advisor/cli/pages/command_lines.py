"""Commands that a page suggests, spelled so that they can be pasted."""

from __future__ import annotations

import shlex
from collections.abc import Container
from typing import Literal

from advisor.cli.pages.parts import SEARCH_SETTINGS
from advisor.search.dials import knob_words
from advisor.search.request import Request
from advisor.spec.layout import Knobs
from advisor.spec.plan import Candidate

LAYOUT_FLAGS = ("tp", "pp", "vpp", "cp", "ep", "etp", "mbs")
OWN_WORDS = {
    "model",
    "gpus",
    "gbs",
    "headroom",
    "sp",
    "pipeline_layout",
    *SEARCH_SETTINGS,
    *LAYOUT_FLAGS,
    *knob_words(Knobs()),
}


def one_layout(verb: str, request: Request, candidate: Candidate) -> str:
    """`advisor estimate` or `advisor why` for one candidate of a request."""
    layout, usual = candidate.layout, knob_words(Knobs())
    words = [*_job(verb, request), "--gbs", str(layout.gbs)]
    if request.reserve_bytes:
        words += ["--headroom", str(request.settings["headroom"].value)]
    for name in LAYOUT_FLAGS:
        if getattr(layout, name) > 1 or name in {"tp", "pp"}:
            words += [f"--{name}", str(getattr(layout, name))]
    if not layout.sp and layout.tp > 1:
        words.append("--no-sp")
    for name, value in knob_words(candidate.knobs).items():
        flag = f"--{name.replace('_', '-')}"
        if value == usual[name]:
            continue
        if isinstance(value, bool):
            words.append(flag if value else flag.replace("--", "--no-", 1))
        else:
            words += [flag, ",".join(value) if isinstance(value, list) else str(value)]
    return shlex.join(words)


def plan_on(request: Request, gpus: int | Literal["auto"], gbs: int | None = None) -> str:
    """`advisor plan` for the same job on another number of GPUs, with a batch of `gbs` where that is given."""
    words = _job("plan", request, {"model", "gpus", *(["gbs"] if gbs else [])})
    words[words.index("--gpus") + 1] = str(gpus)
    return shlex.join([*words, "--gbs", str(gbs)] if gbs else words)


def _job(verb: str, request: Request, without: Container[str] = OWN_WORDS) -> list[str]:
    """Model, GPUs and every setting that somebody gave."""
    settings = request.settings
    words = ["advisor", verb, "--model", str(settings["model"].value), "--gpus", str(request.cluster.gpus)]
    for name, setting in settings.items():
        if name in without or setting.origin != "flag":
            continue
        flag = f"--{name.replace('_', '-')}"
        if str(setting.value) in {"True", "False"}:
            words.append(flag if str(setting.value) == "True" else flag.replace("--", "--no-", 1))
        else:
            words += [flag, str(setting.value)]
    return words
