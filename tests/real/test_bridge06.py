"""What only Bridge 0.6 has: MiniMax-M2 by its own bridge class, read from a configuration on disk."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from advisor.configure.chosen import Chosen
from advisor.export.model_fields import model_fields
from advisor.export.subject import subject
from advisor.export.targets import export
from tests.export.plans import golden_chosen
from tests.real.bridge_run import facts_of, run_snippet, settle
from tests.real.bridge_stack import VERSION, on_gpus, require_bridge

require_bridge()
pytestmark = [
    pytest.mark.bridge06,
    pytest.mark.bridge,
    pytest.mark.skipif(VERSION != "0.6", reason=f"Bridge {VERSION} has no bridge class of MiniMax-M2"),
]
# Left to the bridge class: how activations are fused, the router's own precision; the length is set by configure().
NOT_COMPARED = {"activation_func", "bias_activation_fusion", "moe_router_dtype", "max_position_embeddings"}


@pytest.fixture(scope="module")
def chosen(tmp_path_factory: pytest.TempPathFactory) -> Chosen:
    return golden_chosen("minimax-m2", tmp_path_factory.mktemp("plans"))


@pytest.fixture(scope="module")
def trained(chosen: Chosen) -> Any:
    """The container of the exported snippet as training would see it."""
    one = subject(chosen, "bridge", "0.6")
    module = run_snippet(export(chosen, "bridge", "0.6")["bridge_config.py"])
    with on_gpus(one.job):
        cfg = module.configure(module.recipe())
    return settle(cfg, one)


def test_the_snippet_reads_it_by_its_bridge_class(chosen: Chosen) -> None:
    text = export(chosen, "bridge", "0.6")["bridge_config.py"]
    assert 'AutoBridge.from_hf_pretrained("MiniMaxAI/MiniMax-M2")' in text
    assert "AutoBridge" not in export(chosen, "bridge", "0.3")["bridge_config.py"]


def test_its_provider_is_the_model_that_the_plan_priced(chosen: Chosen, trained: Any) -> None:
    provider = trained.model
    ours = model_fields(chosen.model, chosen.workload, facts_of(chosen))
    known = {one.name for one in fields(provider)} - NOT_COMPARED
    said = {name: list(value) if type(value) is tuple else value for name, value in ours.items() if name in known}
    assert len(said) > 20
    assert {name: getattr(provider, name) for name in said} == said
    assert provider.vocab_size == chosen.model.vocab_size
    assert provider.transformer_layer_spec.__name__ == "minimax_m2_layer_spec"


def test_it_is_trained_with_the_layout_of_the_plan(chosen: Chosen, trained: Any) -> None:
    layout = chosen.layout
    model = trained.model
    assert trained.data_parallel_size == layout.dp
    assert (model.tensor_model_parallel_size, model.pipeline_model_parallel_size) == (layout.tp, layout.pp)
    assert (model.expert_model_parallel_size, model.moe_flex_dispatcher_backend) == (16, "hybridep")
