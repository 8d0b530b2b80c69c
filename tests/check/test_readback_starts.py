"""Which start of a job a log's settings are of, and which release printed it."""

from __future__ import annotations

import json
import re

import jsonschema
import pytest

from advisor.check.readback import read_log
from advisor.check.readback.observed import Seen
from advisor.check.readback.starts import Told
from tests.check.test_readback import BRIDGE, MEGATRON, SCHEMA, steps, write

MEMORY = "[Rank 0] (after 2 iterations) memory (MB) | allocated: 1.0 | max allocated: {} |"


def dump(mbs, **more):
    settings = {"tensor_model_parallel_size": 4, "micro_batch_size": mbs, "save": f"/ckpt/{mbs}", **more}
    return [f"  {name} {'.' * (48 - len(name))} {value}" for name, value in settings.items()]


def test_another_start_with_other_settings_leaves_earlier_steps_out(tmp_path):
    lines = [*dump(1), *steps([9.0] * 30), MEMORY.format(9), *dump(2), *steps([2.0] * 30, first=25), MEMORY.format(5)]
    found = read_log([write(tmp_path, *lines)])
    assert found.settings["train.micro_batch_size"].value == 2
    assert (found.steps.median_s, found.steps.reports, found.steps.left_out) == (2.0, 20, 40)
    assert found.peak.allocated_bytes == 5 * 2**20
    (remark,) = found.remarks
    assert (remark.kind, remark.line) == ("restart", 35)
    assert "start 2 of the job counts" in remark.text
    assert remark.text.endswith("left out: train.micro_batch_size 1 -> 2")


def test_another_start_with_the_same_settings_counts_too(tmp_path):
    lines = [
        *dump(1),
        *steps([3.0] * 30),
        *dump(1),
        *steps([2.0] * 30, first=25),
        *dump(1),
        *steps([1.0] * 5, first=50),
    ]
    found = read_log([write(tmp_path, *lines)])
    assert (found.steps.median_s, found.steps.reports) == (2.0, 42)
    assert [remark.text for remark in found.remarks] == [
        "start 3 of the job counts; its settings are those of the one before"
    ]


def test_a_start_that_ended_before_its_first_step_is_none(tmp_path):
    found = read_log([write(tmp_path, *dump(1), *dump(2), *steps([2.0] * 20))])
    assert (found.settings["train.micro_batch_size"].value, found.remarks) == (2, ())


def test_two_logs_of_bridge_with_another_layout(tmp_path):
    text = BRIDGE.read_text()
    other = re.sub(r"(?m)^(  tensor_model_parallel_size): 4", r"\1: 8", text)
    assert other != text
    found = read_log(
        [write(tmp_path, text, *steps([9.0] * 30)), write(tmp_path, other, *steps([2.0] * 30), name="b.log")]
    )
    assert found.steps.median_s == 2.0
    assert "model.tensor_model_parallel_size 4 -> 8" in found.remarks[-1].text


@pytest.mark.parametrize(
    ("lines", "version"),
    [
        (["  moe_use_legacy_grouped_gemm ..................... False"], "0.16"),
        (["  cuda_graph_modules .............................. []"], "0.19"),
        (dump(1), None),
    ],
)
def test_arguments_that_one_release_has_tell_it(lines, version, tmp_path):
    found = read_log([write(tmp_path, "using world size: 8, data-parallel size: 8", *lines)])
    assert (found.framework, found.version) == ("megatron-lm", version)
    assert (found.version_place is None) == (version is None)


def test_a_sentence_that_one_release_of_bridge_has_tells_it(tmp_path):
    line = "use_distributed_optimizer=True is required for Megatron-FSDP. Activating..."
    assert read_log([write(tmp_path, line)]).version == "0.6"


@pytest.mark.parametrize(("parts", "version"), [(["attn", "moe_router"], "0.3"), ([], None), (None, None)])
def test_graph_parts_under_their_old_name_tell_the_older_bridge(parts, version):
    place = Seen("job.log", 3, "cuda_graph_scope", parts)
    assert Told().version("bridge", {"model.cuda_graph_scope": place})[0] == version
    assert Told().version("megatron-lm", {"model.cuda_graph_scope": place})[0] is None


def test_a_version_that_nothing_tells_is_said_to_be_assumed(cli, tmp_path):
    log = write(tmp_path, "using world size: 8, data-parallel size: 8", *dump(1))
    page = cli("check", "--log", log).out
    assert "version 0.19 is assumed: no line of the log tells it; --target-version X states it" in page
    for words, version, source in (([], "0.19", "assumed"), (["--target-version", "0.16.1"], "0.16", "option")):
        record = json.loads(cli("check", "--log", log, *words, "--format", "json").out)
        jsonschema.validate(record, SCHEMA)
        assert (record["version"], record["version_source"], record["version_line"]) == (version, source, None)
    wrong = cli("check", "--log", log, "--target-version", "7")
    assert (wrong.code, wrong.err.count("error:")) == (2, 1)
    told = json.loads(cli("check", "--log", str(MEGATRON), "--format", "json").out)
    assert told["version_source"] == "log"
    assert told["version_line"].startswith(f"{MEGATRON}:")
