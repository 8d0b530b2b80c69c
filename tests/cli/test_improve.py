"""`advisor improve` as a user calls it: on real configurations, on recipes of the vendor, and on rubbish."""

from __future__ import annotations

import json
import random
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
import referencing
import yaml

from advisor import data
from advisor.check.subject import read_subject
from advisor.check.subject.edits import edits
from advisor.check.subject.refused import refused
from advisor.check.subject.rewrite import rewritten
from advisor.errors import AdvisorError
from advisor.rules import findings
from advisor.search.baseline import recipe_choice, recipes
from advisor.search.improve_turns import turns
from advisor.search.single import SIZES, judge

HERE = Path(__file__).parent / "data" / "improve"
CASES = {
    one["id"]: one for one in yaml.safe_load((Path(__file__).parents[1] / "check" / "data" / "cases.yaml").read_text())
}
SYSTEMS = {"h100-sxm-80gb": "dgx-h100", "b200-sxm-180gb": "dgx-b200", "b300-sxm-270gb": "dgx-b300",
           "gb200-186gb": "gb200-nvl72", "gb300-279gb": "gb300-nvl72", "vr200-288gb": "vr200-nvl72"}  # fmt: skip
OWN = {
    "moe.sh": (
        "16",
        "#!/bin/bash\nEXPERTS='--num-experts 8 --moe-ffn-hidden-size 1536 --moe-router-topk 2 --moe-grouped-gemm'\n"
        "torchrun --nnodes 2 --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 2048"
        " --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1"
        " --global-batch-size 64 --bf16 --swiglu --disable-bias-linear --vocab-size 32000 $EXPERTS"
        " --moe-token-dispatcher-type alltoall --expert-model-parallel-size 4 --use-distributed-optimizer\n",
    ),
    "layout": ("64", "--model llama3-8b --gpus 64 --tp 2 --pp 2 --gbs 512 --seq-len 4096 --mbs 1 --recompute full\n"),
    "experts": ("64", "--model minimax-m2 --tp 2 --ep 32 --pp 2 --gbs 512 --seq-len 4096 --dispatcher deepep\n"),
    "overrides": ("64", "--recipe qwen3_30b_a3b_pretrain_config\nmodel.tensor_model_parallel_size=2\n"
                  "model.sequence_parallel=true\nmodel.expert_model_parallel_size=8\ntrain.global_batch_size=512\n"
                  "train.micro_batch_size=1\ncomm_overlap.tp_comm_overlap=false\n"),
    "config.yaml": ("64", "model:\n  num_layers: 32\n  hidden_size: 4096\n  num_attention_heads: 32\n"
                    "  num_query_groups: 8\n  seq_length: 4096\n  vocab_size: 128256\n  gated_linear_unit: true\n"
                    "  tensor_model_parallel_size: 2\n  sequence_parallel: true\n"
                    "train:\n  micro_batch_size: 1\n  global_batch_size: 256\n"
                    "ddp:\n  use_distributed_optimizer: true\n  overlap_grad_reduce: true\n"
                    "mixed_precision: bf16_mixed\n"),
    "args.yaml": ("16", "MODEL_ARGS:\n  --num-layers: 32\n  --hidden-size: 4096\n  --num-attention-heads: 32\n"
                  "  --seq-length: 4096\n  --max-position-embeddings: 4096\n  --micro-batch-size: 1\n"
                  "  --global-batch-size: 64\n  --bf16: true\n  --swiglu: true\n  --vocab-size: 32000\n"
                  "  --tensor-model-parallel-size: 2\n  --use-distributed-optimizer: true\n"
                  "  --recompute-granularity: selective\n  --recompute-modules: [layernorm, mlp]\n"),
}  # fmt: skip


@pytest.fixture
def script(tmp_path, monkeypatch):
    """The launch script of these tests, in a folder of its own that is the current one."""
    for name in ("llama.sh", "llama.log"):
        shutil.copy(HERE / name, tmp_path)
    monkeypatch.chdir(tmp_path)
    return "llama.sh"


def answer_of(ran):
    return json.loads(ran.out)


def validator():
    names = {name: json.loads(data.require("presets", f"schemas/{name}").read_text(encoding="utf-8"))
             for name in ("improve.schema.json", "estimate.schema.json", "overlap.schema.json")}  # fmt: skip
    kinds = [(name, referencing.Resource.from_contents(one)) for name, one in names.items()]
    return jsonschema.Draft202012Validator(
        names["improve.schema.json"], registry=referencing.Registry().with_resources(kinds)
    )


def written_case(folder, name):
    """A case or one of our own inputs as a file, with the options that say the rest."""
    if name in OWN:
        gpus, text = OWN[name]
        path = folder / (name if "." in name else f"{name}.txt")
        options = {"gpus": gpus, "system": "dgx-h100"}
    else:
        case = CASES[name]
        path, text = folder / case["name"], case["file"]
        options = {"gpus": str(case["gpus"]), "system": case["system"]}
    path.write_text(text, encoding="utf-8")
    return path, options


def test_the_page(cli, golden, script):
    ran = cli("improve", script, "--system", "dgx-h100", "--log", "llama.log")
    assert ran.code == 1
    golden("improve.txt", f"$ advisor improve {script} --system dgx-h100 --log llama.log\n{ran.out}{ran.err}")


def test_the_record_follows_its_schema(cli, script):
    jsonschema.Draft202012Validator.check_schema(
        json.loads(data.require("presets", "schemas/improve.schema.json").read_text())
    )
    for words in ((script, "--log", "llama.log"), (script,)):
        ran = cli("improve", *words, "--system", "dgx-h100", "--format", "json")
        assert ran.code == 1
        record = answer_of(ran)
        validator().validate(record)
        assert (record["measured"] is None) == ("--log" not in words)
    numbers = [one["number"] for one in (*record["kept"], *record["changed"], record["pair"])]
    assert numbers == list(range(1, len(numbers) + 1))
    assert record["kept"][0]["dials"][0]["name"] == "recompute"
    (lost,) = [one for one in record["fields"] if one["outcome"] == "silent"]
    assert (lost["field"], lost["requested"], lost["effective"]) == ("model.overlap_p2p_comm", True, False)
    assert record["settings"]["tp"] == {"value": 4, "origin": "llama.sh:14", "note": None}
    assert record["settings"]["cp"]["origin"] == "default of Megatron-LM"
    price = record["environment"][0]["price"]
    assert price["gain"] == "CUDA_DEVICE_MAX_CONNECTIONS"
    assert price["saved_s"] > 0 == price["low_s"]
    assert record["environment"][0] | {"reason": "", "price": None} == {
        "name": "CUDA_DEVICE_MAX_CONNECTIONS", "now": "32", "wanted": "1", "reason": "", "price": None}  # fmt: skip
    assert any(one["restores"] == ["overlap_p2p"] for one in record["kept"])


def test_a_measured_run_anchors_what_is_predicted(cli, script):
    plain = answer_of(cli("improve", script, "--system", "dgx-h100", "--format", "json"))
    seen = answer_of(cli("improve", script, "--system", "dgx-h100", "--log", "llama.log", "--format", "json"))
    assert seen["measured"]["step_s"] == pytest.approx(3.501, abs=2e-3)
    assert seen["now"]["step"]["step_s"] == pytest.approx(seen["measured"]["step_s"])
    assert seen["now"]["memory"]["peak_allocated_gib"] == pytest.approx(seen["measured"]["peak_allocated_gib"])
    assert [one["gain"] for one in seen["kept"]] == pytest.approx([one["gain"] for one in plain["kept"]])
    factor = seen["measured"]["step_s"] / plain["now"]["step"]["step_s"]
    assert [one["step_s"] for one in seen["kept"]] == pytest.approx([factor * one["step_s"] for one in plain["kept"]])
    worth = [one["environment"][0]["price"]["saved_s"] for one in (seen, plain)]
    assert worth[0] == pytest.approx(factor * worth[1])
    (lost,) = [one for one in seen["fields"] if one["outcome"] == "silent"]
    assert "llama.log:2" in lost["source"]


def test_a_peak_below_the_predicted_one_is_a_record_too(cli, script):
    text = Path("llama.log").read_text()
    found = re.search(r"max allocated: ([\d.]+)", text)
    Path("low.log").write_text(text.replace(found[0], f"max allocated: {float(found[1]) / 8}"))
    seen = answer_of(cli("improve", script, "--system", "dgx-h100", "--log", "low.log", "--format", "json"))
    assert seen["now"]["memory"]["terms_gib"]["measured_less_predicted"]["value"] < 0
    validator().validate(seen)
    assert all(one["peak_device_gib"] > 0 for one in seen["kept"])


def test_the_next_command_asks_the_same_question(cli, script):
    """Numbers of changes depend on the log: the command that writes one has to give it again."""
    ran = cli("improve", script, "--system", "dgx-h100", "--log", "llama.log", "--target", "megatron-lm")
    (hint,) = [line for line in ran.err.splitlines() if line.startswith("next: advisor improve")]
    words = shlex.split(hint)[2:]
    taken = cli(*words[: words.index("--take")], "--format", "json")
    number = int(words[words.index("--take") + 1])
    record = answer_of(taken)
    same = answer_of(
        cli(
            "improve",
            script,
            "--system",
            "dgx-h100",
            "--log",
            "llama.log",
            "--target",
            "megatron-lm",
            "--format",
            "json",
        )
    )
    assert record == same
    (change,) = [one for one in record["kept"] if one["number"] == number]
    assert change["gain"] > 0
    assert not [text for text in change["risks"] if text.startswith("stopped by")]


def test_what_a_log_shows_to_be_off_is_off(cli, script):
    text = Path("llama.log").read_text().replace("overlap_grad_reduce ............................. True",
                                                 "overlap_grad_reduce ............................. False")  # fmt: skip
    assert "overlap_grad_reduce ............................. False" in text
    Path("other.log").write_text(text)
    record = answer_of(cli("improve", script, "--system", "dgx-h100", "--log", "other.log", "--format", "json"))
    field = next(one for one in record["fields"] if one["field"] == "ddp.overlap_grad_reduce")
    assert (field["requested"], field["effective"], field["outcome"]) == (True, False, "silent")
    assert not record["now"]["knobs"]["overlap_grad_reduce"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({r"(tensor.model.parallel.size)(:| \.+) 4": r"\1\2 8"}, "the log ran tp 8"),
        ({r"world size: 64": "world size: 32", r"(world_size \.+) 64": r"\1 32"}, "the log ran on 32 GPUs"),
        ({r"(global_batch_size \.+) 128": r"\1 256", "batch size:   128": "batch size:   256"}, "the log ran gbs 256"),
    ],
)
def test_a_log_of_another_job_is_refused(cli, script, changes, said):
    text = Path("llama.log").read_text()
    for before, after in changes.items():
        text, hits = re.subn(before, after, text)
        assert hits
    Path("other.log").write_text(text)
    ran = cli("improve", script, "--system", "dgx-h100", "--log", "other.log")
    assert ran.code == 2
    assert said in ran.err


def test_a_change_is_written_out_and_holds_what_it_promises(cli, script):
    first = answer_of(cli("improve", script, "--system", "dgx-h100", "--format", "json"))
    for number in (1, first["pair"]["number"]):
        promised = next(one for one in (*first["kept"], first["pair"]) if one["number"] == number)
        ran = cli("improve", script, "--system", "dgx-h100", "--take", str(number), "--edited", "new.sh")
        assert ran.code == 1
        again = answer_of(cli("improve", "new.sh", "--system", "dgx-h100", "--format", "json"))
        assert again["now"]["step"]["step_s"] == pytest.approx(promised["step_s"], rel=1e-9)
        assert again["now"]["memory"]["peak_device_gib"] == pytest.approx(promised["peak_device_gib"], rel=1e-9)
    kept = Path(script).read_text().splitlines()
    changed = [row for row in Path("new.sh").read_text().splitlines() if row not in kept]
    assert len(changed) == 2


def test_nothing_better_and_nothing_off_is_zero(cli, tmp_path):
    best = tmp_path / "plan.json"
    words = ("--model", "llama3-8b", "--gpus", "8", "--gbs", "64", "--system", "dgx-h100")
    assert cli("plan", *words, "--out", str(best)).code == 0
    ran = cli("improve", str(best), "--format", "json")
    record = answer_of(ran)
    validator().validate(record)
    assert record["kind"] == "plan"
    assert record["check"]["verdict"] not in ("stop", "silent")
    assert not any(one["verdict"] == "fits" and one["low"] > 0 for one in record["kept"])
    assert record["best_gain"] == pytest.approx(0.0, abs=1e-9)
    assert ran.code == 0


@pytest.mark.parametrize("name", ["C10", "C17", "C19", "C35", "C37", "C46", "C52", "C56", "C58", "C60", "C68"])
def test_the_baseline_is_that_of_estimate(cli, tmp_path, name):
    path, options = written_case(tmp_path, name)
    words = ("--gpus", options["gpus"], "--system", options["system"], "--format", "json")
    alone = answer_of(cli("estimate", "--megatron-args", str(path), *words))
    subject = read_subject(path, options)
    held = subject.asked.__class__(subject.asked.layout, subject.effective)
    # An estimate does not read the environment of a script: it has as many queues as the layout needs.
    needed = replace(subject.request.workload, connections=None)
    verdict, candidate, _ = judge(subject.request.replaced(reserve_bytes=0.0, workload=needed), held)
    assert verdict == alone["verdict"]
    if alone["candidate"] is None:
        assert candidate is None
        return
    assert candidate.step.step_s == pytest.approx(alone["candidate"]["step"]["step_s"], rel=1e-12)
    assert candidate.memory.peak_device_bytes / 2**30 == pytest.approx(
        alone["candidate"]["memory"]["peak_device_gib"], rel=1e-12
    )


def same_job(one, other, knobs):
    """What two readings differ in; sizes, split, knobs that take effect, workload."""
    said = [
        (name, getattr(one.layout, name), getattr(other.asked.layout, name))
        for name in (*SIZES, "gbs", "sp", "dp", "edp")
        if getattr(one.layout, name) != getattr(other.asked.layout, name)
    ]
    if one.layout.split.layers != other.asked.layout.split.layers:
        said.append(("split", one.layout.split.layers, other.asked.layout.split.layers))
    if knobs != other.effective:
        said.append(("knobs", knobs, other.effective))
    return said


def stopped(subject):
    """Rules by which `advisor check` stops a job."""
    return {one.rule for one in subject.report.findings if one.severity == "stop"}


def announced(subject, said):
    """Rules that the page says will stop the job once the edits are made."""
    return {text.removeprefix("stopped by ").partition(":")[0] for text in refused(subject, said)}


def round_trip(path, options, most=None):
    """Every legal change of a file written into it and read again gives the job that was priced."""
    subject = read_subject(path, options)
    edited = path.with_name(f"edited-{path.name}")
    tried = 0
    changes = turns(subject.request, subject.asked)
    if most is not None:
        changes = random.Random(len(changes)).sample(changes, min(most, len(changes)))
    for turn in changes:
        made = turn.apply(subject.request, subject.asked)
        if made is None:
            continue
        request, choice = made
        held = subject.settle(choice.layout, choice.knobs)
        about = (request.model, request.cluster, request.workload)
        if any(one.severity == "stop" for one in findings(*about, choice.layout, held)):
            continue
        said = edits(subject, request, choice)
        if not said:
            idle = (choice.layout, held, request.workload) == (subject.asked.layout, subject.effective, about[2])
            assert idle or subject.reading.kind == "layout", turn
            continue
        edited.write_text(rewritten(subject, said), encoding="utf-8")
        again = read_subject(edited, options)
        assert same_job(choice, again, held) == [], (turn.name, said)
        assert again.request.workload == request.workload, (turn.name, said)
        assert stopped(again) - stopped(subject) == announced(subject, said), (turn.name, said)
        tried += 1
    return tried


@pytest.mark.parametrize("name", ["C17", "C19", "C26", "C34", "C38", "C46", "C56", "C69", "C72", *OWN])
def test_every_edit_gives_the_job_it_promises(tmp_path, name):
    path, options = written_case(tmp_path, name)
    assert round_trip(path, options) > (0 if name == "C46" else 25)


def test_sharding_brings_its_checkpoint_format_and_says_what_no_edit_writes(cli, tmp_path):
    path, options = written_case(tmp_path, "moe.sh")
    launch = "#!/bin/bash\nexport CUDA_DEVICE_MAX_CONNECTIONS=1\n"
    path.write_text(path.read_text().replace("#!/bin/bash\n", launch), encoding="utf-8")
    ran = cli("improve", str(path), "--system", options["system"], "--format", "json")
    changes = [one for one in answer_of(ran)["kept"] if one["dials"][0]["name"] == "fsdp"]
    assert changes
    for one in changes:
        assert "--ckpt-format fsdp_dtensor" in [edit["write"] for edit in one["edits"]]
        assert [text for text in one["risks"] if text.startswith("stopped by")] == [
            "stopped by fsdp-forbids-one-connection: CUDA_DEVICE_MAX_CONNECTIONS=8, or unset it"
        ]


def vendor_sample():
    """Legal pre-training and fine-tuning recipes of the vendor, spread over models and GPUs."""
    known = [one for one in recipes() if one.model and one.gpu in SYSTEMS]
    return random.Random(20).sample(known, 16)


@pytest.mark.parametrize("recipe", vendor_sample(), ids=lambda one: one.name)
def test_recipes_of_the_vendor_are_read_and_edited(tmp_path, recipe):
    path = tmp_path / "overrides.txt"
    path.write_text(f"--recipe {recipe.name} --mode {recipe.task}\n", encoding="utf-8")
    options = {"gpus": str(recipe.gpus), "system": SYSTEMS[recipe.gpu]}
    subject = read_subject(path, options)
    assert subject.request.workload.seq_len == recipe.seq_len
    assert subject.request.gbs == recipe.gbs
    assert subject.request.workload.precision.name == recipe.precision
    table = recipe_choice(recipe, subject.request.model, subject.request.workload)
    for name in (*SIZES, "sp"):
        assert getattr(subject.asked.layout, name) == getattr(table.layout, name), name
    assert subject.asked.layout.split.layers == table.layout.split.layers
    assert subject.asked.knobs == table.knobs
    round_trip(path, options, most=8)


def test_python_gets_the_imports_and_the_object_that_a_field_needs(cli, tmp_path):
    path, new = tmp_path / "config.py", tmp_path / "new.py"
    path.write_text(
        '"""A run."""\n\nfrom __future__ import annotations\n\n'
        "from megatron.bridge.recipes.llama import llama3_8b_pretrain_config\n\n\n"
        "def make():\n    cfg = llama3_8b_pretrain_config()\n    cfg.model.pipeline_model_parallel_size = 1\n"
        "    cfg.train.global_batch_size = 512\n    return cfg\n"
    )
    words = ("--gpus", "64", "--system", "dgx-h100", "--format", "json")
    record = answer_of(cli("improve", str(path), *words))
    for dial in ("grad_dtype", "moment_dtype", "pp"):
        changes = (*record["kept"], *record["changed"])
        promised = next(one for one in changes if [part["name"] for part in one["dials"]] == [dial])
        cli("improve", str(path), *words, "--take", str(promised["number"]), "--edited", str(new))
        compile(new.read_text(), "new.py", "exec")
        again = answer_of(cli("improve", str(new), *words))
        assert again["now"]["step"]["step_s"] == pytest.approx(promised["step_s"], rel=1e-9)
        assert ("torch." in new.read_text()) == ("import torch\n" in new.read_text())
        assert ("get_mixed_precision_config(" in new.read_text()) == (dial == "grad_dtype")


@pytest.mark.parametrize(
    ("name", "field", "requested"),
    [
        ("C17", "model.overlap_p2p_comm", True),
        ("C26", "model.tp_comm_overlap", True),
        ("C27", "model.tp_comm_overlap", True),
    ],
)
def test_requested_and_effective(tmp_path, name, field, requested):
    path, options = written_case(tmp_path, name)
    (lost,) = read_subject(path, options).lost
    assert (lost.path, lost.requested, lost.effective) == (field, requested, False)
    assert lost.reason


@pytest.mark.parametrize(
    ("text", "words", "said"),
    [
        ("--gpus 64 --tp 2\n", (), ["model", "system", "gbs", "seq_len", "--model NAME|PATH --system NAME|PATH"]),
        ("--model llama3-8b --gpus 64 --tp 2 --seq-len 4096\n", ("--system", "dgx-h100"), ["gbs", "--gbs N"]),
        ("--model lama3-8b --gpus 8 --gbs 8 --seq-len 4096\n", ("--system", "dgx-h100"), ["llama3-8b"]),
        ("--model llama3-8b --gpus 64 --gbs 64 --seq-len 4096\n", ("--system", "dgx-h10"), ["dgx-h100"]),
        ("--model llama3-8b --gpus 64 --gbs 64 --seq-len 4096\n", ("--system", "h100", "--take", "1"), ["--edited"]),
        ("--num-layers 4 --tensor-model-parallel-size two --hidden-size 64\n", ("--system", "h100"), ["'two'"]),
        ("hello\n", (), ["holds no setting"]),
        ("\0\1", (), ["not a text file"]),
        ("", (), ["holds no setting"]),
    ],
)
def test_what_is_missing_or_wrong_is_asked_for(cli, tmp_path, text, words, said):
    path = tmp_path / "config.txt"
    path.write_text(text)
    ran = cli("improve", str(path), *words)
    assert ran.code == 2
    assert ran.out == ""
    for word in said:
        assert word in ran.err
    assert "Traceback" not in ran.err


def test_settings_that_only_a_run_knows_are_asked_for(cli, tmp_path):
    path = tmp_path / "config.py"
    path.write_text(
        "import os\nfrom megatron.bridge.recipes.llama import llama3_8b_pretrain_config\n"
        "cfg = llama3_8b_pretrain_config()\ncfg.model.tensor_model_parallel_size = int(os.environ['TP'])\n"
        "cfg.train.global_batch_size = 512\n"
    )
    words = ("improve", str(path), "--gpus", "64", "--system", "dgx-h100", "--format", "json")
    ran = cli(*words)
    assert ran.code == 2
    assert "tp (config.py:4)" in ran.err
    assert "--tp" in ran.err
    answered = answer_of(cli(*words, "--tp", "4", "--sp"))
    assert answered["settings"]["tp"] == {"value": 4, "origin": "flag", "note": None}
    assert answered["settings"]["gbs"]["origin"] == "config.py:5"


def test_no_edit_names_a_file_that_only_an_export_writes(cli, tmp_path):
    path = tmp_path / "wide.sh"
    path.write_text(
        "torchrun --nnodes 8 --nproc_per_node 8 pretrain_gpt.py --num-layers 80 --hidden-size 8192 --bf16 --swiglu"
        " --num-attention-heads 64 --group-query-attention --num-query-groups 8 --ffn-hidden-size 28672"
        " --seq-length 8192 --max-position-embeddings 8192 --micro-batch-size 1 --global-batch-size 128"
        " --tensor-model-parallel-size 4 --pipeline-model-parallel-size 4 --sequence-parallel --vocab-size 128256"
        " --context-parallel-size 2 --use-distributed-optimizer\n"
    )
    record = answer_of(cli("improve", str(path), "--system", "dgx-h100", "--format", "json"))
    said = {one["dials"][0]["name"]: [edit["write"] for edit in one["edits"]] for one in reversed(record["kept"])}
    assert said["tp_overlap"] == ["--tp-comm-overlap"]
    assert said["overlap_grad_reduce"] == ["--overlap-grad-reduce"]


@pytest.mark.parametrize("edited", ["no/such/folder/new.sh", "."])
def test_a_place_that_cannot_be_written_is_named(cli, script, edited):
    ran = cli("improve", script, "--system", "dgx-h100", "--take", "1", "--edited", edited)
    assert ran.code == 2
    assert f"cannot write --edited {edited}" in ran.err


def test_changes_that_the_page_lacks(cli, script):
    for words in (("--take", "900", "--edited", "new.sh"), ("--take", "1", "--edited", script)):
        ran = cli("improve", script, "--system", "dgx-h100", *words)
        assert ran.code == 2
        assert not Path("new.sh").exists()


@pytest.mark.parametrize("name", ["C17", "C26", "C34", "C38", "C69", "C72", "overrides", "config.yaml", "args.yaml"])
def test_half_written_files_are_read_or_refused(tmp_path, name):
    path, options = written_case(tmp_path, name)
    text = path.read_text()
    dice = random.Random(name)
    for _ in range(25):
        cut = dice.randrange(len(text))
        middle = text[:cut] + text[min(len(text), cut + dice.randrange(40)) :]
        path.write_text(dice.choice((text[:cut], middle, text[:cut] + dice.choice("\"'({[\\#$\0") + text[cut:])))
        try:
            subject = read_subject(path, options)
        except AdvisorError:
            continue
        assert subject.asked.layout.gpus > 0
