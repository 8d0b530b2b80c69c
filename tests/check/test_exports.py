"""What the exporters write is read again by the linter as what it is, and holds nothing that stops a job or is lost."""

from __future__ import annotations

import pytest

from advisor.check import check
from advisor.check.files import read_file
from advisor.configure.chosen import read_plan
from advisor.export.subject import versions
from advisor.export.targets import export
from tests.configure.plans import plan_file
from tests.export.plans import GOLDEN, golden_plan

KINDS = {"bridge": "bridge-python", "bridge-overrides": "bridge-overrides", "megatron-lm": "megatron-args",
         "yaml": "bridge-config"}  # fmt: skip
FORMS = [(target, version) for target in KINDS for version in versions(target)]
SMALL = {"m2": {}, "dense": {}, "graph": {"recompute": "full"}, "fsdp": {}}


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plans")
    return {name: golden_plan(name, folder) for name in GOLDEN} | {
        name: plan_file(folder, name, **changes) for name, changes in SMALL.items()
    }


@pytest.mark.parametrize("name", [*GOLDEN, *SMALL])
@pytest.mark.parametrize(("target", "version"), FORMS, ids=[" ".join(form) for form in FORMS])
def test_an_export_is_clean(name, target, version, plans, tmp_path):
    chosen = read_plan(plans[name])
    main, text = next(iter(export(chosen, target, version).items()))
    path = tmp_path / main
    path.write_text(text, encoding="utf-8")
    assert read_file(path).kind == KINDS[target]
    framework = "megatron-lm" if target == "megatron-lm" else "bridge"
    for release in (version, None):
        found = check([path], target=framework, version=release, gpus=chosen.layout.gpus, system="dgx-h100")
        wrong = [(one.rule, one.message) for one in found.findings if one.severity in ("stop", "silent")]
        assert not wrong or (release is None and all("[" in said for _, said in wrong))


@pytest.mark.parametrize("style", ["srun", "torchrun", "ft_launcher"])
def test_a_launch_script_is_clean_and_its_ranks_are_counted(style, plans, tmp_path, cli):
    path = tmp_path / "job.sbatch"
    path.write_text(cli("launch", str(plans["m2"]), "--style", style, "--dry-run", "-q").out, encoding="utf-8")
    assert read_file(path).gpus == 64
    found = check([path], gpus=64, system="dgx-h100").findings
    assert not [(one.rule, one.message) for one in found if one.severity in ("stop", "silent")]


def test_torchrun_on_several_nodes_without_a_node_rank_is_still_seen(plans, tmp_path, cli):
    text = cli("launch", str(plans["m2"]), "--style", "torchrun", "--dry-run", "-q").out
    path = tmp_path / "job.sbatch"
    path.write_text(text.replace('--node_rank="$SLURM_NODEID"', ""), encoding="utf-8")
    assert "torchrun-needs-node-rank" in {one.rule for one in check([path], gpus=64).findings}
