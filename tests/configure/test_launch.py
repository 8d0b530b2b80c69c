"""Slurm scripts: what stands in them, what a shell makes of them, and what can never get into them."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import re
import subprocess

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from advisor.configure.chosen import read_plan
from advisor.configure.conflicts import Wishes
from advisor.configure.launch import Wanted, fewest_gpus, launch, parse_time
from advisor.configure.mounts import Mount, outside_path, parse_mounts
from advisor.configure.resiliency import resiliency
from advisor.errors import InputError
from advisor.export.slurm import interactive_text, script_text, submit
from advisor.export.slurm.render import clock, directive_word
from tests.configure.plans import plan_file
from tests.configure.shell import call, played

GOLDEN = {
    "srun": ("m2", "--style srun --container nvcr.io/nvidia/nemo:25.09 --mounts /lustre/me:/work"
             " --account team --partition batch --checkpoint-dir /work/checkpoints --secret HF_TOKEN --fresh"),
    "torchrun": ("m2", "--style torchrun --container nvcr.io/nvidia/nemo:25.09 --mounts /lustre/me:/work"
                 " --checkpoint-dir /work/checkpoints --secret WANDB_API_KEY --time 1d"
                 " -- pretrain_gpt.py --num-layers 62"),
    "ft_launcher": ("m2", "--style ft_launcher --shared /lustre/me --spare-nodes 1 --checkpoint-dir /lustre/me/ckpt"),
    "in_process": ("m2", "--style srun --in-process-restart --shared /lustre/me --spare-nodes 1 --entry bridge"
                   " -- my_train.py"),
    "gb200": ("gb200", "--style srun --container nvcr.io/nvidia/nemo:25.09 --mounts /lustre/me:/work"
              " -- scripts/training/run_recipe.py"),
    "interactive": ("m2", "--interactive --container nvcr.io/nvidia/nemo:25.09 --mounts /lustre/me:/work --account team"
                    " --secret HF_TOKEN --numa"),
}  # fmt: skip


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plans")
    return {name: plan_file(folder, name) for name in ("m2", "dense", "small", "gb200")}


@pytest.fixture(scope="module")
def chosen(plans):
    return {name: read_plan(path) for name, path in plans.items()}


def job_of(chosen, wanted, **wishes):
    """The job of `wanted` with settings that suit its style."""
    return launch(chosen, wanted, resiliency(chosen, Wishes(launcher=wanted.style, **wishes)))


def unpredicted(text):
    """A script without the numbers that move with every prediction."""
    text = re.sub(r"(B:USR1@|warns this script |save_interval=|--save-interval\n  )\d+", r"\1N", text)
    text = re.sub(r"(setup|step|checkpointing):\d+", r"\1:N", text)
    text = re.sub(r"(?m)(?<=  # ).*$", lambda found: re.sub(r"\d+(\.\d+)?", "N", found[0]), text)
    text = re.sub(r"(save_interval = )\d+", r"\1N", text)
    text = re.sub(r"from \S*/(\w+\.json),", r"from \1,", text)
    text = re.sub(r"\.advisor/[0-9a-f]{12}", ".advisor/CONTENT", text)
    return re.sub(r"((?:minutes|mins|timeout|interval|_s|minutes\n )[=: ])\d+(\.\d+)?|(?<=SECONDS < )\d+", r"\1N", text)


@pytest.mark.parametrize("name", GOLDEN)
def test_script(cli, golden, plans, name):
    plan, words = GOLDEN[name]
    ran = cli("launch", str(plans[plan]), *words.split())
    assert ran.code == 0, ran.err
    golden(f"../launch/{name}.sh", unpredicted(ran.out))
    checked = subprocess.run(["bash", "-n"], input=ran.out, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.parametrize(
    ("tp", "pp", "cp", "ep", "etp", "fewest"),
    [(1, 1, 1, 1, 1, 1), (2, 4, 1, 1, 1, 8), (2, 2, 1, 32, 1, 64), (4, 2, 1, 8, 1, 16), (2, 1, 3, 4, 1, 12),
     (8, 16, 2, 64, 1, 1024), (4, 1, 1, 8, 2, 16)],
)  # fmt: skip
def test_the_fewest_gpus_are_pp_times_a_least_common_multiple(chosen, tp, pp, cp, ep, etp, fewest):
    layout = dataclasses.replace(chosen["m2"].layout, tp=tp, pp=pp, cp=cp, ep=ep, etp=etp)
    assert fewest_gpus(layout) == fewest


def test_a_world_that_holds_no_whole_model_is_refused(chosen):
    layout = dataclasses.replace(chosen["m2"].layout, ep=48)
    broken = dataclasses.replace(chosen["m2"], candidate=dataclasses.replace(chosen["m2"].candidate, layout=layout))
    with pytest.raises(InputError, match=r"64 GPUs are no multiple of .* = 96"):
        job_of(broken, Wanted())


@pytest.mark.parametrize(("style", "tasks"), [("srun", 8), ("torchrun", 1), ("ft_launcher", 1)])
def test_tasks_per_node(chosen, style, tasks):
    job = job_of(chosen["m2"], Wanted(style=style))
    assert (job.nodes, job.gpus_per_node, job.tasks_per_node) == (8, 8, tasks)
    assert f"#SBATCH --ntasks-per-node={tasks}\n" in script_text(job)


def test_racks_have_segments_and_two_ranks_per_numa_node(chosen):
    wanted = Wanted(container="x", mounts=("/l:/l",))
    job = job_of(chosen["gb200"], wanted)
    assert (job.nodes, job.gpus_per_node, job.segment, job.ranks_per_numa_node) == (32, 4, 16, 2)
    assert job_of(chosen["m2"], wanted).ranks_per_numa_node == 4
    assert job_of(chosen["m2"], wanted).segment == 0


def test_a_job_smaller_than_a_node_asks_for_its_gpus(chosen):
    job = job_of(chosen["small"], Wanted())
    assert (job.nodes, job.gpus_per_node, job.tasks_per_node) == (1, 2, 2)


def test_signals_go_where_they_are_survived(chosen):
    lines = {
        style: script_text(job_of(chosen["m2"], Wanted(style=style))) for style in ("srun", "torchrun", "ft_launcher")
    }
    assert re.search(r"#SBATCH --signal=B:USR1@\d+\n", lines["srun"])
    assert "scancel --signal=TERM" in lines["ft_launcher"]
    assert "--signal" not in lines["torchrun"]  # it would kill its workers 30 s later
    in_process = script_text(job_of(chosen["m2"], Wanted(), in_process=True))
    assert "--signal" not in in_process
    assert "--kill-on-bad-exit=0" in in_process


def test_the_warning_leaves_time_for_a_save(chosen):
    slow = resiliency(chosen["m2"], Wishes(launcher="srun"))
    assert slow.limits.preempt_lead_s > slow.met.cost.write_s + 2 * chosen["m2"].step.high_s
    with pytest.raises(InputError, match="no room to train"):
        launch(chosen["m2"], Wanted(time_s=600), slow)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("4h", 14400), ("90m", 5400), ("1d12h", 129600), ("30", 1800), ("1:30:00", 5400), ("2-00:00:00", 172800),
     ("1-12:30", 131400), ("10:30", 630), (" 4H ", 14400)],
)  # fmt: skip
def test_times(text, seconds):
    assert parse_time(text) == seconds


@pytest.mark.parametrize("text", ["", "4x", "h4", "-4h", "4.5h", "0", "10s", "1e9", "99999d", "1:2:3:4", "٤h"])
def test_no_times(text):
    with pytest.raises(InputError, match="time"):
        parse_time(text)


def test_clock():
    assert [clock(seconds) for seconds in (60, 14_400, 90_061)] == ["00:01:00", "04:00:00", "1-01:01:01"]


CONTAINER = {"container": "image", "mounts": ("/lustre/me:/work", "/data:/data:ro")}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"folders": {"HF_HOME": "/root/.cache"}}, "HF_HOME=/root/.cache is under no container mount"),
        ({"folders": {"UV_CACHE_DIR": "/workspace/uv"}}, "UV_CACHE_DIR=/workspace/uv is under no"),
        ({"folders": {"NEMO_HOME": "/data/nemo"}}, "read-only mount /data:/data:ro"),
        ({"folders": {"NEMO_HOME": "relative"}}, "not an absolute path"),
        ({"folders": {"NEMO_HOME": "/work/../root"}}, "not an absolute path"),
        ({"workdir": "/opt/code"}, "--workdir /opt/code is under no container mount"),
        ({"mounts": ()}, "has no shared folder"),
        ({"mounts": ("/tmp/me:/work",)}, "lies in /tmp"),
        ({"mounts": ("work",)}, "not SRC"),
        ({"mounts": ("/a:/b:ro:x",)}, "not SRC"),
        ({"mounts": ("/a:b",)}, "not SRC"),
        ({"log_dir": "logs"}, "not an absolute path"),
        ({"log_dir": "/l/%j"}, "patterns"),
        ({"name": "two\nlines"}, "line break"),
        ({"account": "a\x00b"}, "control character"),
        ({"command": ()}, "nothing to run"),
        ({"restarts": -1}, "negative"),
        ({"secrets": ("HF_TOKEN=abc",)}, "not its value"),
        ({"secrets": ("not a name",)}, "not the name"),
        ({"variables": {"MY_API_KEY": "x"}}, "MY_API_KEY is a secret by its name"),
        ({"variables": {"a b": "x"}}, "not the name of an environment variable"),
    ],
)
def test_what_cannot_work_is_refused(chosen, more, message):
    with pytest.raises(InputError, match=re.escape(message)):
        job_of(chosen["m2"], Wanted(**{**CONTAINER, **more}))


def test_folders_outside_a_container_may_be_anywhere_shared(chosen):
    job = job_of(chosen["m2"], Wanted(shared="/lustre/me"))
    assert job.folders == {"HF_HOME": "/lustre/me/hf_home", "UV_CACHE_DIR": "/lustre/me/uv_cache",
                           "NEMO_HOME": "/lustre/me/cache/nemo"}  # fmt: skip
    with pytest.raises(InputError, match="every node has for itself"):
        job_of(chosen["m2"], Wanted(shared="/dev/shm/me"))


def test_checkpoints_are_found_on_the_host(chosen):
    job = job_of(chosen["m2"], Wanted(**CONTAINER), checkpoint_dir="/work/ckpt")
    assert job.checkpoint_dir == "/lustre/me/ckpt"
    with pytest.raises(InputError, match="--checkpoint-dir=/ckpt is under no"):
        job_of(chosen["m2"], Wanted(**CONTAINER), checkpoint_dir="/ckpt")


def test_mounts():
    mounts = parse_mounts(["/a:/b,/c", "/d/:/b/inner:ro"])
    assert mounts == (Mount("/a", "/b"), Mount("/c", "/c"), Mount("/d", "/b/inner", "ro"))
    assert [outside_path(path, mounts) for path in ("/b/x", "/b/inner/x", "/c", "/bx")] == ["/a/x", "/d/x", "/c", "/bx"]


def test_srun_native_starts_the_program_itself(chosen, tmp_path):
    wanted = Wanted(command=("train.py", "--x", "1"), secrets=("HF_TOKEN",), uv=False)
    ran, calls = played(script_text(job_of(chosen["m2"], wanted)), tmp_path)
    assert (ran.returncode, ran.stderr) == (0, "")
    words, _, environment = call(calls, "python")
    assert words == ["train.py", "--x", "1"]
    assert environment["RANK"] == "3"
    assert environment["MASTER_ADDR"] == "node1"
    assert environment["MASTER_PORT"] == "20041"


def test_torchrun_gets_node_variables_of_the_task(chosen, tmp_path):
    wanted = Wanted(style="torchrun", command=("train.py", "--x"), uv=False)
    _, calls = played(script_text(job_of(chosen["m2"], wanted)), tmp_path)
    words, _, environment = call(calls, "python")
    assert words == ["-m", "torch.distributed.run", "--nproc_per_node=8", "--nnodes=2", "--node_rank=1",
                     "--master_addr=node1", "--master_port=20041", "train.py", "--x"]  # fmt: skip
    assert environment["RANK"] == "unset"


def test_ft_launcher_gets_sections_and_its_group_rank(chosen, tmp_path):
    wanted = Wanted(style="ft_launcher", command=("./run.sh",), uv=False)
    job = job_of(chosen["m2"], wanted)
    _, calls = played(script_text(job), tmp_path)
    words, _, environment = call(calls, "ft_launcher")
    assert f"--ft-rank_section_timeouts={job.sections}" in words
    assert words[-4:] == ["--nnodes=8", "--rdzv_id=41", "--rdzv_endpoint=node1:20041", "./run.sh"]
    assert "--no-python" in words
    assert environment["GROUP_RANK"] == "1"


def test_uv_syncs_once_before_all(chosen, tmp_path):
    wanted = Wanted(**{**CONTAINER, "mounts": (f"/lustre:{tmp_path}",)}, workdir=str(tmp_path), numa=True)
    _, calls = played(script_text(job_of(chosen["m2"], wanted)), tmp_path)
    names = [one[0] for one in calls]
    assert names == ["scontrol", "srun", "uv", "srun", "numactl"]
    first, _, _ = calls[1][1:]
    assert first[:3] == ["--nodes=1", "--ntasks=1", "--ntasks-per-node=1"]
    assert calls[2][1] == ["sync"]
    last, folder, _ = calls[4][1:]
    assert last == ["--cpunodebind=0", "--membind=0", "uv", "run", "python", "train.py"]
    assert folder == str(tmp_path)
    for flags in (calls[1][1], calls[3][1]):
        assert "--no-container-mount-home" in flags
        assert "--container-image=image" in flags
    assert "container" not in "".join(line for line in script_text(job_of(chosen["m2"], wanted)).splitlines(True)
                                      if line.startswith("#SBATCH"))  # fmt: skip


def test_a_missing_secret_stops_the_job_before_anything_runs(chosen, tmp_path):
    script = script_text(job_of(chosen["m2"], Wanted(secrets=("OTHER_TOKEN",))))
    ran, calls = played(script, tmp_path)
    assert ran.returncode != 0
    assert "export OTHER_TOKEN before sbatch" in ran.stderr
    assert calls == []


printable = st.characters(blacklist_categories=("Cs", "Cc"))
anything = st.text(
    alphabet=st.one_of(st.sampled_from(list(" '\"$`\\\n\t*?[]{}();&|<>!~#%=,:é")), printable), max_size=20
)
one_line = st.text(alphabet=st.one_of(st.sampled_from(list(" '\"$`\\*?[]{}();&|<>!~#=é")), printable), min_size=1,
                   max_size=20)  # fmt: skip


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    words=st.lists(anything, max_size=4), value=anything, name=one_line, folder=one_line,
    style=st.sampled_from(["srun", "torchrun", "ft_launcher"]),
)  # fmt: skip
def test_every_value_reaches_its_place_as_it_was(chosen, tmp_path, words, value, name, folder, style):
    assume(
        "/" not in folder and ".." not in folder and ":" not in folder and "," not in folder and "\x00" not in folder
    )
    assume(not any("\x00" in one for one in (*words, value, name)))
    shared = f"/lustre/{folder}"
    wanted = Wanted(
        style=style, command=("train.py", *words), variables={"ODD": value}, name=name, account=name, container=name,
        mounts=(f"{shared}:{shared}",), workdir=shared, log_dir="/lustre", uv=False, numa=False,
    )  # fmt: skip
    script = script_text(job_of(chosen["dense"], wanted)).replace('cd -- "$1"', ":")
    ran, calls = played(script, tmp_path / "stubs")
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    program = {"srun": "python", "torchrun": "python", "ft_launcher": "ft_launcher"}[style]
    found, _, environment = call(calls, program)
    assert found[len(found) - len(words) :] == words
    assert environment["ODD"] == value
    assert environment["HF_HOME"] == f"{shared}/hf_home"
    flags, _, _ = call(calls, "srun")
    assert f"--container-image={name}" in flags
    assert f"--container-mounts={shared}:{shared}" in flags
    (line,) = [line for line in script.splitlines() if line.startswith("#SBATCH --job-name=")]
    assert sbatch_reads(line.removeprefix("#SBATCH --job-name=")) == name


def sbatch_reads(text: str) -> str:
    """A word of an #SBATCH line as sbatch's parser takes it (src/sbatch/opt.c, _get_next_opt)."""
    found, quote, escaped = [], "", False
    for letter in text:
        if escaped:
            found.append(letter)
            escaped = False
        elif letter == "\\":
            escaped = True
        elif quote:
            if letter == quote:
                quote = ""
            else:
                found.append(letter)
        elif letter in "'\"":
            quote = letter
        else:
            assert letter != "#", "a comment begins"
            assert not letter.isspace(), "the word ends"
            found.append(letter)
    assert not quote
    return "".join(found)


@given(one_line)
def test_directive_words(text):
    assert sbatch_reads(directive_word(text)) == text


TOKENS = [
    "hf_AbCdEfGhIjKlMnOpQrStUvWxYz012345", "ghp_16C7e42F292c6912E7710c838347Ae178B4a", "github_pat_11AAAAAAA0abcdefgh",
    "glpat-abcdEFGH1234ijkl", "sk-proj-abcdefghijklmnop1234", "nvapi-abcdefghijklmnopqrst", "AKIAIOSFODNN7EXAMPLE",
    "AIzaSyA1234567890abcdefghijklmnopqrstuv", "xoxb-123456789012-abcdefghijkl",
    "0123456789abcdef0123456789abcdef01234567",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0", "https://user:hunter2@host/x", "Bearer abcdefgh12345678",
    "--api-key=abcd1234efgh5678ijkl", "WANDB_API_KEY=abcd1234efgh5678ijkl", "token: abcd1234efgh5678ijkl",
]  # fmt: skip
PLACES = ["command", "variables", "container", "mounts", "name", "account", "workdir", "shared", "folders", "log_dir"]


@pytest.mark.parametrize(("token", "place"), list(itertools.product(TOKENS, PLACES)))
def test_no_token_reaches_a_script(chosen, token, place):
    safe = token.replace(":", "_").replace(" ", "_") if place in {"mounts"} else token
    values = {
        "command": ("train.py", "--x", token), "variables": {"HARMLESS": token}, "container": token,
        "mounts": (f"/lustre/{safe}:/lustre",), "name": token, "account": token, "workdir": f"/lustre/{token}",
        "shared": f"/lustre/{token}", "folders": {"HF_HOME": f"/lustre/{token}"}, "log_dir": f"/lustre/{token}",
    }  # fmt: skip
    wanted = Wanted(**{"mounts": ("/lustre:/lustre",), "container": "image", **{place: values[place]}})
    if safe != token:
        return  # a colon ends the path of a mount: the token is not whole there
    for text in (script_text,) if place == "log_dir" else (script_text, interactive_text):
        with pytest.raises(InputError, match="looks like a") as refused:
            text(job_of(chosen["m2"], wanted))
        assert token not in str(refused.value)


@pytest.mark.parametrize(
    "text",
    ["TOKENIZERS_PARALLELISM=False", "--tokenizer-type NullTokenizer", "--max-tokens 4096", "token_dispatcher=alltoall",
     "nvcr.io/x@sha256:" + "a" * 64, "git+https://github.com/a/b@" + "a1" * 20, "--key value", "${HF_TOKEN}",
     "--tokenizer-model /lustre/models/llama-3.1-405b-instruct", "moe_token_dispatcher_type=flex"],
)  # fmt: skip
def test_what_only_sounds_like_a_secret_passes(chosen, text):
    assert text in script_text(job_of(chosen["m2"], Wanted(command=("train.py", text)))).replace("'", "")


def test_submit_without_slurm(tmp_path, monkeypatch):
    from advisor.errors import EnvironmentMissingError

    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentMissingError, match="sbatch is not on this host"):
        submit(tmp_path / "job.sbatch")


@pytest.mark.parametrize(
    ("body", "code", "found"),
    [("echo 4711", 0, "4711"), ("echo '4711;cluster'", 0, "4711"), ("echo oops; exit 1", 1, "oops"),
     ("echo Invalid account >&2; exit 1", 1, "sacctmgr"), ("echo no number", 1, "no number")],
)  # fmt: skip
def test_submit_reads_the_job_id(cli, plans, tmp_path, monkeypatch, body, code, found):
    fake = tmp_path / "sbatch"
    fake.write_text(f'#!/bin/sh\n[ "$1" = --parsable ] || exit 9\n{body}\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    ran = cli("launch", str(plans["m2"]), "--submit")
    assert ran.code == code
    assert found in (ran.out if code == 0 else ran.err)
    assert (tmp_path / "minimax-m2-64.sbatch").exists()


def test_a_dry_run_leaves_nothing(cli, plans, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ran = cli("launch", str(plans["m2"]), "--submit", "--dry-run", "--out", "x.sbatch")
    assert ran.code == 0
    assert ran.out.startswith("#!/usr/bin/env bash\n")
    assert list(tmp_path.iterdir()) == []


def test_json(cli, plans):
    ran = cli("launch", str(plans["m2"]), "--format", "json", "--style", "ft_launcher", "--spare-nodes", "2")
    found = json.loads(ran.out)
    assert (found["nodes"], found["spare_nodes"], found["gpus_per_node"], found["tasks_per_node"]) == (8, 2, 8, 1)
    assert "#SBATCH --nodes=10\n" in found["script"]


@pytest.mark.parametrize(
    ("words", "message"),
    [("--interactive --submit", "cannot be submitted"), ("--env X", "has no value"), ("--to pbs", "pbs"),
     ("--style mpirun", "mpirun"), ("--out /nowhere/x.sbatch", "does not exist"), ("--candidate 7", "no rank 7")],
)  # fmt: skip
def test_bad_words(cli, plans, words, message):
    ran = cli("launch", str(plans["m2"]), *words.split())
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err


@pytest.mark.parametrize(
    ("content", "message"),
    [("", "not JSON"), ("[]", "neither a plan nor an estimate"), ("{}", "neither a plan nor an estimate"),
     ('{"schema_version": 1, "request": {}}', "holds no layout"),
     ('{"schema_version": 1, "request": {}, "candidates": [{}]}', "its layout 1 has no layout"),
     ('{"schema_version": 1, "request": {}, "candidates": [{"layout": {}, "knobs": {}, "memory": {}}]}',
      "model is missing"),
     ('{"schema_version": 1, "request": {"model": "nope", "gpus": 8}, "candidates": [{"layout": {}, "knobs": {},'
      ' "memory": {}}]}', "nope")],
)  # fmt: skip
def test_bad_plans(cli, tmp_path, content, message):
    path = tmp_path / "plan.json"
    path.write_text(content)
    for verb, more in (("launch", []), ("resiliency", []), ("goodput", ["--tokens", "1T"])):
        ran = cli(verb, str(path), *more)
        assert (ran.code, ran.out) == (2, ""), ran.err
        assert message in ran.err
