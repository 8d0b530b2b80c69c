"""A launched program is handed the whole plan: as overrides, as flags, or as a script that the job brings along."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from advisor.configure.chosen import read_plan
from advisor.configure.conflicts import Wishes
from advisor.configure.launch import Wanted, launch
from advisor.configure.resiliency import resiliency
from advisor.export.launched import with_plan
from advisor.export.megatron import flag_groups
from advisor.export.model_fields import model_facts
from advisor.export.overrides import overrides
from advisor.export.resiliency import bridge_overrides
from advisor.export.slurm import script_text
from advisor.export.slurm.render import end_of
from advisor.export.subject import subject
from advisor.export.targets import export
from tests.configure.plans import plan_file
from tests.configure.shell import call, played


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plans")
    return {name: plan_file(folder, name) for name in ("m2", "dense", "gb200")}


@pytest.fixture(scope="module")
def chosen(plans):
    return {name: read_plan(path) for name, path in plans.items()}


def with_plan_of(chosen, entry, *command, generated=False, **wanted):
    """A job without container that is handed its plan."""
    found = resiliency(chosen, Wishes(launcher=wanted.get("style", "srun")))
    made = launch(chosen, Wanted(command=command, uv=False, **wanted), found)
    return with_plan(made, found, entry, generated=generated)


def test_a_recipe_gets_the_whole_plan_as_overrides(chosen, tmp_path):
    job = with_plan_of(chosen["dense"], "bridge", "run_recipe.py", "train.train_iters=5")
    ran, calls = played(script_text(job), tmp_path)
    assert (ran.returncode, ran.stderr) == (0, "")
    words, _, environment = call(calls, "python")
    assert words[:4] == ["run_recipe.py", "train.train_iters=5", "--recipe", "qwen3_8b_pretrain_config"]
    made = subject(chosen["dense"], "bridge-overrides", "0.6")
    exported = [word for _, group in overrides(made) for word in group]
    assert words[4 : 4 + len(exported)] == exported
    assert set(words[4 + len(exported) :]) == set(
        bridge_overrides(resiliency(chosen["dense"], Wishes(launcher="srun")))
    )
    assert {one.name: one.value for one in made.environment}.items() <= {
        one.name: one.value for one in job.environment
    }.items()
    assert environment["RANK"] == "3"


def test_pretrain_gets_the_whole_plan_as_flags(chosen, tmp_path):
    job = with_plan_of(chosen["m2"], "megatron-lm", "pretrain_gpt.py", "--data-path", "x", style="torchrun")
    _, calls = played(script_text(job), tmp_path)
    words = call(calls, "python")[0]
    words = words[words.index("pretrain_gpt.py") :]
    made = subject(chosen["m2"], "megatron-lm", "0.19")
    facts = model_facts(made.model, "minimax-m2")
    exported = [word for _, flags in flag_groups(made, facts) for flag in flags for word in flag]
    assert words[:3] == ["pretrain_gpt.py", "--data-path", "x"]
    assert words[3 : 3 + len(exported)] == exported
    assert words[-2] == "--exit-duration-in-mins"
    assert {"--save", "--async-save"} <= set(words[3 + len(exported) :])


@pytest.mark.parametrize("style", ["srun", "torchrun", "ft_launcher"])
def test_without_a_program_the_job_brings_its_own(chosen, tmp_path, style):
    workdir = tmp_path / "work me's $dir"
    workdir.mkdir()
    job = with_plan_of(
        chosen["m2"], "bridge", "bridge_config.py", "-v", generated=True, style=style, workdir=str(workdir)
    )
    ran, calls = played(script_text(job), tmp_path / "stubs")
    assert ran.returncode == 0, ran.stderr
    words, _, _ = call(calls, "ft_launcher" if style == "ft_launcher" else "python")
    path = Path(words[-2])
    assert (path.parent.parent, words[-1]) == (workdir / ".advisor", "-v")
    text = path.read_text()
    compile(text, "bridge_config.py", "exec")
    assert [one.name for one in path.parent.iterdir()] == ["bridge_config.py"]
    exported = export(chosen["m2"], "bridge", "0.6")["bridge_config.py"]
    head, tail = exported.split("    return cfg\n", 1)
    assert text.startswith(head)
    assert text.endswith(tail)
    more = text.removeprefix(head).removesuffix(tail)
    assert "cfg.checkpoint.save = " in more
    assert ("cfg.train.exit_duration_in_mins = " in more) == (style == "torchrun")
    assert ("FaultToleranceConfig(" in more) == (style == "ft_launcher")


def test_user_buffers_of_megatron_lm_travel_with_the_job(chosen, tmp_path):
    candidate = chosen["gb200"].candidate
    overlapping = dataclasses.replace(candidate, knobs=dataclasses.replace(candidate.knobs, tp_overlap=True))
    job = with_plan_of(
        dataclasses.replace(chosen["gb200"], candidate=overlapping), "megatron-lm", "pretrain_gpt.py",
        workdir=str(tmp_path),
    )  # fmt: skip
    _, calls = played(script_text(job), tmp_path / "stubs")
    words = call(calls, "python")[0]
    path = Path(words[words.index("--tp-comm-overlap-cfg") + 1])
    assert path.parent.parent == tmp_path / ".advisor"
    assert "qkv_fprop" in yaml.safe_load(path.read_text())


def test_a_program_of_its_own_is_handed_nothing_and_told_so(cli, plans):
    ran = cli("launch", str(plans["dense"]), "--shared", "/s", "--", "./mine.sh")
    assert ran.code == 0
    assert "tensor_model_parallel_size" not in ran.out
    assert "./mine.sh is handed nothing of the plan" in ran.err


def test_a_recipe_that_bridge_does_not_have_is_refused(cli, plans):
    ran = cli("launch", str(plans["m2"]), "--shared", "/s", "--", "scripts/training/run_recipe.py")
    assert ran.code == 2
    assert "no recipe for minimax-m2" in ran.err


@given(st.lists(st.sampled_from(["END_OF_FILE", "END_OF_FILE_", "x", "", "END_OF_FILE__"]), max_size=5))
def test_the_end_of_a_file_is_no_line_of_it(lines):
    text = "\n".join(lines) + "\n"
    assert end_of(text) not in text.splitlines()
