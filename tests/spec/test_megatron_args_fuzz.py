"""Whatever is given as Megatron-LM arguments, the answer is a job or an InputError, never a traceback."""

import random
import string
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from advisor.errors import InputError
from advisor.spec.load.megatron import read_megatron_args
from advisor.spec.load.megatron.arguments import flags

DATA = Path(__file__).parent / "data"
SCRIPT = (DATA / "pretrain_moe.sh").read_text()
RECIPE = (DATA / "recipe.yaml").read_text()
VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 3, 10**9, 10**40, -(10**40), 1e308, float("nan"), float("inf"), -0.0, "", " ", "nan",
    "1e400", "0x10", "[", "[1]*10", "${X}", "$(rm -rf /)", "\0", "é" * 100, [], [[]], {}, {"a": 1}, [1, "x", None],
    "all", "M" * 50, "E|t", "Et*8L", "(((((((([1]))))))))", "([1]*8)", 8, "1,2", (1, 2), b"bytes",
]  # fmt: skip
BASE = {
    "num-layers": 8, "hidden-size": 64, "num-attention-heads": 4, "seq-length": 64, "max-position-embeddings": 64,
    "micro-batch-size": 1, "global-batch-size": 8, "vocab-size": 100, "num-experts": 4,
}  # fmt: skip


def only_input_errors(source: Any) -> None:
    """Read, lay out and fail only with InputError (whose text has no traceback and a bounded length)."""
    try:
        read_megatron_args(source).layout(8)
    except InputError as error:
        text = str(error)
    else:
        return
    assert text.strip()
    assert len(text) < 200_000


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(flags())), st.sampled_from(VALUES), max_size=6))
def test_any_flag_with_any_value(changes: dict[str, Any]):
    only_input_errors(BASE | changes)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.one_of(st.text(max_size=20), st.integers(), st.none()), st.sampled_from(VALUES), max_size=4))
def test_any_mapping(mapping: dict[Any, Any]):
    only_input_errors(mapping)
    only_input_errors(BASE | mapping)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    content=st.one_of(st.binary(max_size=400), st.text(max_size=400).map(lambda text: text.encode("utf-8", "ignore")))
)
def test_any_bytes(tmp_path: Path, content: bytes):
    for suffix in ("", ".yaml", ".json", ".sh"):
        file = tmp_path / f"arguments{suffix}"
        file.write_bytes(content)
        only_input_errors(file)


@pytest.mark.parametrize(("text", "suffix"), [(SCRIPT, ".sh"), (RECIPE, ".yaml"), (RECIPE, "")])
def test_damaged_files(tmp_path: Path, text: str, suffix: str):
    file = tmp_path / f"arguments{suffix}"
    pick = random.Random(7)
    for _ in range(120):
        at, end = sorted(pick.sample(range(len(text)), 2))
        damaged = pick.choice(
            [text[:at], text[at:], text[:at] + text[end:], text[:at] + pick.choice(string.printable) + text[at + 1 :]]
        )
        file.write_text(damaged)
        only_input_errors(file)


@pytest.mark.parametrize(
    "text",
    [
        "A=$A$A$A", "A=1; A=$A$A; " * 60, "X=$((9**9**9))\n--num-layers $X", "X=$((1/0))\n--num-layers $X",
        "--num-layers $((" + "(" * 5000 + "1" + ")" * 5000 + "))", "${" * 2000, "a: &a [*a]", "&x [" * 3000, '"' * 3,
        "--moe-layer-freq " + "(" * 4000, "- " * 5000, "{" * 5000, "$(" * 3000, "!!python/object/apply:os.system [ls]",
        "--num-layers 9999999999 --hidden-size 99999999999 --num-attention-heads 9999999 --seq-length 99999999999 "
        "--micro-batch-size 999999999 --pipeline-model-parallel-size 999999999",
        "A=" + "x" * 500_000 + "\nB=$A$A$A$A$A$A\n--num-layers $B",
    ],
)  # fmt: skip
@pytest.mark.parametrize("suffix", ["", ".yaml"])
def test_hostile_texts(tmp_path: Path, text: str, suffix: str):
    file = tmp_path / f"arguments{suffix}"
    file.write_text(text)
    only_input_errors(file)


def test_directories_missing_and_enormous_files(tmp_path: Path):
    with pytest.raises(InputError, match="is a directory"):
        read_megatron_args(tmp_path)
    with pytest.raises(InputError, match="cannot read"):
        read_megatron_args(tmp_path / "none.yaml")
    with pytest.raises(InputError, match="cannot read"):
        read_megatron_args("a\0b")
    (tmp_path / "x").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not a text file"):
        read_megatron_args(tmp_path / "x")
    (tmp_path / "big").write_bytes(b" " * (5 << 20))
    with pytest.raises(InputError, match="larger than 4 MiB"):
        read_megatron_args(tmp_path / "big")
    for empty in ("", "\n", "# only a comment\n", "[]", "null", "12"):
        (tmp_path / "empty.yaml").write_text(empty)
        with pytest.raises(InputError):
            read_megatron_args(tmp_path / "empty.yaml")
    with pytest.raises(InputError, match="no Megatron-LM argument"):
        read_megatron_args({})
