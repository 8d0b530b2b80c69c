"""Files that are no configuration: one clear error or finding, never a traceback, never long."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from advisor.check import check
from advisor.check.files import LARGEST_BYTES
from advisor.errors import InputError

BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{','.join(f'*{chr(97 + n)}' for _ in range(9))}]\n" for n in range(24)
)
BAD = {
    "half.py": ("def configure(cfg):\n    cfg.model.tensor_model_parallel_size = (4,\n", "line 2"),
    "empty.txt": ("", "no setting"),
    "prose.txt": ("Dear all,\nplease find the job attached.\n", "no setting"),
    "bomb.yaml": (BOMB, "aliases"),
    "deep.yaml": ("model: " + "[" * 300 + "]" * 300, "deep"),
    "broken.yaml": ("model:\n  tp: [1, 2\n", "not valid"),
    "broken.json": ('{"model": {', "not valid"),
    "list.json": ("[1, 2]", "no mapping"),
    "ds.json": ('{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}', "DeepSpeed"),
    "config.json": (
        '{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096}',
        "Hugging Face",
    ),
    "ds_alone.json": ('{"train_batch_size": 32, "zero_optimization": {"stage": 3}}', "DeepSpeed"),
    "nemo.yaml": ("trainer:\n  devices: 8\nexp_manager:\n  name: x\nmodel:\n  micro_batch_size: 4\n", "NeMo 1"),
    "titan.toml": ("[job]\nx = 1\n[training]\nseq_len = 4096\n[parallelism]\ntp = 2\n", "torchtitan"),
    "plain.toml": ("[tool]\nx = 1\n", "TOML"),
    "broken.toml": ("[tool\n", "not valid TOML"),
    "accelerate.yaml": ("compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nnum_processes: 8\n", "Accelerate"),
    "book.ipynb": ('{"cells": [{"source": ["--tp 2"]}], "metadata": {}, "nbformat": 4}', "notebook"),
    "pod.yaml": ("apiVersion: v1\nkind: Pod\nspec: {}\n", "Kubernetes"),
    "quote.sh": ('#!/bin/bash\ntorchrun pretrain_gpt.py --num-layers "32\n', "quote"),
    "plan.json": ('{"schema_version": 1, "candidates": []}', "no layout"),
}


@pytest.mark.parametrize("name", BAD)
def test_one_clear_error(name, tmp_path, cli):
    text, word = BAD[name]
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    ran = cli("check", str(path), "--format", "json")
    assert ran.code == 2, ran.out
    assert ran.out == ""
    assert ran.err.startswith("error:")
    assert ran.err.count("error:") == 1
    assert word in ran.err


def test_a_log_of_200_mb_is_read_in_part_only(tmp_path, cli, monkeypatch):
    path = tmp_path / "job.log"
    with path.open("wb") as stream:
        stream.truncate(200 << 20)
        stream.write(b"x")
    ran = cli("check", str(path))
    assert ran.code == 2
    assert f"larger than {LARGEST_BYTES >> 20} MiB" in ran.err
    assert "diagnose" in ran.err


@pytest.mark.parametrize(
    ("content", "word"), [(b"\x7fELF\0\0\0", "NUL"), (b"\xff\xfe\x00\x01", "NUL"), (b"\xe9\xe8 = 1", "UTF-8")]
)
def test_binary(content, word, tmp_path, cli):
    path = tmp_path / "thing"
    path.write_bytes(content)
    ran = cli("check", str(path))
    assert ran.code == 2
    assert word in ran.err


def test_missing_file_and_folder(tmp_path, cli):
    assert cli("check", str(tmp_path)).code == 2
    assert cli("check", str(tmp_path / "no")).code == 2
    assert cli("check").code == 2


def test_wrong_options(tmp_path, cli):
    path = tmp_path / "x.txt"
    path.write_text("--gpus 8 --tp 2\n", encoding="utf-8")
    assert cli("check", str(path), "--gpus", "0").code == 2
    assert cli("check", str(path), "--target", "jax").code == 2
    assert "did you mean" in cli("check", str(path), "--system", "dgx-h10").err


def test_unknown_flag_is_a_finding_with_the_closest_name(tmp_path, cli):
    path = tmp_path / "x.sh"
    path.write_text("torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 8 --sequence-paralel\n", encoding="utf-8")
    ran = cli("check", str(path), "--format", "json")
    found = [one for one in json.loads(ran.out)["findings"] if one["rule"] == "unknown-flag"]
    assert found[0]["severity"] == "stop"
    assert "--sequence-parallel" in found[0]["fix"]
    assert found[0]["line"] == 1


def test_nothing_is_executed(tmp_path):
    marker = tmp_path / "ran"
    python, shell = tmp_path / "a.py", tmp_path / "a.sh"
    python.write_text(f"open({str(marker)!r}, 'w')\ncfg.model.seq_length = 4096\n", encoding="utf-8")
    shell.write_text(f"touch {marker}\nX=$(touch {marker})\npython pretrain_gpt.py --num-layers 4\n", encoding="utf-8")
    tagged = tmp_path / "a.yaml"
    tagged.write_text(
        f"model:\n  x: !!python/object/apply:os.system ['touch {marker}']\n  seq_length: 4\n", encoding="utf-8"
    )
    check([python])
    check([shell])
    check([tagged])
    assert not marker.exists()


CASES = [row["file"] for row in yaml.safe_load((Path(__file__).parent / "data" / "cases.yaml").read_text())]
JUNK = st.sampled_from(
    ["'", '"', "\\", "[", "{", "&a ", "*a", "<<: ", "!!int ", "!!python/name:os.system ", "\t", "\r", "\n", "=", "--",
     ": ", "$(", "${", "#", "9" * 30, "1e999", "nan", "None", "\u2588", ",", "(", ")", "@", "~", "lambda: ", "**", "?",
     "|", ":=", "f'{", "[[", "++", "async ", ""]
)  # fmt: skip


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    text=st.sampled_from(CASES),
    changes=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 40), JUNK), min_size=1, max_size=5),
    suffix=st.sampled_from([".txt", ".py", ".sh", ".yaml", ".json", ".sbatch", ".toml"]),
)
def test_torn_and_garbled_cases(text, changes, suffix, tmp_path_factory):
    for share, cut, junk in changes:
        at = int(share * len(text))
        text = text[:at] + junk + text[at + cut :]
    path = tmp_path_factory.mktemp("fuzz") / f"x{suffix}"
    path.write_text(text, encoding="utf-8")
    with contextlib.suppress(InputError):
        check([path], gpus=8, system="dgx-h100")


WORDS = st.sampled_from(
    ["--tp", "4", "--gpus", "8", "=", "==", "model.", "model.x=1", "comm_overlap.tp_comm_overlap=true", "--num-layers",
     "32", "'", '"', "(", ")", "$(", "${X}", "$X", "[", "]", "{", "}", "#SBATCH", "--nodes=2", "srun", "torchrun",
     "python", "run_recipe.py", "pretrain_gpt.py", "export", "unset", "\n", "\\", "\\\n", ";", "&&", "|", "<", ">",
     "cfg.model", "GPTModelProvider(", "import", "def", ":", "null", "~", "++a.b=[1,2", "-5", "1e999",
     "99999999999999999999", "TP4", "é", "漢", "\t", "&", "*"]
)  # fmt: skip


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(words=st.lists(WORDS, max_size=40), suffix=st.sampled_from([".txt", ".py", ".sh", ".yaml", ".json", ".sbatch"]))
def test_any_words(words, suffix, tmp_path_factory):
    path = tmp_path_factory.mktemp("fuzz") / f"x{suffix}"
    path.write_text(" ".join(words), encoding="utf-8")
    with contextlib.suppress(InputError):
        assert check([path], gpus=8, system="dgx-h100").verdict in ("stop", "silent", "slow", "info", "none")


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(content=st.binary(max_size=400))
def test_any_bytes(content, tmp_path_factory):
    path = tmp_path_factory.mktemp("fuzz") / "x"
    path.write_bytes(content)
    with contextlib.suppress(InputError):
        check([path])


VALUES = st.one_of(st.none(), st.booleans(), st.integers(-(10**20), 10**20), st.floats(), st.text(max_size=8),
                   st.lists(st.integers(-3, 99), max_size=3))  # fmt: skip


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_values_of_known_fields(data, tmp_path_factory):
    """A saved configuration with absurd values: rules may say what they like, none may fail."""
    from advisor.check.defaults import fields

    config = {}
    for section in data.draw(st.lists(st.sampled_from(sorted(fields())), min_size=2, max_size=6, unique=True)):
        names = data.draw(st.lists(st.sampled_from(sorted(fields()[section])), min_size=1, max_size=12))
        config[section] = {name: data.draw(VALUES) for name in names}
    path = tmp_path_factory.mktemp("fuzz") / "run_config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    report = check([path], gpus=8, system="dgx-h100")
    for one in report.findings:
        assert one.message
        assert len(one.message) < 2000
