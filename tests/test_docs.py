"""Documentation cannot lie: generated blocks are current, links lead somewhere, named files exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted(
    (ROOT / "docs").glob("*.md")
)
GENERATED = [page for page in PAGES if "[[[cog" in page.read_text(encoding="utf-8")]


@pytest.mark.parametrize("page", GENERATED, ids=lambda page: page.name)
def test_generated_blocks_are_current(page):
    command = [sys.executable, "-m", "cogapp", "--check", "--check-fail-msg", "run: make docs", "-I", "docs", str(page)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=ROOT)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_files_exist(page):
    named = re.findall(
        r"`((?:advisor|presets|profiles|tests|notebooks|docs)/[\w./-]*)`", page.read_text(encoding="utf-8")
    )
    for path in named:
        assert (ROOT / path).exists(), f"{page.name} names {path}"


def test_make_targets_that_pages_name_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        named = re.findall(r"^make ([a-z-]+)", text, re.M) + re.findall(r"`make ([a-z -]+)`", text)
        for target in " ".join(named).split():
            assert target in targets, f"{page.name} names make {target}"


def test_readme_has_the_reading_list_in_six_lines():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    section = text.split("## Start reading here")[1].split("\n## ")[0]
    assert len(re.findall(r"^\d\. ", section, re.M)) == 6


def test_no_machine_paths_in_the_repository():
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], capture_output=True, text=True, check=False, cwd=ROOT
    ).stdout.split("\0")
    if tracked == [""]:
        pytest.skip("not a git checkout")
    ours = re.compile("/work" + "/(?:main|shared)|/tmp" + "/(?:env|src|team)/")
    for name in tracked:
        path = ROOT / name
        if path.suffix in {".py", ".md", ".toml", ".yaml", ".json", ".ipynb", ""} and path.is_file():
            found = ours.search(path.read_text(encoding="utf-8", errors="replace"))
            assert not found, f"{name} names {found[0]}" if found else ""
