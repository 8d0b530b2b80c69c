"""The tables of kernel and group names."""

from __future__ import annotations

import pytest

from advisor.trace.events import Group, Sort
from advisor.trace.kernels import KINDS, classify, collective_of, kernel_rules, kind_of, kinds_present, only_kind, table

NAMES = {
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)": ("nccl", None),
    "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)": ("nccl", None),
    "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)": ("nccl", None),
    "ncclSymkDevKernel_AllGather_LL(ncclSymkDevWorkArgs4K)": ("nccl", None),
    "ncclSymDevKernel_ReduceScatter_LD_sum_bf16(ncclSymDevArgs)": ("nccl", None),
    "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)": ("nccl", None),
    "void deep_ep::internode_ll::dispatch<true, false, 7168>(...)": ("deepep", "ep"),
    "void deep_ep::internode::dispatch<false, 8, false, 8192>(int4*, float*)": ("deepep", "ep"),
    "void deep_ep::intranode::combine<__nv_bfloat16, 8, 768>(...)": ("deepep", "ep"),
    "void hybrid_ep::dispatch_kernel<...>(hybrid_ep::dispatch_kernel_param_t)": ("hybridep", "ep"),
    "userbuffers_fp16_sum_inplace_gpu_rw_ag<8>(int, int, int)": ("userbuffers", "tp"),
    "kuserbuffers_pushrecv(int, int, int*, int*, int)": ("userbuffers", "tp"),
    "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 64, 64, 4>>(Flash_fwd_params)": ("attention", None),
    "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_7_64x128": ("attention", None),
    "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnBwdSm90<...>>>(...)": ("attention", None),
    "kernel_cutlass_kernel_flash_attncuteflash_fwd_sm100FlashAttentionForwardSm100_object_at_": ("attention", None),
    "cudnn_generated_fort_native_sdpa_sm100_flash_fprop_f16_knob_8_128x128x128": ("attention", None),
    "nvjet_tst_256x128_64x4_2x1_v_bz_coopA_TNT": ("gemm", None),
    "nvjet_sm100_qqtst_128x256_128x6_2x1_2cta_v_bz_TNT": ("gemm", None),
    "cutlass3x_sm100_tensorop_s256x256x16gemm_bf16_bf16_f32_bf16_bf16_256x256x64": ("gemm", None),
    "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16>(...)": ("gemm", None),
    "triton_poi_fused_add_silu_0": ("fused", None),
    "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x3_tn": ("gemm", None),
    "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cutlass::gemm::GroupProblemShape<...>>>": (
        "grouped_gemm",
        None,
    ),
    "void transformer_engine::normalization::rmsnorm_fwd_tuned_kernel<...>": ("norm", None),
    "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctorMaster<...>>": ("optimizer", None),
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, {lambda(float)#1}>": (
        "elementwise",
        None,
    ),
    "void fbgemm_gpu::permute_2D_data_kernel<false, int, int>(int)": ("routing", None),
    "void my_very_own_thing(float*)": ("unknown", None),
}


@pytest.mark.parametrize("name", NAMES)
def test_class_and_kind_by_name(name):
    rule = classify(name)
    assert (rule.name, rule.kind) == NAMES[name]


def test_copies_go_by_category_and_peer_copies_are_communication():
    assert classify("Memcpy DtoD (Device -> Device)", Sort.memcpy).name == "memcpy"
    assert classify("something gemm", Sort.memcpy).role == "memory"
    assert classify("Memset (Device)", Sort.memset).name == "memset"
    assert classify("Memcpy PtoP (Device -> Device)", Sort.memcpy).role == "communication"


@pytest.mark.parametrize(
    ("description", "kind"),
    [
        ("TENSOR_MODEL_PARALLEL_GROUP", "tp"), ("CONTEXT_PARALLEL_GROUP", "cp"),
        ("PIPELINE_MODEL_PARALLEL_GROUP", "pp"), ("DATA_PARALLEL_GROUP_WITH_CP", "dp"), ("DATA_PARALLEL_GROUP", "dp"),
        ("EXPERT_MODEL_PARALLEL_GROUP", "ep"),
        ("INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP", "dp"), ("EXPERT_DATA_PARALLEL_GROUP", "edp"),
        ("EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP", "ep"), ("TENSOR_AND_CONTEXT_PARALLEL_GROUP", "tp"),
        ("EMBEDDING_GROUP", "pp"), ("MODEL_PARALLEL_GROUP", "other"), ("default_pg", "world"), ("mesh_tp", "tp"),
        ("EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP", "other"), ("mesh_dp_shard", "dp"), ("undefined", None),
        ("mesh_dp_cp", "dp"), ("mesh_dp_shard_cp", "dp"), ("mesh_cp", "cp"), ("mesh_dp_shard_mod_ep", "edp"),
        ("DATA_PARALLEL_GROUP_WITH_CP_AG", "dp"), ("EXPERT_DATA_PARALLEL_GROUP_AG", "edp"),
    ],
)  # fmt: skip
def test_kind_of_a_group(description, kind):
    assert kind_of(Group("12", description)) == kind


def only(rank, *groups):
    return only_kind(
        kinds_present([Group(str(index), text, ranks) for index, (text, ranks) in enumerate(groups)], rank)
    )


def test_the_only_kind_of_a_job():
    world, tp, dp = ("default_pg", (0, 1)), ("mesh_tp", (0, 1)), ("mesh_dp", (0, 1))
    assert only(0, world) == "world"
    assert only(0, world, tp) == "tp"
    assert only(0, world, tp, dp) is None
    assert only(0, world, ("mesh_tp", (2, 3)), dp) == "dp"
    assert only(0, ("mesh_tp", (0,)), dp) == "dp"
    assert only(0) is None
    assert only(0, ("MODEL_PARALLEL_GROUP", (0, 1))) is None


@pytest.mark.parametrize(
    ("groups", "kind"),
    [
        (["TENSOR_MODEL_PARALLEL_GROUP", "MODEL_PARALLEL_GROUP", "EXPERT_TENSOR_PARALLEL_GROUP"], "tp"),
        (["DATA_PARALLEL_GROUP", "DATA_PARALLEL_GROUP_WITH_CP", "EXPERT_DATA_PARALLEL_GROUP"], "dp"),
        (["PIPELINE_MODEL_PARALLEL_GROUP", "MODEL_PARALLEL_GROUP", "EMBEDDING_GROUP"], "pp"),
        (["DATA_PARALLEL_GROUP", "EXPERT_MODEL_PARALLEL_GROUP"], "dp"),
        (["CONTEXT_PARALLEL_GROUP", "DATA_PARALLEL_GROUP_WITH_CP"], None),
    ],
)
def test_groups_that_megatron_makes_on_two_ranks(groups, kind):
    assert only(0, ("default_pg", (0, 1)), *((text, (0, 1)) for text in groups)) == kind


def test_collectives_by_their_many_names():
    assert collective_of("ncclKernel_AllReduce_RING").name == "all_reduce"
    assert collective_of("_allgather_base").name == "all_gather"
    assert collective_of("_reduce_scatter_base").synchronising
    assert collective_of("ncclDevKernel_SendRecv(...)").name == "send_recv"
    assert collective_of("gloo:all_to_all").name == "all_to_all"
    assert collective_of("something") is None


def test_every_rule_has_a_source_and_known_words():
    for entry in table("kernels")["rules"]:
        assert entry["source"]
    for rule in kernel_rules():
        assert rule.role in {"compute", "communication", "memory"}
        assert rule.kind is None or rule.kind in KINDS
    assert all(entry["kind"] in KINDS for entry in table("groups")["groups"])
    assert set(table("advice")["advice"]) == {"tp", "cp", "pp", "dp", "ep"}
