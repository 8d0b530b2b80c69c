import csv
import io
import json
import stat

import pytest

from advisor.cli import render
from advisor.cli.document import Bars, Column, Document, Facts, Line, Table
from advisor.errors import InputError

TABLE = Table(
    "sizes",
    (Column("what", "name"), Column("GiB\nof 80"), Column("said", "text")),
    (("weights", "12.5", "a|b"), ("optimizer\nof Adam", "1\u202f250", "-")),
    marked=0,
)
RECORD = {"schema_version": 1, "value": None}
DOCUMENT = Document(
    (
        Line("title", "heading"),
        Line("out of memory", "bad"),
        Facts("request", (("model", "m2", "flag"), ("gbs", "512", "default"))),
        TABLE,
        Bars("memory", "GiB", 80.0, (("weights", 20.0, "datasheet"), ("free", 60.0, "left"))),
    ),
    RECORD,
    [
        {"rank": 1, "layout": {"tp": 2}, "recompute": ["moe_act", "mlp"], "none": None},
        {"rank": 2, "extra": 0.1, "stages": [{"a": 1}]},
    ],
    ("next: advisor why",),
)


def show(capsys, **output):
    render.show(DOCUMENT, render.Output(**output))
    return capsys.readouterr()


def test_text_page(golden):
    golden("render.txt", render.table_text(DOCUMENT.blocks, None) + "\n")


def test_markdown_page(capsys, golden):
    golden("render.md", show(capsys, form="md").out)


def test_json_is_json_only_and_hints_go_to_stderr(capsys):
    out, err = show(capsys, form="json")
    assert json.loads(out) == RECORD
    assert err == "next: advisor why\n"
    assert show(capsys, quiet=True).err == ""


def test_json_never_has_nan(capsys):
    bad = Document((), {"x": float("nan")}, [])
    with pytest.raises(ValueError, match="JSON"):
        render.show(bad, render.Output("json"))


def test_csv_is_flat_and_in_full(capsys):
    rows = list(csv.DictReader(io.StringIO(show(capsys, form="csv").out)))
    assert rows[0] == {"rank": "1", "layout.tp": "2", "recompute": "moe_act+mlp", "none": "", "extra": "", "stages": ""}
    assert rows[1]["extra"] == "0.1"
    assert json.loads(rows[1]["stages"]) == [{"a": 1}]


@pytest.mark.parametrize(
    ("environment", "mode", "escapes"),
    [
        ({}, "auto", False),
        ({"FORCE_COLOR": "1"}, "auto", True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, "auto", False),
        ({"NO_COLOR": "1"}, "always", True),
        ({"FORCE_COLOR": "1"}, "never", False),
        ({"NO_COLOR": ""}, "auto", False),
    ],
)
def test_colour(capsys, monkeypatch, environment, mode, escapes):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    render.choose_color(mode)
    try:
        out, err = show(capsys)
        render.error("bad", "good")
        assert ("\x1b[" in out, "\x1b[" in err, "\x1b[" in capsys.readouterr().err) == (escapes, escapes, escapes)
    finally:
        render.choose_color("auto")


def test_colour_changes_no_character(capsys):
    plain = show(capsys).out
    render.choose_color("always")
    try:
        colored = show(capsys).out
    finally:
        render.choose_color("auto")
    import re

    stripped = re.sub(r"\x1b\[[0-9;]*m", "", colored)
    assert [line.rstrip() for line in stripped.splitlines()] == plain.splitlines()


def test_lines_keep_to_the_width(capsys):
    long = Table("", (Column("name", "name"), Column("text", "text")), (("x", "word " * 100),))
    text = render.table_text((long,), None)
    assert max(map(len, text.splitlines())) <= render.WIDTH


def test_numbers_are_not_broken_at_line_ends():
    text = render.table_text((Line(", ".join(f"rule-{n} 1\u202f234\u202f567" for n in range(30))),), None)
    assert text.count("1\u202f234\u202f567") == 30
    assert len(text.splitlines()) > 2


@pytest.mark.parametrize("suffix", [".json", ".csv", ".md", ".txt"])
def test_out_follows_the_suffix_and_stdout_the_format(capsys, tmp_path, suffix):
    path = tmp_path / f"plan{suffix}"
    out = show(capsys, form="table", out=path).out
    assert out == show(capsys, form="table").out
    assert path.read_text() == show(capsys, form=render.SUFFIXES[suffix]).out
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    assert stat.S_IMODE(path.stat().st_mode) & 0o044 == 0o044


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "plan.json"
    path.write_text("old")

    def full(*_args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(render.os, "replace", full)
    with pytest.raises(InputError, match="No space left"):
        render.write_atomically(path, "new")
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan.json"]


def test_a_terminal_without_the_characters_still_gets_the_page(monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(render.sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    render.plain("1\u202f250 GiB ███ ✓")
    render.sys.stdout.flush()
    assert raw.getvalue() == b"1 250 GiB ### *\n"
