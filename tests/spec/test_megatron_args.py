"""What Megatron-LM arguments mean, in every form that people keep them in."""

from pathlib import Path
from typing import Any

import pytest

from advisor.errors import InputError
from advisor.spec.layout import CpComm, CudaGraph, Dispatcher, Fsdp
from advisor.spec.load.megatron import MegatronJob, read_megatron_args
from advisor.spec.model import (
    DeltaNet,
    DenseMlp,
    ExpertMlp,
    GroupedQueryAttention,
    LatentAttention,
    Mamba,
    MultiTokenPrediction,
)

DATA = Path(__file__).parent / "data"
DENSE: dict[str, Any] = {
    "num-layers": 8,
    "hidden-size": 1024,
    "num-attention-heads": 16,
    "seq-length": 2048,
    "max-position-embeddings": 2048,
    "micro-batch-size": 2,
    "global-batch-size": 64,
    "vocab-size": 32000,
    "bf16": True,
}


def job(**more: Any) -> MegatronJob:
    """A small dense job with some arguments changed; underscores stand for dashes, None removes one."""
    arguments = DENSE | {key.replace("_", "-"): value for key, value in more.items()}
    return read_megatron_args({key: value for key, value in arguments.items() if value is not None})


def test_launch_script_is_followed_without_running_it():
    read = read_megatron_args(DATA / "pretrain_moe.sh")
    assert read.layout_request == {
        "tp": 2, "pp": 4, "vpp": 1, "cp": 1, "ep": 8, "etp": 1, "mbs": 1, "gbs": 256, "sp": True,
    }  # fmt: skip
    assert read.gpus == 32
    assert read.model.hidden == 4096
    assert [type(kind.mlp) for kind in read.model.kinds] == [ExpertMlp, DenseMlp]
    assert read.model.pattern == (0,) * 16 + (1,) * 16
    assert read.model.kinds[1].mlp == DenseMlp(ffn=14336, gated=True, bias=False)
    assert read.knobs.recompute == ("core_attn", "moe_act")
    assert read.workload.attention_impl == "unfused"  # both fused backends are switched off by the exports
    assert read.missing == ("vocab_size",)
    assert "--lr" in read.ignored
    assert "--data-path" in read.ignored
    layout, knobs = read.layout()
    assert (layout.dp, layout.edp, layout.num_microbatches, layout.gpus) == (4, 1, 64, 32)
    assert knobs.dispatcher is Dispatcher.alltoall


def test_recipe_yaml_with_environment():
    read = read_megatron_args(DATA / "recipe.yaml")
    attention = read.model.kinds[0].mixer
    assert attention == LatentAttention(32, 1536, 512, qk_nope_dim=128, qk_rope_dim=64, v_head_dim=128, qk_norm="full")
    expert = read.model.kinds[1].mlp
    assert isinstance(expert, ExpertMlp)
    assert (expert.experts, expert.topk, expert.ffn, expert.shared_ffn) == (32, 4, 512, 512)
    assert (expert.groups, expert.group_topk) == (4, 2)
    assert read.model.mtp == MultiTokenPrediction(depth=1, layers=(1,))
    assert read.workload.mtp_depth == 1
    assert read.split.layers == (3, 2, 2, 2, 2, 2, 2, 0)
    assert (read.split.vpp, read.split.mtp_chunk, read.split.form) == (4, 7, "layout")
    assert read.knobs.recompute == ("moe_act", "layernorm", "mla_up_proj", "mlp")
    assert read.knobs.dispatcher is Dispatcher.hybridep
    assert read.workload.precision.name == "fp8-blockwise"
    assert read.workload.attention_impl == "unfused"
    assert read.missing == ("gpus",)


@pytest.mark.parametrize(
    "text",
    [
        "--num-layers 8 --hidden-size 1024\n--num-attention-heads 16\n--seq-length=2048 --micro-batch-size 2 --bf16\n",
        'ARGS="--num-layers 8 --hidden-size 1024 --num-attention-heads 16 '
        '--seq-length 2048 --micro-batch-size 2 --bf16"',
        'cmd="python pretrain_gpt.py --num-layers 8 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 '
        '--micro-batch-size 2 --bf16"\nsrun bash -c "$cmd"\n',
        "A=(--num-layers 8 --hidden-size 1024)\nA+=(--num-attention-heads 16 --seq-length 2048 --micro-batch-size 2)\n"
        "python -u pretrain_gpt.py ${A[@]} --bf16 # --fp16\n",
        '{"num_layers": 8, "hidden_size": 1024, "num_attention_heads": 16, "seq_length": 2048, "micro_batch_size": 2, '
        '"bf16": true, "fp16": false}',
    ],
)
def test_forms_of_the_same_arguments(tmp_path: Path, text: str):
    file = tmp_path / "arguments"
    file.write_text(text)
    read = read_megatron_args(file, vocab_size=32000)
    assert (read.model.num_layers, read.model.hidden, read.workload.seq_len) == (8, 1024, 2048)
    assert read.workload.precision.name == "bf16"
    assert read.layout_request["mbs"] == 2
    assert read.missing == ("vocab_size", "gpus", "global_batch_size")
    assert read.layout(4)[0].gbs == 8  # one microbatch per data-parallel rank, as Megatron


def test_defaults_are_megatrons():
    read = job()
    mixer, mlp = read.model.kinds[0].mixer, read.model.kinds[0].mlp
    assert mixer == GroupedQueryAttention(16, 16, 64, 64, qkv_bias=True, out_bias=True)
    assert mlp == DenseMlp(ffn=4096, gated=False, bias=True)
    assert read.model.position_embeddings == 2048
    assert read.model.tied_embeddings
    assert (read.model.norm, read.model.norm_bias) == ("layer", True)
    assert (read.workload.attention_dropout, read.workload.hidden_dropout) == (0.1, 0.1)
    assert not read.workload.cross_entropy_fused
    assert (read.knobs.grad_dtype, read.knobs.distributed_optimizer) == ("fp32", False)
    assert not read.knobs.overlap_grad_reduce
    assert read.knobs.dispatcher is Dispatcher.none
    assert job(num_experts=8).knobs.dispatcher is Dispatcher.allgather
    assert job(tensor_model_parallel_size=4).layout_request["etp"] == 4
    assert not job(sequence_parallel=True).layout_request["sp"]  # Megatron switches it off at TP 1


@pytest.mark.parametrize(
    ("arguments", "path", "expected"),
    [
        ({"swiglu": True}, "model.kinds.0.mlp", DenseMlp(ffn=2688, gated=True, bias=True)),
        ({"squared_relu": True}, "model.kinds.0.mlp.gated", False),
        ({"kv_channels": 128}, "model.kinds.0.mixer.head_dim", 128),
        ({"qk_layernorm": True}, "model.kinds.0.mixer.qk_norm", "head"),
        ({"attention_output_gate": True}, "model.kinds.0.mixer.output_gate", True),
        ({"softmax_type": "learnable"}, "model.kinds.0.mixer.sinks", True),
        ({"window_size": "(127,0)"}, "model.kinds.0.mixer.window", 128),
        ({"window_size": "127,0", "window_attn_skip_freq": 4}, "model.pattern", (0, 0, 0, 1, 0, 0, 0, 1)),
        ({"position_embedding_type": "rope"}, "model.position_embeddings", 0),
        ({"num_experts": 4, "moe_layer_freq": 2}, "model.pattern", (0, 1, 0, 1, 0, 1, 0, 1)),
        ({"num_experts": 4, "moe_layer_freq": "([0]*2+[1]*2)*2"}, "model.pattern", (0, 0, 1, 1, 0, 0, 1, 1)),
        ({"num_experts": 4, "moe_latent_size": 256}, "model.kinds.0.mlp.latent", 256),
        ({"vocab_extra_ids": 100}, "model.vocab_size", 32100),
        ({"make_vocab_size_divisible_by": 64}, "workload.vocab_divisor", 64),
        ({"padded_vocab_size": 32768}, "workload.vocab_divisor", 1),
        ({"fp8_format": "hybrid"}, "workload.precision.name", "fp8-delayed"),
        ({"fp8_format": "hybrid", "fp8_recipe": "tensorwise"}, "workload.precision.name", "fp8-current"),
        ({"fp8_format": "e4m3", "fp8_recipe": "mxfp8", "fp8_param_gather": True}, "workload.fp8_params", True),
        ({"fp4_format": "e2m1"}, "workload.precision.name", "nvfp4"),
        ({"attention_backend": "unfused"}, "workload.attention_impl", "unfused"),
        ({"transformer_impl": "local"}, "workload.norm_impl", "fused"),
        ({"transformer_impl": "local", "normalization": "RMSNorm"}, "workload.norm_impl", "unfused"),
        ({"transformer_impl": "local"}, "workload.attention_impl", "unfused"),
        ({"no_gradient_accumulation_fusion": True}, "workload.grad_accumulation_fused", False),
        ({"gradient_accumulation_fusion": False}, "workload.grad_accumulation_fused", False),
        ({"optimizer": "dist_muon"}, "workload.optimizer", "muon"),
        ({"optimizer": "dist_muon"}, "knobs.distributed_optimizer", True),
        ({"moe_expert_capacity_factor": 1.5, "num_experts": 4}, "workload.routing", "token-drop"),
        ({"grad_reduce_in_bf16": True}, "knobs.grad_dtype", "bf16"),
        ({"bf16": False, "fp16": True}, "knobs.grad_dtype", "fp16"),
        ({"bf16": False}, "workload.precision.name", "fp32"),
        ({"exp_avg_dtype": "bf16"}, "knobs.moment_dtype", "fp32"),
        ({"exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16", "use_precision_aware_optimizer": True},
         "knobs.moment_dtype", "bf16"),
        ({"optimizer_cpu_offload": True, "optimizer_offload_fraction": 0.5}, "knobs.optimizer_offload", 0.5),
        ({"use_megatron_fsdp": True}, "knobs.fsdp", Fsdp.optim_grads_params),
        ({"use_megatron_fsdp": True, "data_parallel_sharding_strategy": "optim"}, "knobs.fsdp", Fsdp.optim),
        ({"data_parallel_sharding_strategy": "optim"}, "knobs.fsdp", Fsdp.none),
        ({"cuda_graph_impl": "full_iteration"}, "knobs.cuda_graph", CudaGraph.full_iteration),
        ({"cuda_graph_impl": "transformer_engine"}, "knobs.cuda_graph", CudaGraph.scoped),
        ({"cp_comm_type": "a2a"}, "knobs.cp_comm", CpComm.a2a),
        ({"recompute_activations": True}, "knobs.recompute", ("core_attn",)),
        ({"recompute_granularity": "selective"}, "knobs.recompute", ("core_attn",)),
        ({"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 2},
         "knobs.full_block", 2),
        ({"num_experts": 4, "moe_token_dispatcher_type": "flex"}, "knobs.dispatcher", Dispatcher.deepep),
        ({"use_tp_pp_dp_mapping": True}, "rank_order", "tp-cp-ep-pp-dp"),
        ({"step_batch_size_schedule": "0:384 200B:768", "global_batch_size": None}, "layout_request.gbs", 384),
    ],
)  # fmt: skip
def test_one_argument_at_a_time(arguments: dict[str, Any], path: str, expected: Any):
    found: Any = job(**arguments)
    for name in path.split("."):
        if name.isdigit():
            found = found[int(name)]
        elif hasattr(found, name):
            found = getattr(found, name)
        else:
            found = found[name]
    assert found == expected


@pytest.mark.parametrize(
    ("arguments", "layers", "form"),
    [
        ({"pipeline_model_parallel_size": 4}, (2, 2, 2, 2), "even"),
        ({"pipeline_model_parallel_size": 2, "num_layers_per_virtual_pipeline_stage": 2}, (2, 2, 2, 2), "even"),
        ({"pipeline_model_parallel_size": 2, "num_virtual_stages_per_pipeline_rank": 4}, (1,) * 8, "even"),
        ({"pipeline_model_parallel_size": 3, "account_for_loss_in_pipeline_split": True}, (3, 3, 2), "account"),
        ({"pipeline_model_parallel_size": 5, "account_for_loss_in_pipeline_split": True,
          "account_for_embedding_in_pipeline_split": True}, (1, 2, 2, 2, 1), "account"),
        ({"pipeline_model_parallel_size": 3, "decoder_first_pipeline_num_layers": 2}, (2, 3, 3), "uneven"),
        ({"pipeline_model_parallel_size": 2, "decoder_first_pipeline_num_layers": 2,
          "num_virtual_stages_per_pipeline_rank": 2}, (1, 3, 1, 3), "uneven"),
        ({"pipeline_model_parallel_size": 2, "pipeline_model_parallel_layout": "Et*5|t*3L"}, (5, 3), "layout"),
        ({"pipeline_model_parallel_size": 2, "pipeline_model_parallel_layout": "E|t|(tt|)*3tL"},
         (0, 1, 2, 2, 2, 1), "layout"),
    ],
)  # fmt: skip
def test_pipeline_splits(arguments: dict[str, Any], layers: tuple[int, ...], form: str):
    split = job(**arguments).split
    assert (split.layers, split.form) == (layers, form)
    assert sum(split.layers) == 8


def test_microbatch_group_of_interleaving():
    read = job(pipeline_model_parallel_size=2, num_virtual_stages_per_pipeline_rank=2,
               microbatch_group_size_per_virtual_pipeline_stage=3)  # fmt: skip
    assert read.split.group == 3
    with pytest.raises(InputError, match="it must be 2 or more"):
        job(pipeline_model_parallel_size=2, num_virtual_stages_per_pipeline_rank=2,
            microbatch_group_size_per_virtual_pipeline_stage=1)  # fmt: skip


def test_hybrid_model_with_prediction_modules():
    read = job(
        hybrid_layer_pattern="MEM*|EMG-/*E/*E",
        pipeline_model_parallel_size=2,
        num_experts=8,
        moe_ffn_hidden_size=256,
        mamba_num_heads=8,
        mamba_state_dim=64,
        mtp_use_repeated_layer=True,
        num_layers=None,
        position_embedding_type="none",
    )
    assert read.model.is_hybrid
    assert [kind.norms for kind in read.model.kinds] == [1] * 5
    assert read.model.kinds[0].mixer == Mamba(heads=8, head_dim=64, state=64, groups=8, conv=4)
    assert any(isinstance(kind.mixer, DeltaNet) for kind in read.model.kinds)
    assert read.model.pattern == (0, 1, 0, 2, 1, 0, 3, 4)
    assert read.model.mtp == MultiTokenPrediction(depth=2, layers=(2, 1), repeated=True)
    assert (read.split.layers, read.split.form) == ((4, 4), "pattern")
    assert job(hybrid_override_pattern="M-*-", num_layers=4).model.num_layers == 4


def test_grids_and_batch():
    read = job(tensor_model_parallel_size=2, context_parallel_size=3, seq_length=1536, num_experts=8,
               expert_model_parallel_size=4, expert_tensor_parallel_size=1, global_batch_size=48)  # fmt: skip
    assert read.smallest_world == 12
    layout, _ = read.layout(12)
    assert (layout.dp, layout.edp) == (2, 3)
    with pytest.raises(InputError, match=r"8 GPUs do not fit .* = 12") as wrong:
        read.layout(8)
    assert wrong.value.hint == "use 12 GPUs"
    with pytest.raises(InputError, match="not a multiple of micro batch 2 x data parallel 10"):
        read.layout(60)
    with pytest.raises(InputError, match="do not state the number of GPUs"):
        read.layout()


def test_unknown_flags_are_reported_with_the_closest_one():
    read = job(**{"no-rope-fussion": True, "my-own-thing": 3, "switched-off-thing": False})
    messages = {finding.message: finding.fix for finding in read.findings}
    assert (
        messages["--no-rope-fussion is no flag of Megatron-LM and is left out of the estimate"] == "--no-rope-fusion?"
    )
    assert any(message.startswith("--my-own-thing") for message in messages)
    assert not any("switched-off" in message for message in messages)


def test_wrong_value_without_effect_is_a_finding_only():
    read = job(**{"async-strategy": "of-a-later-version", "lr": "fast"})
    assert [finding.rule for finding in read.findings] == ["megatron-args.value"] * 2
    assert read.findings[1].message == "--lr is 'fast': a number is needed"


def test_what_is_not_counted_is_said_and_not_called_ignored():
    read = job(fp32_residual_connection=True, log_interval=1)
    assert [finding.rule for finding in read.findings] == ["megatron-args.not-counted"]
    assert read.ignored == ("--log-interval",)


def test_routing_that_is_not_forced_to_balance_is_said():
    free, forced = job(num_experts=8), job(num_experts=8, moe_router_force_load_balancing=True)
    assert (free.workload.routing, forced.workload.routing) == ("dropless", "balanced")
    assert [finding.rule for finding in free.findings] == ["megatron-args.routing"]
    assert forced.findings == ()


def test_all_problems_at_once():
    with pytest.raises(InputError) as wrong:
        job(num_layers="many", hidden_size=-1, num_experts=4, moe_layer_freq="([0]*3", attention_backend="fusedd",
            pipeline_model_parallel_size=0, hidden_dropout="nan", micro_batch_size="${MBS}")  # fmt: skip
    text = str(wrong.value)
    for part in (
        "--num-layers is 'many': a whole number is needed",
        "--hidden-size is -1; it must be 1 or more",
        "--moe-layer-freq is '([0]*3'",
        "--attention-backend is 'fusedd': one of flash, fused, unfused, local, auto; fused?",
        "--pipeline-model-parallel-size is 0; it must be 1 or more",
        "--hidden-dropout is 'nan': a finite number is needed",
        "--micro-batch-size is '${MBS}': the script does not define this variable",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ({"pipeline_model_parallel_size": 3}, "8 layers do not divide evenly"),
        ({"pipeline_model_parallel_size": 2, "pipeline_model_parallel_layout": "Et*5|t*2L"}, "7 decoder layers"),
        ({"pipeline_model_parallel_size": 2, "pipeline_model_parallel_layout": "Et*5|x*2L"}, "symbol 'x'"),
        ({"pipeline_model_parallel_layout": "Et*8L", "num_virtual_stages_per_pipeline_rank": 2}, "does not go with"),
        ({"hybrid_layer_pattern": "MQ"}, "symbol 'Q'"),
        ({"hybrid_layer_pattern": "MM|MM|MM", "pipeline_model_parallel_size": 2}, "3 segments"),
        ({"num_query_groups": 3, "group_query_attention": True}, "--num-query-groups is 3"),
        ({"num_attention_heads": 15}, "does not divide hidden-size 1024"),
        ({"multi_latent_attention": True, "group_query_attention": True}, "does not go with --multi-latent-attention"),
        ({"fp16": True}, "--fp16 does not go with --bf16"),
        ({"recompute_granularity": "full"}, "needs --recompute-method"),
        ({"moe_ffn_hidden_size": 64}, "without --num-experts"),
        ({"num_experts": 4, "moe_router_topk": 8}, "there are only 4 experts"),
        ({"max_position_embeddings": 1024}, "the sequence has 2048 tokens"),
        ({"num_experts": 4, "moe_layer_freq": "[1]*7"}, "describes 7 layers, the model has 8"),
        ({"num_experts": 4, "moe_layer_freq": "[1]*999999*999999"}, "longer than"),
        ({"seq_length": None}, "--seq-length is not stated"),
        ({"micro_batch_size": None}, "--micro-batch-size is not stated"),
    ],
)
def test_contradictions_name_the_flag(arguments: dict[str, Any], part: str):
    with pytest.raises(InputError) as wrong:
        job(**arguments)
    assert part in str(wrong.value)


def test_example_script_with_branches_and_words_with_blanks():
    read = read_megatron_args(DATA / "train_llama3.sh")
    assert read.gpus == 8
    assert (read.workload.seq_len, read.model.vocab_size, read.model.num_layers) == (8192, 128256, 32)
    assert (read.workload.precision.name, read.workload.fp8_params) == ("fp8-delayed", True)
    assert read.missing == ()
    assert {finding.rule for finding in read.findings} == {"megatron-args.condition"}
    layout, knobs = read.layout()
    assert (layout.dp, layout.num_microbatches, layout.sp) == (8, 16, False)
    assert knobs.grad_dtype == "bf16"
