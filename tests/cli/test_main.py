"""Streams, exit codes and errors of the command, whatever the verb."""

import subprocess
import sys

import pytest

import advisor
from advisor.cli import main, render
from advisor.errors import AdvisorError, EnvironmentMissingError, InputError


def test_help_lists_every_verb_and_exit_code(cli):
    ran = cli("--help")
    assert ran.code == 0
    assert ran.err == ""
    for word in (*main.VERBS, "0 ", "1 ", "2 ", "3 ", "70 ", "130"):
        assert f"  {word}" in ran.out


def test_without_a_verb_help_goes_to_stderr(cli):
    ran = cli()
    assert (ran.code, ran.out) == (2, "")
    assert "plan" in ran.err


def test_version_tells_package_and_python(cli):
    ran = cli("--version")
    assert ran.code == 0
    assert f"advisor {advisor.__version__}" in ran.out
    assert f"python {sys.version_info[0]}.{sys.version_info[1]}." in ran.out


@pytest.mark.parametrize(
    ("args", "hint"),
    [
        (["plna"], "did you mean plan?"),
        (["plan", "--gpu", "64"], "did you mean --gpus"),
        (["models", "lst"], "did you mean list?"),
        (["plan", "--model", "minimax-m2", "--gpus", "64", "--format", "jsn"], "Did you mean 'json'?"),
        (["plan", "--gpus", "64", "extra"], "see advisor plan --help"),
        (["systems", "show", "dgx-h10"], "dgx-h100"),
        (["models", "show", "minimx-m2"], "minimax-m2"),
    ],
)
def test_wrong_words_get_the_closest(cli, args, hint):
    ran = cli(*args)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("error: ")
    assert ran.err.count("error:") == 1
    assert hint in ran.err


def failing(monkeypatch, problem):
    def fail(*_args, **_kwargs):
        raise problem

    monkeypatch.setattr(render, "show", fail)


@pytest.mark.parametrize(
    ("problem", "code", "said"),
    [
        (InputError("gbs=7 is not divisible", "use gbs=8"), 2, "error: gbs=7 is not divisible\n  fix: use gbs=8\n"),
        (EnvironmentMissingError("no torch"), 3, "error: no torch\n"),
        (AdvisorError("plain"), 2, "error: plain\n"),
        (KeyboardInterrupt(), 130, "error: interrupted\n"),
    ],
)
def test_errors_have_one_form_and_a_code(cli, monkeypatch, problem, code, said):
    failing(monkeypatch, problem)
    ran = cli("systems", "show", "h100")
    assert (ran.code, ran.out) == (code, "")
    assert ran.err.lstrip("\n") == said


def test_a_fault_is_one_line_and_says_how_to_report(cli, monkeypatch):
    failing(monkeypatch, ZeroDivisionError("division\nby zero " + "x" * 1000))
    ran = cli("systems", "show", "h100")
    assert (ran.code, ran.out) == (70, "")
    assert ran.err.startswith(
        "error: this is a fault of advisor, not of your input: ZeroDivisionError: division by zero"
    )
    assert "ADVISOR_TRACEBACK=1" in ran.err
    assert "Traceback" not in ran.err
    assert len(ran.err) < 500


def test_a_fault_can_be_seen_in_full(cli, monkeypatch):
    failing(monkeypatch, ZeroDivisionError("division"))
    monkeypatch.setenv("ADVISOR_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError):
        cli("systems", "show", "h100")


def test_colour_of_errors_follows_the_option(cli):
    args = ("systems", "show", "nothing-like-it")
    assert "\x1b[" in cli(*args, "--color", "always").err
    assert "\x1b[" not in cli(*args, "--color", "never").err
    assert "\x1b[" not in cli(*args).err


def test_variables_stand_in_for_output_options(cli, monkeypatch):
    monkeypatch.setenv("ADVISOR_FORMAT", "json")
    assert cli("systems", "show", "h100").out.startswith("{")
    assert not cli("systems", "show", "h100", "--format", "table").out.startswith("{")


def test_a_reader_that_stops_early_is_no_error():
    command = [sys.executable, "-m", "advisor", "models", "list", "--format", "json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        err = process.stderr.read()
        assert (process.wait(timeout=60), err) == (0, b"")


@pytest.mark.parametrize("command", [["-m", "advisor"], ["-c", "from advisor.cli.main import main; main()"]])
def test_module_and_entry_point_are_the_same(command):
    ran = subprocess.run(
        [sys.executable, *command, "--version"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith("advisor ")


def test_lists_of_presets(cli):
    import json

    models = json.loads(cli("models", "list", "--format", "json").out)["models"]
    assert {"minimax-m2", "deepseek-v3", "llama3-70b"} <= {model["name"] for model in models}
    systems = json.loads(cli("systems", "list", "--format", "json").out)["systems"]
    assert "dgx-h100" in {system["name"] for system in systems}
    assert len(cli("models", "list", "--format", "csv").out.splitlines()) == len(models) + 1
