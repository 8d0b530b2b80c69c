"""Files that come with the advisor: most specific root first, and one error when an installation lacks one."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from advisor import data
from advisor.errors import EXIT_ENVIRONMENT, EnvironmentMissingError


def test_user_files_win_over_shipped_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = data.require("presets", "gpus.yaml")
    own = tmp_path / "gpus.yaml"
    own.write_text("gpus: {}", encoding="utf-8")
    monkeypatch.setenv("ADVISOR_PRESETS", str(tmp_path))
    assert shipped != own
    assert data.require("presets", "gpus.yaml") == own


def test_a_missing_file_is_a_fault_of_the_installation_not_of_the_input() -> None:
    with pytest.raises(EnvironmentMissingError) as caught:
        data.require("profiles", "fitted/no-such-gpu.yaml")
    assert caught.value.exit_code == EXIT_ENVIRONMENT
    assert "profiles/fitted/no-such-gpu.yaml" in caught.value.message
    assert "ADVISOR_PROFILES" in (caught.value.hint or "")


def test_nobody_else_words_that_error() -> None:
    """A room that finds its own words for a missing file also finds its own exit code."""
    own_words = [
        path.name
        for path in Path(data.PACKAGE_DIR).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "reinstall" in node.value
    ]
    assert own_words == ["data.py"]
