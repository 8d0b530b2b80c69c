"""What `advisor improve` says of bucket sizes and of hardware queues: read, priced, written and read again."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from advisor.check.subject import read_subject
from advisor.check.subject.edits import edits, written
from advisor.check.subject.rewrite import rewritten
from advisor.check.subject.variables import CONNECTIONS, connections, exported
from advisor.cost.buckets import BRIDGE_BUCKET
from advisor.search.improve_turns import BUCKETS, turns

OPTIONS = {"gpus": "16", "system": "dgx-h100"}
BRIDGE = (
    "#!/bin/bash\n{before}torchrun --nproc_per_node=8 --nnodes=2 scripts/training/run_recipe.py"
    " --recipe llama3_8b_pretrain_config model.tensor_model_parallel_size=2 model.sequence_parallel=true"
    " train.global_batch_size=64 train.micro_batch_size=1 comm_overlap.tp_comm_overlap=true {after}\n"
)
EXPERTS = (
    "#!/bin/bash\n{before}torchrun --nproc_per_node=8 --nnodes=2 scripts/training/run_recipe.py"
    " --recipe qwen3_30b_a3b_pretrain_config model.tensor_model_parallel_size=1 model.sequence_parallel=false"
    " model.pipeline_model_parallel_size=1 model.expert_model_parallel_size=16 train.global_batch_size=64"
    " train.micro_batch_size=1 model.recompute_granularity=null model.moe_token_dispatcher_type=alltoall"
    " comm_overlap.tp_comm_overlap=false comm_overlap.overlap_moe_expert_parallel_comm=true {after}\n"
)
MEGATRON = (
    "#!/bin/bash\n{before}torchrun --nnodes 2 --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096"
    " --num-attention-heads 32 --ffn-hidden-size 14336 --seq-length 4096 --max-position-embeddings 4096"
    " --micro-batch-size 1 --global-batch-size 64 --bf16 --swiglu --disable-bias-linear --vocab-size 32000"
    " --untie-embeddings-and-output-weights --transformer-impl transformer_engine --use-distributed-optimizer"
    " --overlap-grad-reduce --overlap-param-gather {after}\n"
)
ONE = f"export {CONNECTIONS}=1\n"


def script(folder, form, before="", after=""):
    path = folder / "train.sh"
    path.write_text(form.format(before=before, after=after), encoding="utf-8")
    return path


def improved(cli, path):
    ran = cli("improve", str(path), "--gpus", OPTIONS["gpus"], "--system", OPTIONS["system"], "--format", "json")
    assert ran.code in (0, 1), ran.err
    return json.loads(ran.out)


def changes(record, dial):
    found = {}
    for one in record["kept"]:
        if [turned["name"] for turned in one["dials"]] == [dial]:
            found[one["dials"][0]["after"]] = one
    return found


def test_queues_that_lose_the_overlap_of_tensor_parallelism_slow_today_and_setting_one_is_credited(cli, tmp_path):
    lost, kept = improved(cli, script(tmp_path, BRIDGE)), improved(cli, script(tmp_path, BRIDGE, ONE))
    assert lost["now"]["step"]["step_s"] > kept["now"]["step"]["step_s"]
    assert all(one["gain"] < 0 for one in changes(kept, CONNECTIONS).values()), "what is set is best"
    (change,) = changes(lost, CONNECTIONS).values()
    assert change["dials"] == [{"name": CONNECTIONS, "before": "8", "after": "1"}]
    assert change["step_s"] == pytest.approx(kept["now"]["step"]["step_s"])
    assert change["gain"] > 0 == change["low"], "the order may have held without it"
    assert change["edits"] == [{"write": f"export {CONNECTIONS}=1", "where": None, "remove": False}]
    assert any("not ensured" in risk for risk in change["risks"])
    (row,) = [one for one in lost["environment"] if one["name"] == CONNECTIONS]
    assert row["price"]["saved_s"] == pytest.approx(lost["now"]["step"]["step_s"] - kept["now"]["step"]["step_s"])


def test_one_queue_beside_the_expert_overlap_is_a_measured_loss(cli, tmp_path):
    record = improved(cli, script(tmp_path, EXPERTS, ONE))
    (change,) = changes(record, CONNECTIONS).values()
    assert change["dials"][0]["after"] == "32"
    assert change["gain"] > 0
    assert change["edits"] == [{"write": f"export {CONNECTIONS}=32", "where": "train.sh:2", "remove": False}]
    assert change["step_s"] < record["now"]["step"]["step_s"]


def test_one_queue_that_nothing_needs_serialises_a_megatron_job(cli, tmp_path):
    one, plain = improved(cli, script(tmp_path, MEGATRON, ONE)), improved(cli, script(tmp_path, MEGATRON))
    assert one["now"]["step"]["step_s"] > plain["now"]["step"]["step_s"]
    (change,) = changes(one, CONNECTIONS).values()
    assert change["step_s"] == pytest.approx(plain["now"]["step"]["step_s"])
    tensor = "--tensor-model-parallel-size 2 --sequence-parallel"
    assert not changes(improved(cli, script(tmp_path, MEGATRON, ONE, tensor)), CONNECTIONS)


@pytest.mark.parametrize(
    ("form", "before", "found"),
    [
        (BRIDGE, "", 8), (BRIDGE, ONE, 1), (BRIDGE, f"export {CONNECTIONS}=$N\n", None),
        (BRIDGE, f"export {CONNECTIONS}=many\n", None), (BRIDGE, f"unset {CONNECTIONS}\n", 8),
        (MEGATRON, "", None), (MEGATRON, ONE, 1), (MEGATRON, f"export {CONNECTIONS}=32\n", None),
        (BRIDGE.replace("llama3_8b_pretrain_config", "llama3_70b_pretrain_64gpu_h100_bf16_config"), "", None),
    ],
)  # fmt: skip
def test_queues_are_read_where_files_say_them(tmp_path, form, before, found):
    assert connections(read_subject(script(tmp_path, form, before), OPTIONS).setup) == found


def test_bucket_sizes_are_offered_written_and_read_again(cli, tmp_path):
    for form, flag in ((BRIDGE, f"comm_overlap.bucket_size={BRIDGE_BUCKET}"),
                       (MEGATRON, f"--ddp-bucket-size {BRIDGE_BUCKET}")):  # fmt: skip
        subject = read_subject(script(tmp_path, form), OPTIONS)
        offered = [one for one in turns(subject.request, subject.asked) if one.name == "bucket_size"]
        assert [one.request.workload.bucket_size for one in offered] == [*BUCKETS]
        for turn in offered:
            request, choice = turn.apply(subject.request, subject.asked)
            said = edits(subject, request, choice)
            path = tmp_path / "edited.sh"
            path.write_text(rewritten(subject, said), encoding="utf-8")
            again = read_subject(path, OPTIONS)
            assert again.request.workload == request.workload
            assert again.sources["bucket_size"].value == request.workload.bucket_size
            if request.workload.bucket_size == BRIDGE_BUCKET:
                assert [written(subject, one) for one in said] == [flag]
                back = [one for one in turns(again.request, again.asked) if one.name == "bucket_size"]
                assert None in [one.request.workload.bucket_size for one in back]
                default = next(one for one in back if one.request.workload.bucket_size is None)
                dropped = edits(again, *default.apply(again.request, again.asked))
                path.write_text(rewritten(again, dropped), encoding="utf-8")
                assert read_subject(path, OPTIONS).request.workload == subject.request.workload


def test_a_bucket_that_is_stated_moves_today(cli, tmp_path):
    plain = improved(cli, script(tmp_path, MEGATRON))["now"]["step"]["step_s"]
    tiny = improved(cli, script(tmp_path, MEGATRON, after="--ddp-bucket-size 100000"))
    same = improved(cli, script(tmp_path, MEGATRON, after="--ddp-bucket-size 40000000"))
    assert tiny["now"]["step"]["step_s"] > plain
    assert same["now"]["step"]["step_s"] == pytest.approx(plain, rel=1e-12), "megatron-core takes it by itself"
    offered = changes(tiny, "bucket_size")
    assert {"default", "134217728"} <= {*offered}
    assert offered["default"]["step_s"] == pytest.approx(plain)
    assert offered["default"]["edits"] == [{"write": "remove --ddp-bucket-size", "where": "train.sh:2", "remove": True}]
    assert tiny["settings"]["bucket_size"] == {"value": 100000, "origin": "train.sh:2", "note": None}


def test_a_bucket_of_no_size_is_refused(cli, tmp_path):
    path = script(tmp_path, MEGATRON, after="--ddp-bucket-size 0")
    ran = cli("improve", str(path), "--gpus", "16", "--system", "dgx-h100")
    assert ran.code == 2
    assert "ddp_bucket_size" in ran.err.replace("-", "_")
    assert "Traceback" not in ran.err


def test_no_bucket_is_offered_where_nothing_is_cut(tmp_path):
    after = "--ddp-bucket-size 100000"
    cut = read_subject(script(tmp_path, MEGATRON, after=after), OPTIONS)
    apart = replace(cut.asked, knobs=replace(cut.asked.knobs, overlap_grad_reduce=False, overlap_param_gather=False))
    assert [one for one in turns(cut.request, cut.asked) if one.name == "bucket_size"]
    assert not [one for one in turns(cut.request, apart) if one.name == "bucket_size"]


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("#!/bin/bash\n#SBATCH -N 2\n\nsrun x\n", f"#!/bin/bash\n#SBATCH -N 2\n\nexport {CONNECTIONS}=1\nsrun x\n"),
        (f"export {CONNECTIONS}=8\nsrun x\n", f"export {CONNECTIONS}=1\nsrun x\n"),
        (f'export {CONNECTIONS}="8"; srun x\n', f"export {CONNECTIONS}=1; srun x\n"),
        (f"A=1 {CONNECTIONS}=8 torchrun x\n", f"A=1 {CONNECTIONS}=1 torchrun x\n"),
        (f"  unset {CONNECTIONS}\nsrun x\n", f"  export {CONNECTIONS}=1\nsrun x\n"),
        (f"# {CONNECTIONS}=8\nsrun x\n", f"# {CONNECTIONS}=8\nexport {CONNECTIONS}=1\nsrun x\n"),
        (f"MY_{CONNECTIONS}=8\nsrun x\n", f"export {CONNECTIONS}=1\nMY_{CONNECTIONS}=8\nsrun x\n"),
    ],
)
def test_a_variable_is_set_where_it_stands_or_before_the_first_command(text, after):
    assert exported(text, {CONNECTIONS: 1}) == after
