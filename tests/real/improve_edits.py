"""Configurations that `advisor improve` edits, and the real Bridge that runs what it wrote."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from advisor.check.subject import Subject, read_subject
from advisor.check.subject.edits import edits
from advisor.check.subject.refused import refused
from advisor.check.subject.rewrite import rewritten
from advisor.configure.job import Job
from advisor.rules import findings
from advisor.search.improve_turns import turns, words
from advisor.search.request import Request
from advisor.search.single import Choice
from advisor.spec.layout import Knobs

Run = Callable[[str, Job], Any]
GPUS = 64
OPTIONS = {"gpus": str(GPUS), "system": "dgx-h100"}
COMMON = {"train.global_batch_size": 512, "train.micro_batch_size": 1, "model.context_parallel_size": 1}
JOBS: dict[str, tuple[str, dict[str, Any]]] = {
    "dense": ("llama3_8b_pretrain_config", {
        "model.tensor_model_parallel_size": 2, "model.sequence_parallel": True,
        "model.pipeline_model_parallel_size": 2}),
    "experts": ("qwen3_30b_a3b_pretrain_config", {
        "model.tensor_model_parallel_size": 2, "model.sequence_parallel": True,
        "model.pipeline_model_parallel_size": 1, "model.expert_model_parallel_size": 8}),
    "latent": ("deepseek_v2_lite_pretrain_config", {
        "model.tensor_model_parallel_size": 1, "model.pipeline_model_parallel_size": 1,
        "model.expert_model_parallel_size": 8}),
    "fsdp": ("qwen3_8b_pretrain_config", {
        "model.tensor_model_parallel_size": 1, "model.pipeline_model_parallel_size": 1,
        "ddp.use_megatron_fsdp": True, "ddp.data_parallel_sharding_strategy": "optim_grads_params",
        "checkpoint.ckpt_format": "fsdp_dtensor"}),
    "pipeline": ("deepseek_v3_pretrain_config", {
        "model.tensor_model_parallel_size": 2, "model.pipeline_model_parallel_size": 16,
        "model.expert_model_parallel_size": 4}),
}  # fmt: skip
"""Recipe of Bridge and what the configuration says beside it: dense, experts, latent attention, sharded, staged."""


@dataclass(frozen=True)
class Edited:
    """A change written into a configuration: `name` says which, `risks` what stops the job according to the page."""

    name: str
    text: str
    request: Request
    choice: Choice
    held: Knobs
    risks: tuple[str, ...]

    @property
    def job(self) -> Job:
        """The job as the change makes it."""
        return job_of(self.request, self.choice)


def job_of(request: Request, choice: Choice) -> Job:
    """A job, for whoever asks which GPUs it runs on."""
    return Job(request.model, request.cluster, request.workload, choice.layout, choice.knobs)


def all_edits(subject: Subject) -> Iterator[Edited]:
    """Every legal change of a configuration that its form has words for."""
    for turn in turns(subject.request, subject.asked):
        made = turn.apply(subject.request, subject.asked)
        if made is None:
            continue
        request, choice = made
        held = subject.settle(choice.layout, choice.knobs)
        found = findings(request.model, request.cluster, request.workload, choice.layout, held)
        said = edits(subject, request, choice)
        if said and not any(one.severity == "stop" for one in found):
            old, new = words(turn, (subject.request, subject.asked), made)
            text = rewritten(subject, said)
            yield Edited(f"{turn.name} {old} -> {new}", text, request, choice, held, tuple(refused(subject, said)))


def read(path: Path, text: str, version: str) -> Subject:
    """A configuration as improve reads it from `path`."""
    path.write_text(text, encoding="utf-8")
    return read_subject(path, OPTIONS, version=version)


def script(name: str) -> str:
    """A launch script that overrides a recipe."""
    recipe, values = JOBS[name]
    said = [f"{key}={str(value).lower()}" for key, value in (COMMON | values).items()]
    rows = " \\\n    ".join(["torchrun --nproc_per_node 8 scripts/training/run_recipe.py", f"--recipe {recipe}", *said])
    return f"#!/bin/bash\nset -eu\n{rows}\n"


def program(name: str, module: str) -> str:
    """A Python file that assigns to the container of a recipe."""
    recipe, values = JOBS[name]
    said = "".join(f"    cfg.{key} = {value!r}\n" for key, value in (COMMON | values).items())
    return (
        f'"""A run."""\n\nfrom {module} import {recipe}\n\n\ndef make():\n    cfg = {recipe}()\n{said}    return cfg\n'
    )


def launched(text: str) -> tuple[list[str], dict[str, str]]:
    """What a launch script hands to torchrun's program, and the environment that it does so in."""
    stub = 'torchrun() { printf "%s\\0" "$@" --; env --null; }\n'
    ran = subprocess.run(
        ["bash", "-euc", stub + text], capture_output=True, text=True, check=True, env={"PATH": os.environ["PATH"]}
    )
    said = ran.stdout.split("\0")[:-1]
    end = said.index("--")
    program = next(at for at, word in enumerate(said) if word.endswith(".py"))
    own = ("PATH", "PWD", "SHLVL", "_", "OLDPWD")
    pairs = (one.partition("=") for one in said[end + 1 :])
    return said[program + 1 : end], {name: value for name, _, value in pairs if name not in own}


def run_program(text: str) -> Any:
    """The container that a Python file makes."""
    module = ModuleType("edited")
    exec(compile(text, "edited.py", "exec"), module.__dict__)
    return module.make()
