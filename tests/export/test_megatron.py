"""Megatron-LM flags: read back they are the same job, and every one is a flag of the real parser."""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path

import pytest
import yaml

from advisor.configure.chosen import Chosen
from advisor.errors import InputError
from advisor.export.megatron import BUFFER_FILE, flag_groups
from advisor.export.model_fields import model_facts, model_fields, unsupported
from advisor.export.subject import Subject, subject
from advisor.export.targets import export
from advisor.search.stages import balanced_split
from advisor.spec.layout import CpComm, Knobs
from advisor.spec.load.megatron import read_megatron_args
from advisor.spec.load.megatron.arguments import flags
from advisor.spec.load.model import load_model, model_names
from advisor.spec.model import Model
from advisor.spec.workload import Workload
from tests.export.plans import GOLDEN, golden_chosen, random_plans

ROUND_TRIPS = 200
INERT = {"max_position", "name", "family", "source", "notes", "mtp", "head_bias", "hyper_connections"}


@pytest.fixture(scope="module")
def candidates() -> list[Chosen]:
    return list(random_plans(ROUND_TRIPS))


def words_of(made: Subject, chosen: Chosen) -> list[tuple[str, ...]]:
    facts = model_facts(chosen.model, str(chosen.request.settings["model"].value))
    return [words for _, group in flag_groups(made, facts) for words in group]


def normal(knobs: Knobs, made: Subject) -> Knobs:
    """Knobs without those that do nothing in the layout, which no flag has to say."""
    layout = made.layout
    return dataclasses.replace(
        knobs,
        cp_comm=knobs.cp_comm if layout.cp > 1 else CpComm.p2p,
        overlap_p2p=knobs.overlap_p2p if layout.pp > 1 and layout.vpp > 1 else False,
    )


def without_caveats(model: Model) -> Model:
    """A model as flags can say it: queries and keys normed per head, no names and sources."""
    kinds = tuple(
        dataclasses.replace(kind, mixer=dataclasses.replace(kind.mixer, qk_norm="head"))
        if getattr(kind.mixer, "qk_norm", "") == "full" and hasattr(kind.mixer, "kv_heads")
        else kind
        for kind in model.kinds
    )
    return dataclasses.replace(
        model, kinds=kinds, name="", family="", source=(), notes=(), mtp=None, max_position=0, head_bias=False
    )


def test_read_back_gives_the_same_layout_knobs_and_model(candidates: list[Chosen], tmp_path: Path) -> None:
    path = tmp_path / "megatron_args.sh"
    assert len(candidates) >= ROUND_TRIPS
    for chosen in candidates:
        made = subject(chosen, "megatron-lm", "0.19")
        path.write_text(export(chosen, "megatron-lm")["megatron_args.sh"], encoding="utf-8")
        job = read_megatron_args(str(path))
        layout, knobs = job.layout(chosen.layout.gpus)
        expected = dataclasses.replace(
            made.layout, split=dataclasses.replace(made.layout.split, form=layout.split.form)
        )
        if not chosen.model.is_moe:
            expected = dataclasses.replace(expected, etp=layout.etp, edp=layout.edp)
        assert layout == expected
        assert normal(knobs, made) == normal(made.knobs, made)
        assert without_caveats(job.model) == without_caveats(chosen.model)
        assert job.workload.precision == chosen.workload.precision
        assert job.missing == ("gpus",)
        assert {one.rule for one in job.findings} <= {"megatron-args.routing"}


def test_the_random_candidates_are_varied(candidates: list[Chosen]) -> None:
    assert len({one.model.name for one in candidates}) > 8
    for name in ("recompute", "full_uniform", "dispatcher", "ep_overlap", "fsdp", "cuda_graph", "optimizer_offload",
                 "offload_layers", "offload_modules",
                 "moment_dtype", "grad_dtype", "overlap_p2p", "tp_overlap"):  # fmt: skip
        assert len({getattr(one.knobs, name) for one in candidates}) > 1, name
    assert len({one.layout.split.form for one in candidates}) > 1


def test_every_flag_is_one_of_the_real_parser_with_a_value_it_takes(candidates: list[Chosen]) -> None:
    known = flags()
    for chosen in candidates:
        for words in words_of(subject(chosen, "megatron-lm", "0.19"), chosen):
            flag = known[words[0].removeprefix("--")]
            given = words[1:]
            if flag.kind in ("on", "off"):
                assert not given, words
            elif flag.values != "many":
                assert len(given) == flag.values, words
            if flag.choices:
                assert {str(word) for word in given} <= {str(choice) for choice in flag.choices}, words


@pytest.mark.parametrize("name", GOLDEN)
def test_a_shell_sees_exactly_these_words(name: str, tmp_path: Path) -> None:
    chosen = golden_chosen(name, tmp_path)
    path = tmp_path / "args.sh"
    path.write_text(export(chosen, "megatron-lm")["megatron_args.sh"], encoding="utf-8")
    script = f'source {path} && printf "%s\\n" "${{MEGATRON_ARGS[@]}}"'
    seen = subprocess.run(["bash", "-euc", script], capture_output=True, text=True, check=True).stdout.splitlines()
    assert seen == [word for words in words_of(subject(chosen, "megatron-lm", None), chosen) for word in words]


def test_versions_differ_where_flags_do(tmp_path: Path) -> None:
    chosen = golden_chosen("deepseek-v3", tmp_path)
    old = export(chosen, "megatron-lm", "0.16")["megatron_args.sh"]
    new = export(chosen, "megatron-lm", "0.19")["megatron_args.sh"]
    assert "--cuda-graph-scope attn moe_router moe_preprocess" in old
    assert "--cuda-graph-modules attn moe_router moe_preprocess" in new


def test_user_buffers_go_along_as_a_file(tmp_path: Path) -> None:
    files = export(golden_chosen("llama3-70b", tmp_path), "megatron-lm")
    table = yaml.safe_load(files[BUFFER_FILE])
    assert f"--tp-comm-overlap-cfg {BUFFER_FILE}" in files["megatron_args.sh"]
    assert table["proj_fprop"] == {
        "method": "pipeline", "num_sm": 24, "cga_size": 2, "num_splits": 4, "set_sm_margin": True, "fp8_buf": False,
        "atomic_gemm": False,
    }  # fmt: skip


def test_every_model_preset_is_written_or_refused_with_a_reason() -> None:
    written = 0
    for name in model_names():
        model = load_model(name)
        facts = model_facts(model, name)
        if unsupported(model, facts):
            continue
        written += 1
        fields = model_fields(model, Workload(), facts)
        assert fields["num_layers"] == model.num_layers
        assert balanced_split(model, Workload(), 1, 1, 0) is not None
    assert written >= 40


@pytest.mark.parametrize("name", ["deepseek-v4-flash", "nemotron-h-8b", "gemma3-27b"])
def test_a_model_that_flags_cannot_say_is_refused(name: str, tmp_path: Path) -> None:
    chosen = golden_chosen("llama3-70b", tmp_path)
    model = load_model(name)
    odd = dataclasses.replace(chosen, request=chosen.request.replaced(model=model))
    with pytest.raises(InputError, match="cannot be written as flags"):
        export(odd, "megatron-lm")
