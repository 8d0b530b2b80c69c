"""Whatever is typed or found in a file: one error, exit 2, no traceback, nothing on stdout."""

from __future__ import annotations

import random

import pytest

PLAN = ("plan", "--model", "qwen3-0.6b", "--gpus", "8")
ESTIMATE = ("estimate", "--model", "qwen3-0.6b", "--gpus", "8", "--tp", "1")
WHY = ("why", "--model", "qwen3-0.6b", "--gpus", "8", "--tp", "1")


def refused(ran):
    assert ran.code == 2, (ran.code, ran.err)
    assert ran.out == ""
    assert ran.err.startswith("error: "), ran.err
    assert ran.err.count("error: ") == 1
    assert "Traceback" not in ran.err
    assert len(ran.err) < 4000


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("plan", "--model", "minimx-m2", "--gpus", "64"), "minimax-m2"),
        (("plan", "--model", "zzzzqqqq", "--gpus", "64"), "models list"),
        (("plan", "--model", "", "--gpus", "64"), "config.json"),
        (("plan", "--model", "minimax-m2"), "--gpus"),
        (("plan", "--gpus", "64"), "model"),
        (("plan", "--model", "minimax-m2", "--gpus", "12"), "16"),
        (("plan", "--model", "minimax-m2", "--gpus", "0"), "gpus"),
        (("plan", "--model", "minimax-m2", "--gpus", "-64"), "gpus"),
        (("plan", "--model", "minimax-m2", "--gpus", "nan"), "gpus"),
        ((*PLAN, "--system", "dgx-h10"), "dgx-h100"),
        ((*PLAN, "--precision", "fp9"), "fp8"),
        ((*PLAN, "--fix", "tq=2"), "tp"),
        ((*PLAN, "--fix", "tp"), "field=value"),
        ((*PLAN, "--allow", "grad-bf15"), "grad-bf16"),
        ((*PLAN, "--headroom", "nan%"), "headroom"),
        ((*PLAN, "--headroom", "100%"), "headroom"),
        ((*PLAN, "--headroom", "-8%"), "headroom"),
        ((*PLAN, "--objective", "speed"), "throughput"),
        ((*PLAN, "--gbs", "scaled"), "gbs"),
        ((*ESTIMATE, "--recompute", "moe_acts"), "moe_act"),
        ((*ESTIMATE, "--pipeline-layout", "Et*(((|L"), "pipeline"),
        (("estimate",), "model"),
        (("estimate", "--model", "qwen3-0.6b"), "gpus"),
        (("estimate", "--model", "qwen3-0.6b", "--gpus", "64,128"), "gpus"),
    ],
)
def test_what_is_wrong_is_named(cli, args, said):
    ran = cli(*args)
    refused(ran)
    assert said.lower() in ran.err.lower()


NUMBERS = ("nan", "inf", "-inf", "-1", "1e400", "9" * 60, "1.5", "0x10", "", "many", "½", "１２x")
PLAN_NUMBERS = ("seq-len", "gbs", "router-skew", "capacity-factor", "mtp-depth", "vocab-size", "vocab-divisor",
                "used-per-domain", "oversubscription", "usable-gib", "top", "target-tokens-per-s")  # fmt: skip
LAYOUT_NUMBERS = ("tp", "pp", "vpp", "cp", "ep", "etp", "mbs", "gbs", "batch", "context", "optimizer-offload",
                  "optimizer-instances")  # fmt: skip
FRACTIONS = {"router-skew", "capacity-factor", "oversubscription", "usable-gib", "target-tokens-per-s"}


@pytest.mark.parametrize("option", PLAN_NUMBERS)
def test_numbers_of_a_plan(cli, option):
    for number in NUMBERS:
        if number == "1.5" and option in FRACTIONS:
            continue
        refused(cli(*PLAN, f"--{option}", number))


@pytest.mark.parametrize("option", LAYOUT_NUMBERS)
def test_numbers_of_an_estimate(cli, option):
    for number in NUMBERS:
        refused(cli(*ESTIMATE, f"--{option}", number))


WORDS = ("dispatcher", "cuda-graph", "cp-comm", "fsdp", "grad-dtype", "moment-dtype", "mode", "routing", "task",
         "optimizer", "attention-impl", "rank-order", "recompute")  # fmt: skip


@pytest.mark.parametrize("option", WORDS)
def test_words_of_an_estimate(cli, option):
    for word in ("nonsense", "None,,", "\x00", "a" * 10_000, "💥", "../../etc"):
        refused(cli(*ESTIMATE, f"--{option}={word}"))


@pytest.mark.parametrize("verb", [PLAN, ESTIMATE, WHY])
@pytest.mark.parametrize("gpus", ["9", "12", "1000001", "9" * 30])
def test_gpus_that_fill_no_node(cli, verb, gpus):
    refused(cli(*verb[:4], gpus, *verb[5:]))


def files(tmp_path):
    """Files that no reader should accept, and paths that are no files."""
    noise = random.Random(7)
    contents = {
        "empty": b"",
        "binary": bytes(noise.randrange(256) for _ in range(4096)),
        "zeros": bytes(1000),
        "broken": b"{a: [1, 2\n b: }\n",
        "list": b"[1, 2, 3]\n",
        "number": b"12\n",
        "text": b"just some words\n",
        "deep": b"[" * 100_000,
        "bomb": b"a: &a [x,x,x]\nb: &b [*a,*a,*a]\nc: [*b,*b,*b]\n",
        "python": b"!!python/object/apply:os.system ['true']\n",
        "latin": "größe: 1".encode("latin-1"),
        "nan": b'{"model_type": "llama", "hidden_size": NaN, "num_hidden_layers": -1, "vocab_size": 1e999}',
        "huge": b'{"model_type": "llama", "hidden_size": ' + b"9" * 400 + b', "num_hidden_layers": 2, "vocab_size": 8}',
        "strings": b'{"model_type": ["llama"], "hidden_size": "big", "gpu": {"a": 1}, "gpus_per_node": "eight"}',
        "unknown": b'{"model_type": "no-such-architecture", "gpu": "no-such-gpu"}',
    }
    for name, content in contents.items():
        for suffix in (".json", ".yaml"):
            (tmp_path / f"{name}{suffix}").write_bytes(content)
    return [*sorted(tmp_path.iterdir()), tmp_path, tmp_path / "missing.json", tmp_path / "missing.yaml"]


@pytest.mark.parametrize("option", ["--model", "--system", "--megatron-args", "models show", "systems show"])
def test_files_that_are_no_such_thing(cli, tmp_path, option):
    for path in files(tmp_path):
        if option.endswith("show"):
            ran = cli(*option.split(), str(path))
        elif option == "--megatron-args":
            ran = cli("estimate", option, str(path), "--gpus", "8", "--system", "h100")
        elif option == "--model":
            ran = cli("plan", option, str(path), "--gpus", "8")
        else:
            ran = cli(*ESTIMATE, option, str(path))
        refused(ran)


@pytest.mark.parametrize("value", ["a\x00b", "x" * 5000, "/" * 5000, "💥", "-", ".", "..", "/", "/dev/null", " "])
def test_names_that_are_no_names(cli, value):
    for args in (
        ("plan", f"--model={value}", "--gpus", "8"),
        (*ESTIMATE, f"--system={value}"),
        ("estimate", f"--megatron-args={value}", "--gpus", "8"),
        (*ESTIMATE, f"--out={value}"),
        ("models", "show", "--", value),
        ("systems", "show", "--", value),
    ):
        refused(cli(*args))


@pytest.mark.parametrize("content", [b"system = ", b"\xff\xfe", b'sistem = "dgx-h100"', b"gbs = nan", b"tp = [1]"])
def test_broken_settings_files(cli, tmp_path, monkeypatch, content):
    (tmp_path / "advisor.toml").write_bytes(content)
    monkeypatch.chdir(tmp_path)
    refused(cli(*ESTIMATE[:-2]))


@pytest.mark.parametrize(("name", "value"), [("GBS", "-3"), ("SYSTEM", "h1000"), ("TP", "two"), ("FORMAT", "xml")])
def test_broken_variables(cli, monkeypatch, name, value):
    monkeypatch.setenv(f"ADVISOR_{name}", value)
    refused(cli(*ESTIMATE[:-2]))


def test_a_batch_that_does_not_divide_is_a_verdict_with_a_fix(cli):
    ran = cli("estimate", "--model", "qwen3-0.6b", "--gpus", "8", "--tp", "1", "--gbs", "13")
    assert ran.code == 1
    assert "13" in ran.out
    assert ran.err.count("error: ") == 0
