"""Quoting of values for Python and for Hydra overrides."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.export.words import Code, comment, hydra, plain, python

VALUES = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=6)


@given(VALUES)
def test_python_literals_are_read_back(value: object) -> None:
    assert ast.literal_eval(python(value)) == value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (4, "4"),
        (0.5, "0.5"),
        ("bf16_mixed", "bf16_mixed"),
        ("true", "'true'"),
        ("null", "'null'"),
        ("Et*4|(t|)*2L", "'Et*4|(t|)*2L'"),
        ("it's", r"'it\'s'"),
        (["attn", "moe_router"], "[attn,moe_router]"),
        ({"_target_": "a.b.C", "x": True}, "{_target_:a.b.C,x:true}"),
        (Code("torch.bfloat16", "torch.bfloat16"), "torch.bfloat16"),
    ],
)
def test_hydra_words(value: object, text: str) -> None:
    assert hydra(value) == text


def test_comments_are_one_line() -> None:
    assert comment("a\n\trm -rf") == "a rm -rf"


def test_plain_values_hold_no_code() -> None:
    assert plain({"a": (Code("torch.float32", "torch.float32"), 1)}) == {"a": ["torch.float32", 1]}
