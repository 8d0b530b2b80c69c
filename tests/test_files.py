"""Files are written whole or not at all."""

from __future__ import annotations

import os
import stat

import pytest

from advisor import files


def _fail_halfway(path):
    with files.replaced(path) as stream:
        stream.write(b"half of the n")
        raise RuntimeError


def test_a_block_that_fails_leaves_the_old_file_and_nothing_beside_it(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text("old")
    with pytest.raises(RuntimeError):
        _fail_halfway(path)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["plan.json"]


def test_the_new_file_is_an_ordinary_one(tmp_path):
    path, ordinary = tmp_path / "plan.json", tmp_path / "ordinary"
    files.write_text(path, "new \N{BLACK SQUARE}")
    ordinary.write_text("")
    assert path.read_text(encoding="utf-8") == "new \N{BLACK SQUARE}"
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(ordinary.stat().st_mode)
    assert sorted(os.listdir(tmp_path)) == ["ordinary", "plan.json"]
