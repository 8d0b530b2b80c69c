"""Fixtures of all tests: golden files (`pytest --update-golden` writes them) and the command line in this process."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("house", deadline=None)  # machines are shared, and no test asserts a time
settings.load_profile("house")
GOLDEN = Path(__file__).parent / "golden" / "expected"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write golden files and notebook outputs")


@dataclass(frozen=True)
class Ran:
    """What one call of the command line left: exit code, stdout and stderr."""

    code: int
    out: str
    err: str


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    from advisor.cli.main import run

    def call(*args: str) -> Ran:
        capsys.readouterr()
        code = run(list(args))
        out, err = capsys.readouterr()
        return Ran(code, out, err)

    return call


@pytest.fixture
def updating(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture
def golden(updating: bool) -> Callable[[str, str], None]:
    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if updating:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        expected = path.read_text(encoding="utf-8") if path.exists() else ""
        if text != expected:
            lines = difflib.unified_diff(expected.splitlines(), text.splitlines(), f"golden/{name}", "now", lineterm="")
            pytest.fail("\n".join([*lines, "if this is meant: make docs"]), pytrace=False)

    return check


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Tests see no ADVISOR_* variables, colours or settings files of the person who runs them."""
    for name in [*os.environ]:
        if name.startswith("ADVISOR_") or name in {"NO_COLOR", "FORCE_COLOR", "COLUMNS", "TERM_PROGRAM"}:
            monkeypatch.delenv(name)
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path_factory.getbasetemp() / "home"))
