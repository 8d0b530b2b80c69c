"""Read-back: what logs of real software say, a plan beside it, exit codes, JSON against its schema, bad input."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.check.readback import compare, read_log
from advisor.check.readback.wording import wordings
from advisor.cli.pages.readback import readback_document
from advisor.configure.chosen import read_plan
from advisor.errors import InputError
from advisor.logs.gate import shape_of
from tests.configure.plans import plan_file
from tests.export.plans import golden_plan

DATA = Path(__file__).parent / "data" / "readback"
REAL_FT = Path(__file__).parents[1] / "diagnose" / "data" / "real_ft"
MEGATRON, BRIDGE = DATA / "megatron_lm_0.19.log", DATA / "bridge_0.3.log"
SCHEMA = json.loads((Path(__file__).parents[2] / "presets" / "schemas" / "readback.schema.json").read_text())
STEP = (
    " [2026-08-17 17:40:11] iteration {:8d}/     500 | consumed samples:        15360 | elapsed time per iteration "
    "(ms): {:.1f} | throughput per GPU (TFLOP/s/GPU): 173.6 | learning rate: 1.935433E-04 | global batch size:   128 | "
    "lm loss: {} | loss scale: 1.0 | grad norm: 0.656 | number of skipped iterations:   0 | "
    "number of nan iterations:   0 |"
)


def write(folder, *lines, name="job.log"):
    path = folder / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def steps(seconds, first=1, loss="2.5E+00"):
    return [STEP.format(first + at, one * 1e3, loss) for at, one in enumerate(seconds)]


def values(observed):
    return {key: seen.value for key, seen in observed.settings.items()}


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    return golden_plan("llama3-70b", tmp_path_factory.mktemp("plan"))


@pytest.mark.parametrize("one", wordings().all, ids=lambda one: one.id)
def test_every_sentence_is_met_by_its_example(one):
    known = wordings()
    assert one.match(one.example) is not None
    mark = known.all.index(one)
    (_, shape), *_ = known.gate.candidates(one.example.encode() + b"\n")
    assert shape == shape_of(one.example.encode())
    assert mark in known.confirm(one.example, known.gate.marks(shape))


def test_megatron_arguments_and_what_it_changed():
    found = read_log([str(MEGATRON)])
    assert (found.framework, found.version, found.gpus.value) == ("megatron-lm", "0.19", 64)
    held = values(found)
    assert (held["model.tensor_model_parallel_size"], held["model.pipeline_model_parallel_size"]) == (4, 4)
    assert (held["model.num_layers"], held["ddp.overlap_grad_reduce"], held["model.params_dtype"]) == (80, True, "bf16")
    assert (held["model.recompute_modules"], held["model.swiglu"]) == (["core_attn"], True)
    off = {key for key, seen in found.settings.items() if seen.off}
    assert off == {"model.overlap_p2p_comm", "ddp.align_param_gather", "checkpoint.async_save"}
    seen = found.settings["model.overlap_p2p_comm"]
    line = MEGATRON.read_text().splitlines()[seen.line - 1]
    assert seen.text == line
    assert seen.why.startswith("since non-interleaved schedule")
    assert (found.steps.reports, found.steps.left_out, found.steps.last_iteration) == (12, 10, 22)
    assert found.steps.median_s == pytest.approx(9.555, abs=0.006)
    assert found.peak.allocated_bytes == pytest.approx(62.5e9, rel=1e-4)
    assert (found.peak.rank, found.peak.ranks) == (0, 1)


def test_bridge_yaml_warning_and_summary():
    found = read_log([str(BRIDGE)])
    assert (found.framework, found.version) == ("bridge", "0.3")
    seen = found.settings["model.tp_comm_overlap"]
    assert (seen.value, seen.off, seen.why, seen.how) == (False, True, "sequence_parallel=False", "message")
    assert BRIDGE.read_text().splitlines()[seen.line - 1].endswith("due to sequence_parallel=False.")
    assert found.settings["model.tensor_model_parallel_size"].how == "summary"
    assert found.settings["model.overlap_moe_expert_parallel_comm"].how == "default"
    assert found.settings["model.overlap_p2p_comm"].value is True
    assert found.settings["optimizer.optimizer"].how == "dump"


def test_the_yaml_alone_does_not_tell_what_overlap_becomes(tmp_path):
    whole = BRIDGE.read_text()
    found = read_log([write(tmp_path, whole[: whole.index("WARNING:root:Disabling")])])
    assert found.settings["model.tensor_model_parallel_size"].value == 4
    assert found.settings["comm_overlap.tp_comm_overlap"].value is True
    assert "model.tp_comm_overlap" not in found.settings


def test_a_summary_that_breaks_off_leaves_no_defaults(tmp_path):
    whole = BRIDGE.read_text()
    at = whole.index("Configuration Summary")
    found = read_log([write(tmp_path, whole[at : whole.index("[scheduler]:", at)])])
    assert found.settings["train.micro_batch_size"].how == "summary"
    assert {seen.how for seen in found.settings.values()} == {"summary"}


TAGS = ["[rank0]: {}", "0: {}", "[default0]:{}", "[1,0]<stdout>:{}", "node-0: {}", "[node-000:0]: {}", "rank0: {}",
        "[0]: {}", "trainer-0 | {}", "Aug 17 17:40:10 node-0 train[10]: {}"]  # fmt: skip
UNSIGNED = ["2026-08-17T17:40:11.123456789Z stdout F {}", "(TrainWorker pid=10) {}",
            "2026-08-17 17:40:10,123 - INFO - {}", "[17:40:10] {}", "INFO:root:{}", "[INFO] {}"]  # fmt: skip


@pytest.mark.parametrize("path", [MEGATRON, BRIDGE], ids=lambda path: path.stem)
@pytest.mark.parametrize("tag", [*TAGS, *UNSIGNED])
def test_tags_gz_and_lines_of_other_ranks_change_nothing(path, tag, tmp_path):
    own = [tag.format(line) for line in path.read_text().splitlines()]
    other = [tag.replace("0", "7").format("Loading extension module multi_tensor_apply...") for _ in own]
    tagged = tmp_path / "job.log.gz"
    mixed = own if tag in UNSIGNED else [line for pair in zip(own, other, strict=True) for line in pair]
    tagged.write_bytes(gzip.compress("\n".join(mixed).encode()))
    plain, found = read_log([str(path)]), read_log([str(tagged)])
    assert values(found) == values(plain)
    assert (found.gpus and found.gpus.value) == (plain.gpus and plain.gpus.value)
    if plain.steps is not None:
        assert (found.steps.median_s, found.steps.reports) == (plain.steps.median_s, plain.steps.reports)
        assert found.peak.allocated_bytes == plain.peak.allocated_bytes


def test_records_of_configuration_objects(tmp_path):
    fields = "grad_reduce_in_fp32=True, overlap_grad_reduce=False, bucket_size=40000000, x='a, b', y=[1, 2]"
    record = f"DistributedDataParallelConfig({fields})"
    found = read_log([write(tmp_path, f"INFO:megatron.core:Setting up DistributedDataParallel with config {record}")])
    assert values(found) == {"ddp.grad_reduce_in_fp32": True, "ddp.overlap_grad_reduce": False,
                             "ddp.bucket_size": 40000000, "ddp.x": "a, b", "ddp.y": [1, 2]}  # fmt: skip


def test_real_launcher_logs_tell_processes_and_timeouts():
    found = read_log([str(REAL_FT / "ft_launcher_rank_hung.log")])
    assert (found.gpus.value, found.framework) == (2, None)
    (timeout,) = [one for one in found.remarks if one.kind == "timeout"]
    assert "Section 'step' has been open for 5.79 seconds" in timeout.text
    assert read_log([str(REAL_FT / "slurm_rank_exit_7.log")]).lines > 0


@pytest.mark.parametrize(
    ("seconds", "median", "reports"),
    [
        ([50, 9, *[5] * 8, *[2, 3, 4]], 3.0, 3),
        ([50, 9, 4, 2], 3.0, 2),
        ([7], None, 0),
        ([9] * 11, 9.0, 5),
    ],
)
def test_warm_up_is_left_out(seconds, median, reports, tmp_path):
    found = read_log([write(tmp_path, *steps(seconds))]).steps
    assert (found and found.median_s) == median
    assert (found.reports if found else 0) == reports


def test_warm_up_is_left_out_after_a_restart_too(tmp_path):
    again = [*steps([99] * 10 + [2] * 20), *steps([99] * 10 + [2] * 20, first=25)]
    found = read_log([write(tmp_path, *again)]).steps
    assert (found.median_s, found.high_s, found.reports, found.left_out) == (2.0, 2.0, 40, 20)


def test_reports_over_several_iterations(tmp_path):
    lines = [STEP.format(10 * at, 1e3 * one, "nan") for at, one in enumerate([60, 3, 4, 5], 1)]
    found = read_log([write(tmp_path, *lines)]).steps
    assert (found.median_s, found.reports, found.left_out) == (4.0, 3, 1)


def test_the_short_line_of_bridge_stands_in(tmp_path):
    lines = [f"Step Time : {one:.2f}s GPU utilization: 400.0MODEL_TFLOP/s/GPU" for one in [30] * 10 + [2] * 5]
    found = read_log([write(tmp_path, *lines)]).steps
    assert (found.median_s, found.reports, found.tflops_per_gpu) == (2.0, 5, 400.0)


def test_the_worst_rank_is_the_peak(tmp_path):
    line = (
        "[Rank {}] (after 1 iterations) memory (GB) | mem-allocated-gigabytes: 1.5 | mem-max-allocated-gigabytes: {} "
        "| mem-max-reserved-gigabytes: 60.0"
    )
    found = read_log([write(tmp_path, line.format(0, 40.5), line.format(8, 52.25), line.format(16, 30.0))]).peak
    assert (found.allocated_bytes, found.reserved_bytes, found.rank, found.ranks) == (52.25e9, 60e9, 8, 3)


def test_stragglers_are_named(tmp_path):
    lines = [
        "INFO:x:GPU relative performance:", " Worst performing 3/64 ranks:", "  Rank=12 Node=node-001 Score=0.61",
        "  Rank=3 Node=node-000 Score=0.93", "",
        "WARNING:x:STRAGGLER DETECTION WARNING: Some GPUs have worse relative performance. Affected ranks: {12}",
    ]  # fmt: skip
    found = read_log([write(tmp_path, *lines)]).remarks
    assert [(one.kind, one.line) for one in found] == [("score", 3), ("straggler", 6)]
    assert found[0].text == "worst GPU score 0.61: rank 12 on node-001"


def rows(found):
    return {row.key: row.status for row in found.rows}


def test_a_plan_beside_megatrons_log(plan):
    found = compare(read_log([str(MEGATRON)]), read_plan(plan))
    status = rows(found)
    assert status["model.overlap_p2p_comm"] == "silently off"
    assert status["model.virtual_pipeline_model_parallel_size"] == "differs"
    assert (
        status["model.tensor_model_parallel_size"] == status["gpus"] == status["ddp.overlap_grad_reduce"] == "effective"
    )
    lost = {key for key, one in status.items() if one in ("silently off", "differs")}
    assert lost == {"model.overlap_p2p_comm", "model.virtual_pipeline_model_parallel_size",
                    "model.pipeline_model_parallel_layout"}  # fmt: skip
    assert found.outcome == "silently off"


def test_a_plan_beside_bridges_log(plan):
    found = compare(read_log([str(BRIDGE)]), read_plan(plan))
    lost = {row.key: row.status for row in found.rows if row.status in ("silently off", "differs")}
    assert lost == {"model.sequence_parallel": "silently off", "model.tp_comm_overlap": "silently off"}
    assert rows(found)["model.overlap_p2p_comm"] == "effective"


@pytest.mark.parametrize(
    ("factor", "share", "outcome"), [(1.0, 1.0, "as planned"), (3.0, 1.0, "outside"), (1.0, 0.5, "outside")]
)
def test_measured_figures_are_judged_by_the_interval(factor, share, outcome, tmp_path):
    chosen = read_plan(plan_file(tmp_path, "dense"))
    seconds, peak = chosen.step.step_s * factor, chosen.candidate.memory.peak_allocated_bytes * share
    memory = f"[Rank 3] (after 2 iterations) memory (MB) | allocated: 1.0 | max allocated: {peak / 2**20:.2f} |"
    lines = [line.replace("batch size:   128", "batch size:    64") for line in steps([seconds] * 20)]
    log = write(tmp_path, *lines, memory)
    found = compare(read_log([log]), chosen)
    assert found.outcome == outcome
    by_name = {one.name: one for one in found.measures}
    assert by_name["step_s"].ratio == pytest.approx(factor, rel=1e-3)
    assert by_name["peak_allocated_bytes"].ratio == pytest.approx(share, rel=1e-3)
    assert (by_name["step_s"].low, by_name["step_s"].high) == (chosen.step.low_s, chosen.step.high_s)


def test_a_log_of_another_size_differs(tmp_path, plan):
    text = re.sub(
        "using world size: 64, data-parallel size: 2",
        "using world size: 32, data-parallel size: 1",
        MEGATRON.read_text(),
    )
    text = re.sub(r"(?m)^  world_size (\.+) 64$", r"  world_size \1 32", text)
    found = compare(read_log([write(tmp_path, text)]), read_plan(plan))
    assert rows(found)["gpus"] == "differs"


@pytest.mark.parametrize("path", [MEGATRON, BRIDGE, REAL_FT / "ft_launcher_rank_hung.log"], ids=lambda path: path.stem)
@pytest.mark.parametrize("with_plan", [True, False])
def test_json_keeps_its_schema(cli, path, with_plan, plan):
    words = ["--plan", str(plan)] if with_plan else []
    ran = cli("check", "--log", str(path), *words, "--format", "json")
    jsonschema.validate(record := json.loads(ran.out), SCHEMA)
    assert ran.code == (1 if record["outcome"] in ("silently off", "differs", "outside") else 0)
    assert (record["outcome"] is None) == (not with_plan)
    assert all(row["status"] is None for row in record["settings"]) == (not with_plan)


def test_the_page_names_line_and_reason(cli, plan):
    ran = cli("check", "--log", str(BRIDGE), "--plan", str(plan))
    assert ran.code == 1
    assert "silently off: something that is planned is off" in ran.out
    assert "bridge_0.3.log:702" in ran.out
    alone = cli("check", "--log", str(MEGATRON))
    assert alone.code == 0
    assert "median of 12 steady reports" in " ".join(alone.out.split())


@pytest.mark.parametrize("path", [MEGATRON, BRIDGE], ids=lambda path: path.stem)
def test_pages_without_a_plan(cli, golden, path):
    ran = cli("check", "--log", str(path))
    golden(f"check_log_{path.stem}.txt", ran.out.replace(f"{DATA}/", "") + ran.err)


def bad(cli, *words):
    ran = cli("check", *map(str, words))
    assert ran.code == 2, ran.out
    assert ran.err.count("error:") == 1
    assert "Traceback" not in ran.err
    return ran.err


def test_bad_logs_are_one_clear_error_each(cli, tmp_path):
    binary = tmp_path / "core.123"
    binary.write_bytes(bytes(range(256)) * 200 + b"\0" * 9000)
    assert "binary" in bad(cli, "--log", binary)
    (tmp_path / "none.log").write_bytes(b"")
    assert "empty" in bad(cli, "--log", tmp_path / "none.log")
    assert "no such file" in bad(cli, "--log", tmp_path / "missing.log").lower()
    assert "no line of Megatron-Bridge or Megatron-LM in 2 lines" in bad(
        cli, "--log", write(tmp_path, "hello", "world")
    )
    text = "[INFO] [config.py:1001:print] DeepSpeedEngine configuration:"
    assert "a log of DeepSpeed" in bad(cli, "--log", write(tmp_path, text))
    broken = tmp_path / "broken.log.gz"
    broken.write_bytes(gzip.compress(MEGATRON.read_bytes())[:-2000])
    ran = cli("check", "--log", str(broken))
    assert ran.code == 0
    assert "broke off" in ran.out


def test_bad_plans_and_words_are_one_clear_error_each(cli, tmp_path, plan):
    assert "another model: num_layers is 80" in bad(cli, "--log", MEGATRON, "--plan", plan_file(tmp_path, "dense"))
    assert "is not JSON" in bad(cli, "--log", MEGATRON, "--plan", MEGATRON)
    assert "add --log" in bad(cli, "--plan", plan)
    assert "nothing to check" in bad(cli)
    assert "beside --log" in bad(cli, plan, "--log", MEGATRON)
    assert "sarif" in bad(cli, "--log", MEGATRON, "--format", "sarif")


def test_a_log_of_two_hundred_megabytes_is_streamed(tmp_path):
    path = tmp_path / "big.log"
    noise = "".join(
        f"node-003:984:1357 [4] NCCL INFO Channel {n % 32:02d}/0 : 1[4] -> 2[5] via P2P\n" for n in range(9000)
    )
    block = noise.encode()
    with path.open("wb") as file:
        file.write(MEGATRON.read_bytes())
        while file.tell() < 200_000_000:
            file.write(block)
        file.write("\n".join(steps([2.0] * 20, first=100)).encode())
    found = read_log([str(path)])
    assert found.steps.last_iteration == 119
    assert found.lines > 2_000_000


@given(
    st.sampled_from([MEGATRON, BRIDGE, REAL_FT / "ft_launcher_rank_hung.log"]),
    st.tuples(st.floats(0, 1), st.floats(0, 1)),
    st.lists(st.tuples(st.floats(0, 1), st.binary(max_size=12)), max_size=6),
)
@settings(deadline=None, max_examples=60)
def test_torn_and_garbled_logs_raise_nothing_but_input_errors(tmp_path_factory, source, cut, changes):
    whole = source.read_bytes()
    start, stop = sorted(int(share * len(whole)) for share in cut)
    data = bytearray(whole[start:stop])
    for share, junk in changes:
        at = int(share * len(data))
        data[at : at + len(junk)] = junk
    path = tmp_path_factory.mktemp("torn") / "job.log"
    path.write_bytes(bytes(data))
    try:
        found = read_log([str(path)])
    except InputError:
        return
    record = readback_document(found, None).record
    jsonschema.validate(json.loads(json.dumps(record, allow_nan=False)), SCHEMA)


@pytest.mark.parametrize(
    "line",
    [
        STEP.format(1, 1.0, "1.2.3"),
        STEP.format(1, 1.0, "nan").replace("(ms): 1000.0", "(ms): 1.2.3").replace("(ms): 1.0", "(ms): ...."),
        STEP.format(10**30, 1.0, "2.0"),
        "  lr .............................................. 1e999",
        "  recompute_modules ............................... {1, 2}",
        "  train_iters ..................................... " + "9" * 5000,
        "Setting up optimizer with config OptimizerConfig(lr=(((((",
        "[Rank 99999999999999999999] (after 2 iterations) memory (MB) | max allocated: 1..2",
        "_target_: megatron.bridge.training.config.ConfigContainer",
    ],
)
def test_strange_lines_are_no_surprise(line, tmp_path):
    found = read_log([write(tmp_path, "using world size: 8, data-parallel size: 8", line, *steps([2.0] * 20, first=5))])
    assert (found.gpus.value, found.steps.last_iteration) == (8, 24)
    json.dumps(readback_document(found, None).record, allow_nan=False)
