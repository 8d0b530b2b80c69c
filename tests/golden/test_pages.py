"""Pages of real answers as reviewable text: a change of any prediction or word shows as a diff (`make docs`)."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from advisor.cli.render import WIDTH

M2 = "--model minimax-m2 --gpus 64"
PAGES = {
    "plan.txt": (f"plan {M2}", 0),
    "plan.md": (f"plan {M2} --top 2 --format md", 0),
    "plan_allow.txt": (f"plan {M2} --allow grad-bf16,moment-bf16 --top 3", 0),
    "plan_fix.txt": ("plan --model llama3-70b --gpus 64 --system h200 --fix tp=4,mbs=1 --top 3 --verbose", 0),
    "plan_nothing_fits.txt": ("plan --model deepseek-v3 --gpus 8", 1),
    "plan_auto.txt": ("plan --model qwen3-8b --gpus auto --top 2", 0),
    "scaling.txt": ("plan --model llama3-8b --gpus 8,16,...,64", 0),
    "estimate_fits.txt": ("estimate --model qwen3-8b --gpus 8 --tp 2 --gbs 64 --verbose", 0),
    "estimate_oom.txt": (f"estimate {M2} --tp 2 --ep 32", 1),
    "estimate_illegal.txt": (f"estimate {M2} --tp 5 --ep 32", 1),
    "estimate_inference.txt": ("estimate --model minimax-m2 --gpus 16 --tp 1 --ep 16 --mode inference", 0),
    "why_oom.txt": (f"why {M2} --tp 8 --pp 1", 1),
    "why_illegal.txt": (f"why {M2} --tp 8 --pp 1 --vpp 2 --ep 3", 1),
    "models_show.txt": ("models show deepseek-v3", 0),
    "systems_show.txt": ("systems show h100", 0),
    "systems_list.txt": ("systems list", 0),
}


@pytest.mark.parametrize("name", PAGES)
def test_page(cli, golden, name):
    command, code = PAGES[name]
    ran = cli(*shlex.split(command))
    assert ran.code == code, ran.err
    golden(name, f"$ advisor {command}\n{ran.out}{ran.err}")
    assert "nan" not in re.findall(r"\w+", ran.out.lower())
    if name.endswith(".txt"):
        assert max(map(len, ran.out.splitlines())) <= WIDTH


def test_the_suggested_command_can_be_pasted(cli):
    first = cli(*shlex.split(f"plan {M2}"))
    command = first.err.removeprefix("next: ").strip()
    assert command.startswith("advisor ")
    ran = cli(*shlex.split(command)[1:], "--format", "json")
    assert ran.code in {0, 1}
    assert json.loads(ran.out)["candidate"]["layout"]["gbs"] > 0


@pytest.mark.parametrize(
    ("asked", "suggested"),
    [
        (
            "--gpus 8 --fix pp=3 --headroom 4GiB --allow grad-bf16",
            "--gpus auto --fix pp=3 --headroom 4GiB --allow grad-bf16",
        ),
        ("--gpus 8,16 --system h200 --gbs fixed --top 1", "--gpus 16 --system dgx-h200 --top 1 --gbs 128"),
        ("--gpus 8,16 --gbs 256", "--gpus 16 --gbs 512"),
    ],
)
def test_the_suggested_plan_is_of_the_same_job(cli, asked, suggested):
    said = cli(*shlex.split(f"plan --model llama3-8b {asked}")).err.splitlines()[0]
    words, wanted = (shlex.split(text) for text in (said, f"next: advisor plan --model llama3-8b {suggested}"))
    assert sorted(words) == sorted(wanted)


@pytest.mark.parametrize(
    ("job", "over"),
    [
        ("llama3-70b --gpus 64 --precision mxfp8 --system gb300 --seq-len 8192", True),
        ("llama3-70b --gpus 64 --precision fp8 --system gb200", False),  # 40 of its layers wait in host memory
        ("llama3-70b --gpus 64 --precision fp8 --system h100", False),
    ],
)
def test_a_vendor_recipe_over_the_budget_says_so(cli, job, over):
    said = cli(*shlex.split(f"plan --top 1 --model {job}"))
    _, _, about = said.out.partition("\nvendor: ")
    assert about.startswith("llama3_70b_pretrain_64gpu_")
    assert ("predicted to be over the budget" in " ".join(about[:300].split())) == over


def test_serving_that_does_not_fit_suggests_no_why(cli):
    ran = cli(*shlex.split("estimate --model minimax-m2 --gpus 8 --tp 2 --ep 4 --mode inference --context 4096"))
    assert (ran.code, ran.err) == (1, "")


def test_a_layout_that_fits_is_compared_with_the_best_alone(cli):
    page = cli(*shlex.split("why --model llama3-70b --gpus 64 --tp 4 --pp 4"))
    lines = page.out.splitlines()
    first = {line.split()[0] for line in lines if line}
    assert {"asked", "best"} <= first
    assert "nearest" not in first
    turned = [line.split() for line in lines[lines.index("one change at a time, best first") :]]
    assert "etp" not in {words[0] for words in turned}
    assert {words[0] for words in turned} >= {"tp_overlap", "moment_dtype"}
    assert "--tp 8" in page.err


def test_a_model_from_megatron_arguments_is_in_no_suggested_command(cli):
    script = Path(__file__).parent.parent / "spec" / "data" / "train_llama3.sh"
    ran = cli("estimate", "--megatron-args", str(script), "--gpus", "8", "--usable-gib", "20")
    assert (ran.code, ran.err) == (1, "")


def test_formats_show_the_same_numbers(cli):
    command = ("plan", "--model", "qwen3-8b", "--gpus", "8")
    record = json.loads(cli(*command, "--format", "json").out)
    table = cli(*command).out
    best = record["candidates"][0]
    assert f"{best['memory']['peak_device_gib']:.3g}" in table
    assert f"TP{best['layout']['tp']} PP{best['layout']['pp']}" in table
    rows = cli(*command, "--format", "csv").out.splitlines()
    assert len(rows) == len(record["candidates"]) + 1


def test_out_and_stdout_agree(cli, tmp_path):
    path = tmp_path / "plan.json"
    command = ("plan", "--model", "qwen3-8b", "--gpus", "8", "--format", "json")
    assert cli(*command, "--out", str(path)).out == path.read_text()


def test_variables_are_named_as_origins(cli, monkeypatch):
    monkeypatch.setenv("ADVISOR_SYSTEM", "h200")
    request = json.loads(cli("plan", "--model", "qwen3-8b", "--gpus", "8", "--format", "json").out)["request"]
    assert request["origins"]["system"] == "ADVISOR_SYSTEM"
    assert request["origins"]["model"] == "flag"
    assert request["origins"]["gbs"] == "default"
