"""The table of what Bridge's recipes set, against the containers that the installed Bridge builds."""

from __future__ import annotations

import json

import pytest

from advisor.check.recipe_settings import recipe_settings
from advisor.export.subject import versions
from tests.real.bridge_stack import VERSION, require_bridge
from tests.real.recipe_settings import TABLE, build_all, table_of, write

require_bridge()
pytestmark = pytest.mark.bridge


def test_the_table_is_what_recipes_set(updating: bool) -> None:
    found, failed = build_all()
    if updating:
        write(VERSION, table_of(found))
    committed = json.loads(TABLE.read_text(encoding="utf-8"))["versions"]
    assert set(committed) <= set(versions("bridge"))
    assert committed[VERSION] == table_of(found)
    assert len(found) > 60
    for name, row in found.items():
        read = recipe_settings(name, VERSION)
        assert {key: read.get(key) for key in row} == row, name
    assert not set(failed) & set(found)
