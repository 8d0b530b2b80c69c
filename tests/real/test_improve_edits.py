"""Edits of `advisor improve`, started on the real Bridge: legal, and resolved to what each change promised."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from advisor.configure.job import Job
from tests.real.bridge_stack import VERSION, on_gpus, require_bridge
from tests.real.held import broken, in_bridge, promised
from tests.real.improve_edits import JOBS, all_edits, job_of, launched, program, read, run_program, script
from tests.real.recipe_settings import on_h100

require_bridge()
pytestmark = pytest.mark.bridge
Make = Callable[[str, Path], Any]


def by_overrides(text: str, _path: Path) -> Any:
    """The container of run_recipe.py: its recipe, and the overrides as the shell hands them over."""
    import megatron.bridge.recipes as recipes
    from megatron.bridge.training.utils.omegaconf_utils import process_config_with_overrides

    said, _ = launched(text)
    at = said.index("--recipe")
    return process_config_with_overrides(getattr(recipes, said[at + 1])(), cli_overrides=said[at + 2 :])


def by_program(text: str, _path: Path) -> Any:
    """The container of a Python file, run as it is written."""
    return run_program(text)


def by_saved(text: str, path: Path) -> Any:
    """The container of a run_config.yaml."""
    from megatron.bridge.training.config import ConfigContainer

    saved = path.with_name("edited.yaml")
    saved.write_text(text, encoding="utf-8")
    return ConfigContainer.from_yaml(str(saved))


# Offloading by modules asks for it (presets/dials.yaml); no Python file and no run_config.yaml can say so.
VARIABLES = {"NVTE_CPU_OFFLOAD_V1": "1"}
FORMS: dict[str, Make] = {"overrides": by_overrides, "python": by_program, "saved": by_saved}
NAMES = {"overrides": "job.sh", "python": "config.py", "saved": "run_config.yaml"}


def text_of(form: str, name: str, path: Path) -> str:
    """A configuration in one of the forms; a saved one is what Bridge itself writes."""
    if form == "overrides":
        return script(name)
    text = program(name, "megatron.bridge.recipes")
    if form == "saved":
        run_program(text).to_yaml(str(path))
        return path.read_text(encoding="utf-8")
    return text


def settled(make: Make, text: str, path: Path, job: Job) -> dict[str, Any]:
    """What a configuration resolves to on the GPUs of a job, as training starts it."""
    from megatron.bridge.training.config import runtime_config_update

    with on_gpus(job), patch.dict(os.environ, VARIABLES):
        cfg = make(text, path)
        runtime_config_update(cfg)
    return in_bridge(cfg)


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize("form", FORMS)
def test_every_edit_is_taken_and_resolves_to_its_promise(form: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / NAMES[form]
    with on_h100():
        text = text_of(form, name, path)
    subject = read(path, text, VERSION)
    today = settled(FORMS[form], text, path, job_of(subject.request, subject.asked))
    assert broken(promised(subject.request, subject.asked, subject.effective), today) == {}
    wrong: dict[str, Any] = {}
    tried = 0
    for one in all_edits(subject):
        if one.risks:
            continue
        tried += 1
        try:
            found = broken(promised(one.request, one.choice, one.held), settled(FORMS[form], one.text, path, one.job))
        except Exception as problem:
            found = {"refused": (one.choice.layout, f"{type(problem).__name__}: {problem}")}
        if found:
            wrong[one.name] = found
    assert wrong == {}
    assert tried > (20 if name == "pipeline" else 30)
