"""Lists of flags in shell arrays and texts are read with their values; golden exports, as committed, stop nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from advisor.check.files import read_file
from advisor.check.run import check

FOLDER = Path(__file__).parents[1] / "golden" / "expected" / "export"
BESIDE = ("tp_comm_overlap.yaml",)
"""Files of Transformer Engine, which are no configuration of their own."""
FILES = sorted(path for path in FOLDER.glob("*/*/*") if path.is_file() and path.name not in BESIDE)
LISTS = [path for path in FILES if path.name == "megatron_args.sh"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: "-".join(path.parts[-3:]))
def test_an_export_stops_nothing(path):
    gpus = re.search(r" on (\d+) x ", path.read_text(encoding="utf-8"))
    found = check([path], gpus=None if gpus is None else int(gpus[1])).findings
    assert [one.rule for one in found if one.severity in ("stop", "silent")] == []


@pytest.mark.parametrize("path", LISTS, ids=lambda path: "-".join(path.parts[-3:-1]))
def test_an_array_of_flags_is_read_with_its_values(path):
    reading = read_file(path)
    text = path.read_text(encoding="utf-8")
    for flag, key in (("tensor-model-parallel-size", "model.tensor_model_parallel_size"),
                      ("global-batch-size", "train.global_batch_size")):  # fmt: skip
        stated = reading.values[key]
        assert f"--{flag} {stated.value}" in text.splitlines()[stated.line - 1]
    assert not reading.notes


@pytest.mark.parametrize(
    "text",
    [
        "ARGS=(\n  --tensor-model-parallel-size 2\n  --micro-batch-size 1\n)\n",
        "ARGS='--tensor-model-parallel-size 2 --micro-batch-size 1'\n",
        "ARGS=(--tensor-model-parallel-size=2 --micro-batch-size=1)\n",
        "ARGS=(\n  '--tensor-model-parallel-size 2'\n  '--micro-batch-size 1'\n)\n",
        'A="--tensor-model-parallel-size 2"\nB=(--micro-batch-size 1)\n',
    ],
)
def test_lists_of_flags_in_all_their_forms(tmp_path, text):
    path = tmp_path / "args.sh"
    path.write_text(text)
    reading = read_file(path)
    assert reading.values["model.tensor_model_parallel_size"].value == 2
    assert reading.values["train.micro_batch_size"].value == 1
    assert not reading.notes
