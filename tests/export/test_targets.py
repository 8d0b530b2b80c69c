"""Every target: golden texts, shells and interpreters that accept them, and input that is refused."""

from __future__ import annotations

import ast
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from advisor.configure.chosen import read_plan
from advisor.errors import InputError
from advisor.export.targets import TARGETS, export
from tests.conftest import Ran
from tests.export.plans import GOLDEN, golden_chosen, golden_plan, random_plans

VERSIONS = {"bridge": ("0.3", "0.6"), "bridge-overrides": ("0.3", "0.6"), "megatron-lm": ("0.16", "0.19"),
            "env": ("0.6",), "yaml": ("0.3", "0.6")}  # fmt: skip
CASES = [(name, target, version) for name in GOLDEN for target in TARGETS for version in VERSIONS[target]]


@pytest.mark.parametrize(("name", "target", "version"), CASES)
def test_golden(name: str, target: str, version: str, tmp_path: Path, golden: Callable[[str, str], None]) -> None:
    for file, text in export(golden_chosen(name, tmp_path), target, version).items():
        golden(f"export/{name}/{version}/{file}", text)


@pytest.mark.parametrize(("name", "target", "version"), CASES)
def test_accepted_by_its_interpreter(name: str, target: str, version: str, tmp_path: Path) -> None:
    for file, text in export(golden_chosen(name, tmp_path), target, version).items():
        check_text(file, text)


def check_text(file: str, text: str) -> None:
    if file.endswith(".sh"):
        subprocess.run(["bash", "-n"], input=text, text=True, check=True, capture_output=True)
    elif file.endswith(".py"):
        ast.parse(text)
    else:
        assert isinstance(yaml.safe_load(text), dict)


def test_random_candidates_are_accepted() -> None:
    for chosen in random_plans(25, seed=7):
        for target in TARGETS:
            for file, text in export(chosen, target).items():
                check_text(file, text)


@pytest.mark.parametrize("target", TARGETS)
def test_hostile_names_stay_words(target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file whose name breaks out of quotes, comments or strings is a name and nothing else; secrets never appear."""
    import dataclasses

    monkeypatch.setenv("WANDB_API_KEY", "s3cr3t-in-the-environment")
    evil = 'p"""\n\'; touch /tmp/owned; $(touch /tmp/owned) `id` {{ 7*7 }}.json'
    chosen = dataclasses.replace(golden_chosen("llama3-70b", tmp_path), source=evil)
    for file, text in export(chosen, target).items():
        assert "s3cr3t" not in text
        assert "49" not in text.split("\n")[2:4]
        if file.endswith(".py"):
            names = {node.func.id for node in ast.walk(ast.parse(text))
                     if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}  # fmt: skip
            assert "touch" not in names
        if file.endswith(".sh"):
            here = tmp_path / file
            here.write_text(text, encoding="utf-8")
            subprocess.run(["bash", "-eu", str(here)], check=True, cwd=tmp_path)
        check_text(file, text)
    assert not Path("/tmp/owned").exists()


def test_environment_is_what_a_shell_exports(tmp_path: Path) -> None:
    path = tmp_path / "environment.sh"
    path.write_text(export(golden_chosen("llama3-70b", tmp_path), "env")["environment.sh"], encoding="utf-8")
    seen = subprocess.run(["bash", "-euc", f"source {path}; env"], capture_output=True, text=True, check=True).stdout
    values = dict(line.split("=", 1) for line in seen.splitlines() if "=" in line)
    assert values["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
    assert values["NVTE_FWD_LAYERNORM_SM_MARGIN"] == values["NVTE_BWD_LAYERNORM_SM_MARGIN"] == "20"
    assert values["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    assert values["NCCL_GRAPH_REGISTER"] == "0"


def test_command_line_prints_and_writes(cli: Callable[..., Ran], tmp_path: Path) -> None:
    plan = str(golden_plan("llama3-70b", tmp_path))
    ran = cli("export", plan, "--to", "megatron-lm")
    assert (ran.code, ran.out.startswith("#!/usr/bin/env bash")) == (0, True)
    assert "tp_comm_overlap.yaml" in ran.err
    ran = cli("export", plan, "--to", "megatron-lm", "--out", str(tmp_path / "made"))
    assert ran.code == 0
    assert {path.name for path in (tmp_path / "made").iterdir()} == {"megatron_args.sh", "tp_comm_overlap.yaml"}


BAD: dict[str, Any] = {
    "empty": "",
    "no-json": "{",
    "list": "[]",
    "other": '{"request": {}}',
    "binary": "\x00\x01",
    "nothing-fits": {"candidates": []},
    "newer": {"schema_version": 99},
    "layout-gone": {"candidate": {"rank": 1}},
}


@pytest.mark.parametrize("name", BAD)
def test_bad_plans_are_one_error(name: str, cli: Callable[..., Ran], tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    content = BAD[name]
    if isinstance(content, dict):
        whole = json.loads(golden_plan("llama3-70b", tmp_path).read_text())
        content = json.dumps({**whole, **content})
    path.write_text(content, encoding="utf-8")
    ran = cli("export", str(path), "--to", "bridge")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("error:")
    assert "Traceback" not in ran.err


@pytest.mark.parametrize(
    "words",
    [
        ["--to", "nemo"],
        ["--to", "bridge", "--target-version", "0.9"],
        ["--to", "megatron-lm", "--target-version", "0.6"],
        ["--to", "bridge", "--candidate", "7"],
        ["--to", "bridge", "--candidate", "0"],
        ["--to", "bridge", "--out", "/proc/nowhere"],
    ],
)
def test_bad_words_are_one_error(words: list[str], cli: Callable[..., Ran], tmp_path: Path) -> None:
    ran = cli("export", str(golden_plan("llama3-70b", tmp_path)), *words)
    assert ran.code == 2
    assert ran.err.startswith("error:")


def test_missing_file(cli: Callable[..., Ran]) -> None:
    ran = cli("export", "/nowhere/plan.json", "--to", "env")
    assert (ran.code, ran.err.startswith("error: cannot read")) == (2, True)


def test_full_version_counts_as_its_series(tmp_path: Path) -> None:
    chosen = golden_chosen("llama3-70b", tmp_path)
    assert export(chosen, "bridge", "0.3.1") == export(chosen, "bridge", "v0.3")
    with pytest.raises(InputError, match="not known"):
        export(chosen, "bridge", "latest")


def test_a_plan_of_memory_is_not_exported(tmp_path: Path) -> None:
    import dataclasses

    chosen = read_plan(golden_plan("llama3-70b", tmp_path))
    workload = dataclasses.replace(chosen.workload, mode="weights")
    with pytest.raises(InputError, match="not training"):
        export(dataclasses.replace(chosen, request=chosen.request.replaced(workload=workload)), "env")


def test_every_field_exists_in_the_target_version(tmp_path: Path) -> None:
    """Names written for Bridge 0.3 and 0.6 are fields of its classes (read off both wheels)."""
    from advisor import data
    from advisor.export.bridge_values import comm_overlap, precision, sections
    from advisor.export.subject import subject

    path = data.find("presets", "check/bridge_fields.json")
    assert path is not None
    known = json.loads(path.read_text(encoding="utf-8"))["sections"]
    for chosen in [*(golden_chosen(name, tmp_path) for name in GOLDEN), *random_plans(20, seed=5)]:
        for version in ("0.3", "0.6"):
            made = subject(chosen, "bridge", version)
            names = [name for _, values in sections(made) for name, _ in values]
            names += [f"comm_overlap.{name}" for name in comm_overlap(made)]
            names += [f"mixed_precision.{name}" for name, _ in precision(made)[1]]
            for name in names:
                section, _, field = name.partition(".")
                if (name, version) == ("dataset.sequence_length", "0.3"):
                    continue  # of the class of megatron-core that Bridge's dataset configuration inherits from
                assert known[section][field].get("only", version) == version, (name, version)
