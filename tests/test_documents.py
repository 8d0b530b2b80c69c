"""Files that somebody hands over: whatever they are, every reader ends at once with one clear error."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from advisor.check import check
from advisor.documents import MOST_NODES, read_json, read_text, read_yaml
from advisor.errors import InputError
from advisor.spec.load.megatron import read_megatron_args
from advisor.spec.load.model import load_model
from advisor.spec.load.system import load_system


def bomb(levels, form="[{}]", width=9):
    rows = ["x0: &x0 " + form.format(", ".join(f"k{at}: 1" if form[0] == "{" else "1" for at in range(width)))]
    for level in range(levels):
        inner = ", ".join((f"k{at}: " if form[0] == "{" else "") + f"*x{level}" for at in range(width))
        rows.append(f"x{level + 1}: &x{level + 1} {form.format(inner)}")
    return "\n".join([*rows, f"model: *x{levels}", "train: {micro_batch_size: 1}"]) + "\n"


MERGES = "a: &a {k: 1, l: 2}\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} {{<<: [{', '.join('*' + chr(97 + n) for _ in range(9))}]}}\n" for n in range(9)
)
CHAIN = "model:\n  a0: &a0 [1]\n" + "".join(f"  a{n + 1}: &a{n + 1} [*a{n}]\n" for n in range(3000))
BAD = {
    "sequences": bomb(8),
    "mappings": bomb(8, "{{{}}}"),
    "merge keys": MERGES,
    "chain of aliases": CHAIN,
    "alias of its own": "model: &a\n  inner: [*a]\n",
    "deep flow": "model: " + "[" * 5000 + "]" * 5000,
    "deep mappings": "model: " + "{a: " * 300 + "1" + "}" * 300,
    "deep blocks": "".join(" " * at + "a:\n" for at in range(900)),
    "deep dashes": "model:\n  " + "- " * 5000 + "x",
    "wrong int": "model: !!int x\n",
    "empty int": "model: !!int ''\n",
    "wrong bool": "model: !!bool maybe\n",
    "wrong time": "model: !!timestamp now\n",
    "wrong float": "model: !!float x\n",
    "enormous int": "model: {a: " + "9" * 5000 + "}\n",
    "list as key": "? [1, 2]\n: 3\n",
    "two documents": "a: 1\n---\nb: 2\n",
    "undefined alias": "a: *b\n",
    "tabs": "a:\n\t- 1\n",
    "control characters": "a: \x07\n",
}
READERS = {
    "check": lambda path: check([path]),
    "system": lambda path: load_system(str(path)),
    "megatron": read_megatron_args,
    "model": lambda path: load_model(str(path)),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", BAD)
def test_yaml_that_is_none(name, reader, tmp_path):
    path = tmp_path / ("config.json" if reader == "model" else "config.yaml")
    path.write_text(BAD[name], encoding="utf-8")
    with pytest.raises(InputError) as caught:
        READERS[reader](path)
    assert len(str(caught.value)) < 2000


@pytest.mark.parametrize("reader", READERS)
def test_no_regular_file(reader, tmp_path):
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "loop.yaml").symlink_to(tmp_path / "loop.yaml")
    (tmp_path / "folder.yaml").mkdir()
    with (tmp_path / "large.yaml").open("wb") as file:
        file.truncate(200 << 20)
    words = {
        "pipe": "named pipe", "loop": "symbolic links", "folder": "director", "none": "No such file", "large": "larger",
        "a\0b": "null byte", "x" * 300: "too long",
    }  # fmt: skip
    for name, word in words.items():
        if reader in ("model", "system") and name not in ("pipe", "folder", "large"):
            continue
        with pytest.raises(InputError, match=word):
            READERS[reader](tmp_path / f"{name}.yaml")
    with pytest.raises(InputError, match="no regular file"):
        READERS[reader]("/dev/zero")


@pytest.mark.parametrize(
    ("content", "word"),
    [("a: 1\n".encode("utf-16"), "UTF-16"), ("a: 1\n".encode("utf-16-be"), "NUL"), (b"a: \xe9\n", "UTF-8"),
     (b"a\0b", "NUL"), (b"\xff\xfe\x01", "UTF-8")],
)  # fmt: skip
def test_no_text(content, word, tmp_path):
    path = tmp_path / "x.yaml"
    path.write_bytes(content)
    for reader in READERS.values():
        with pytest.raises(InputError, match=word):
            reader(path)


def test_marks_and_line_ends_of_other_systems(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_bytes("\ufeffa: 1\r\nb: 2\r\n".encode())
    assert read_text(path, 100, "file") == "a: 1\nb: 2\n"
    args = tmp_path / "args.yaml"
    args.write_bytes("\ufeffnum-layers: 2\r\nhidden-size: 64\r\nnum-attention-heads: 4\r\n".encode())
    assert check([args]).kinds[0][1] == "megatron-yaml"


def test_what_a_shell_has_opened_is_read(tmp_path):
    args = tmp_path / "args.txt"
    args.write_text("--gpus 8 --tp 2 --pp 2\n", encoding="utf-8")
    words = f"{sys.executable} -m advisor check <(cat {args})"
    ran = subprocess.run(["bash", "-c", words], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr


def test_aliases_that_stay_small_are_read():
    text = "base: &base {a: 1, b: [1, 2]}\n" + "".join(f"r{n}: {{<<: *base, c: {n}}}\n" for n in range(300))
    found = read_yaml("x", text)
    assert found["r299"] == {"a": 1, "b": [1, 2], "c": 299}
    assert read_yaml("x", "a: [" + "1, " * (MOST_NODES - 10) + "1]")
    with pytest.raises(InputError, match="writes out to more than"):
        read_yaml("x", "a: [" + "1, " * MOST_NODES + "1]")
    assert read_yaml("x", "") is None


def test_json_says_where(tmp_path):
    with pytest.raises(InputError, match=r"not valid JSON \(line 2\)"):
        read_json("x", '{"a": 1,\n"b": }')
    with pytest.raises(InputError, match="too deeply"):
        read_json("x", "[" * 100_000)
