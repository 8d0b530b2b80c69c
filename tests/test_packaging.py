"""The wheel, installed where no checkout is near, plans; it carries presets, profiles and the type marker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.xdist_group("packaging")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    (path,) = out.glob("megatron_advisor-*.whl")
    return path


def test_the_wheel_is_complete(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder in ("presets", "profiles"):
        here = {path.relative_to(ROOT).as_posix() for path in (ROOT / folder).rglob("*") if path.is_file()}
        missing = {name for name in here if f"advisor/_data/{name}" not in names and "__pycache__" not in name}
        assert here, f"{folder}/ is empty"
        assert not missing
    assert "advisor/py.typed" in names
    assert not {name for name in names if name.startswith(("tests/", "notebooks/", "docs/"))}
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_installed_wheel_plans(wheel, tmp_path):
    """Into an own folder, run from another one, with nothing of the checkout on the path."""
    site = tmp_path / "site"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--target",
        str(site),
        str(wheel),
    ]
    subprocess.run(pip, check=True, capture_output=True, timeout=300)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("ADVISOR_", "PYTHON"))}
    environment["PYTHONPATH"] = str(site)
    code = "import advisor, sys; from advisor.cli.main import run; print(advisor.__file__, file=sys.stderr); run()"
    args = ["plan", "--model", "qwen3-0.6b", "--gpus", "8", "--format", "json"]
    ran = subprocess.run(
        [sys.executable, "-c", code, *args], cwd=tmp_path, env=environment,
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert ran.stderr.splitlines()[0].startswith(str(site)), ran.stderr
    assert ran.returncode == 0, ran.stderr
    plan = json.loads(ran.stdout)
    assert plan["feasible"] > 0
    assert plan["candidates"][0]["layout"]["gbs"] > 0


def test_extras_are_those_of_the_design():
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {"fit", "trial", "gpu", "notebook", "dev", "real"} <= set(project["optional-dependencies"])
    runtime = " ".join(project["dependencies"])
    for heavy in ("torch", "pandas", "scipy", "matplotlib", "optuna"):
        assert heavy not in runtime
    assert project["name"] == "megatron-advisor"
    assert project["scripts"] == {"advisor": "advisor.cli.main:main"}
