"""Per-rank parameter counts against models that megatron-core 0.16.1 really builds: the difference must be 0."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

pytest.importorskip("megatron.core")

from advisor.cost.params import padded_vocab, stage_params, trained_params
from advisor.cost.stages import stage_of_rank
from advisor.spec.layout import Columns, Knobs, Layout, table
from advisor.spec.load.model import load_model
from advisor.spec.model import GroupedQueryAttention, Model
from advisor.spec.split import PipelineSplit
from advisor.spec.workload import Workload
from tests.real.megatron_model import Build, count

pytestmark = pytest.mark.real


@dataclass(frozen=True)
class Case:
    """A model and one rank of a layout. `layers` are the chunks in model order (None = even).

    `pipeline` tells Megatron the same in its own words. `rank` is global, in Megatron's order (tp, cp, dp, pp).
    """

    model: str
    rank: int
    world: int
    tp: int = 1
    pp: int = 1
    vpp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 1
    mtp_depth: int = 0
    mtp_chunk: int | None = None
    layers: tuple[int, ...] | None = None
    pipeline: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        sizes = " ".join(f"{name}{getattr(self, name)}" for name in ("tp", "pp", "vpp", "cp", "ep", "etp"))
        how = " ".join(name for name, value in self.pipeline.items() if value)
        mtp = f" mtp{self.mtp_depth}" if self.mtp_depth else ""
        return f"{self.model} {sizes}{mtp} {how} rank {self.rank}/{self.world}"

    @property
    def pp_rank(self) -> int:
        """Pipeline rank: the slowest dimension of Megatron's default order."""
        return self.rank // (self.world // self.pp)


ACCOUNT = {"account_for_embedding_in_pipeline_split": True, "account_for_loss_in_pipeline_split": True}


def first_last(first: int | None, last: int | None) -> dict[str, Any]:
    return {"num_layers_in_first_pipeline_stage": first, "num_layers_in_last_pipeline_stage": last}


def layout(text: str) -> dict[str, Any]:
    return {"pipeline_model_parallel_layout": text}


def ranks(case: Case, *numbers: int) -> list[Case]:
    """The same layout seen from several ranks."""
    return [replace(case, rank=number) for number in numbers]


LLAMA_405B = Case("llama3.1-405b", 0, 1024, tp=8, pp=16, vpp=8, layers=(0, *(1,) * 126, 0), pipeline=ACCOUNT)
QWEN_FIRST_LAST = Case("qwen3-235b-a22b", 0, 256, tp=4, pp=8, ep=32)
DEEPSEEK = Case("deepseek-v3", 0, 2048, tp=2, pp=8, vpp=4, ep=64)
DEEPSEEK_VPP = {"layers": (3, *(2,) * 29, 0, 0), "pipeline": layout("Et*3|(tt|)*29|L")}
DEEPSEEK_MTP = {"layers": (3, *(2,) * 29, 0, 0), "pipeline": layout("Et*3|(tt|)*29,m|L")}

CASES = [
    # even stages: first, middle, last
    *ranks(Case("llama3-70b", 0, 64, tp=8, pp=4), 0, 20, 63),
    *ranks(Case("mixtral-8x7b", 0, 64, tp=2, pp=4, ep=8), 0, 63),
    *ranks(Case("minimax-m3", 0, 256, tp=4, pp=4, ep=16), 0, 255),
    # virtual pipeline: all chunks of the rank
    *ranks(Case("llama3-70b", 0, 64, tp=8, pp=4, vpp=5), 0, 40, 63),
    *ranks(Case("qwen3-30b-a3b", 0, 64, tp=2, pp=4, vpp=3, ep=8), 0, 17, 63),
    # uneven stages: account_for_* flags, first and last counts, layout string
    *ranks(LLAMA_405B, 0, 512, 1023),
    *ranks(replace(QWEN_FIRST_LAST, layers=(*(12,) * 7, 10), pipeline=first_last(None, 10)), 0, 255),
    *ranks(replace(QWEN_FIRST_LAST, layers=(10, *(12,) * 7), pipeline=first_last(10, None)), 0, 128),
    *ranks(replace(QWEN_FIRST_LAST, layers=(11, *(12,) * 6, 11), pipeline=first_last(11, 11)), 0, 255),
    *ranks(replace(DEEPSEEK, **DEEPSEEK_VPP), 0, 300, 1500, 1800, 2047),
    # fewer key-value groups than tensor-parallel ranks
    Case("qwen3-235b-a22b", 5, 256, tp=8, ep=32),
    *ranks(Case("llama3.1-405b", 0, 256, tp=16, pp=2), 3, 255),
    # tensor-parallel experts
    Case("qwen2-57b-a14b", 5, 16, tp=4, ep=4, etp=2),
    Case("mixtral-8x22b", 17, 64, tp=4, pp=2, ep=4, etp=4),
    Case("mixtral-8x22b", 40, 64, tp=8, pp=2, ep=8, etp=2),
    Case("qwen3-30b-a3b", 3, 32, tp=8, ep=16, etp=2),
    # context parallelism changes nothing that a rank holds
    Case("llama3-8b", 3, 16, tp=4, cp=2),
    # shared experts, their gate, biases everywhere, attention sinks
    Case("qwen2-57b-a14b", 5, 16, tp=4, ep=8),
    Case("gpt-oss-20b", 1, 8, tp=2, ep=4),
    *ranks(Case("gpt-oss-120b", 0, 64, tp=4, pp=2, ep=16), 9, 60),
    *ranks(Case("glm-4.5-air", 0, 64, tp=4, pp=2, ep=16), 0, 63),
    # tied embeddings and learned positions
    Case("llama3.2-1b", 0, 8, tp=2),
    *ranks(Case("llama3.2-1b", 0, 8, tp=2, pp=4), 0, 3, 7),
    *ranks(Case("gpt3-175b", 0, 64, tp=8, pp=8), 0, 30, 63),
    # latent attention
    Case("deepseek-v2-lite", 3, 8, tp=2, ep=4),
    Case("deepseek-v3", 77, 2048, tp=2, ep=64),
    Case("kimi-k2", 0, 512, tp=2, ep=128),
    # multi-token prediction: on the last stage, before it, without pipelining, and with tied embeddings
    *ranks(Case("glm-4.5-air", 0, 64, tp=4, pp=2, ep=16, mtp_depth=1), 0, 63),
    *ranks(replace(DEEPSEEK, **DEEPSEEK_MTP, mtp_depth=1, mtp_chunk=30), 0, 1500, 1700, 2047),
    Case("deepseek-v3", 77, 2048, tp=2, ep=64, mtp_depth=2),
    Case("llama3.2-1b", 0, 8, tp=2, mtp_depth=1),
    *ranks(Case("llama3.2-1b", 0, 8, tp=2, pp=4, mtp_depth=1), 0, 7),
]


def columns_of(case: Case, model: Model) -> Columns:
    dp = case.world // (case.tp * case.cp * case.pp)
    layers = case.layers or (model.num_layers // (case.pp * case.vpp),) * (case.pp * case.vpp)
    assert sum(layers) == model.num_layers
    layout = Layout(
        tp=case.tp,
        pp=case.pp,
        vpp=case.vpp,
        cp=case.cp,
        ep=case.ep,
        etp=case.etp,
        dp=dp,
        edp=case.world // (case.etp * case.ep * case.pp),
        mbs=1,
        gbs=dp * case.pp * 4,
        sp=case.tp > 1,
        split=PipelineSplit(case.pp, case.vpp, layers, mtp_chunk=case.mtp_chunk),
    )
    return table([layout], [Knobs()])


def predicted(case: Case, model: Model) -> tuple[int, int, int]:
    """(not routed experts, routed experts, padded vocabulary) of the planner for the rank of `case`."""
    columns, workload = columns_of(case, model), Workload(mtp_depth=case.mtp_depth)
    stage = stage_of_rank(model, columns, case.mtp_depth, case.pp_rank)
    params = stage_params(model, workload, columns, stage)
    return int(params.dense[0]), int(params.expert[0]), int(padded_vocab(model, workload, columns)[0])


def build_of(case: Case, vocab: int) -> Build:
    names = ("rank", "world", "tp", "pp", "vpp", "cp", "ep", "etp", "mtp_depth", "pipeline")
    return Build(vocab=vocab, **{name: getattr(case, name) for name in names})


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rank_holds_what_megatron_builds(case):
    model = load_model(case.model)
    dense, expert, vocab = predicted(case, model)
    assert (dense, expert) == count(model, build_of(case, vocab))


ANCHORS = [
    (Case("llama3-70b", 0, 64, tp=8, pp=4), 2_270_756_864),
    (Case("llama3-70b", 40, 64, tp=8, pp=4, vpp=5), 2_139_422_720),
    (Case("mixtral-8x7b", 63, 64, tp=2, pp=4, ep=8), 1_642_926_080),
    (Case("qwen3-235b-a22b", 0, 256, tp=2, ep=8), 32_410_709_504),
]


@pytest.mark.parametrize(("case", "expected"), ANCHORS, ids=str)
def test_unpadded_counts_recorded_earlier(case, expected):
    """Counts of an earlier, independent run with the unpadded vocabulary."""
    assert sum(count(load_model(case.model), build_of(case, load_model(case.model).vocab_size))) == expected


def test_latent_down_projections_are_whole_on_every_rank():
    """The trap: the local specification splits them over tp, the one of Transformer Engine (planned) does not."""
    case = Case("deepseek-v3", 77, 2048, tp=2, ep=64)
    model = load_model(case.model)
    vocab = model.vocab_size
    with_engine, local = build_of(case, vocab), replace(build_of(case, vocab), duplicated=False)
    assert sum(count(model, local)) == 18_829_859_840
    assert sum(count(model, with_engine)) == 19_291_593_728
    dense, expert, padded = predicted(case, model)
    assert padded == vocab
    assert dense + expert == 19_291_593_728


def test_whole_model_in_one_rank_is_the_sum_of_all_ranks():
    model = load_model("qwen3-8b")
    assert sum(count(model, Build(rank=0, world=1))) == trained_params(model)


def test_full_width_query_norm_is_not_megatrons():
    """MiniMax-M2 norms the whole projection; without that norm (which Bridge adds) the rest is Megatron's."""
    model = load_model("minimax-m2")
    plain = tuple(
        replace(kind, mixer=replace(kind.mixer, qk_norm="none"))
        for kind in model.kinds
        if isinstance(kind.mixer, GroupedQueryAttention)
    )
    model = replace(model, kinds=plain, mtp=None)
    case = Case("minimax-m2", 9, 64, tp=2, ep=32)
    dense, expert, vocab = predicted(case, model)
    assert (dense, expert) == count(model, build_of(case, vocab))
