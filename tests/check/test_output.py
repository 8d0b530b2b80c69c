"""What `advisor check` and `advisor rules` print: JSON, SARIF, the page, exit codes."""

from __future__ import annotations

import json

import jsonschema
import pytest

from advisor.rules.lint import CONFIG_RULES, rules_by_id

SARIF = {
    "type": "object",
    "required": ["version", "runs", "$schema"],
    "properties": {
        "version": {"const": "2.1.0"},
        "$schema": {"type": "string", "format": "uri"},
        "runs": {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/run"}},
    },
    "$defs": {
        "message": {"type": "object", "required": ["text"], "properties": {"text": {"type": "string", "minLength": 1}}},
        "run": {
            "type": "object",
            "required": ["tool", "results"],
            "properties": {
                "columnKind": {"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
                "tool": {
                    "type": "object",
                    "required": ["driver"],
                    "properties": {
                        "driver": {
                            "type": "object",
                            "required": ["name"],
                            "properties": {"rules": {"type": "array", "uniqueItems": True,
                                                     "items": {"type": "object", "required": ["id"]}}},
                        }
                    },
                },
                "results": {"type": "array", "items": {"$ref": "#/$defs/result"}},
            },
        },
        "result": {
            "type": "object",
            "required": ["message", "ruleId", "level", "locations"],
            "properties": {
                "message": {"$ref": "#/$defs/message"},
                "level": {"enum": ["none", "note", "warning", "error"]},
                "ruleIndex": {"type": "integer", "minimum": 0},
                "locations": {
                    "type": "array",
                    "minItems": 1,
                    "items": {
                        "type": "object",
                        "properties": {
                            "physicalLocation": {
                                "type": "object",
                                "required": ["artifactLocation"],
                                "properties": {
                                    "artifactLocation": {"type": "object", "required": ["uri"],
                                                         "properties": {"uri": {"type": "string",
                                                                                "pattern": "^[^ ]+$"}}},
                                    "region": {"type": "object", "properties": {"startLine": {"type": "integer",
                                                                                              "minimum": 1}}},
                                },
                            }
                        },
                    },
                },
            },
        },
    },
}  # fmt: skip
TEXT = "--gpus 8 --tp 4 --pp 4 --ep 2\n"


@pytest.fixture
def layout(tmp_path):
    path = tmp_path / "my layout.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


def test_sarif_is_valid(layout, cli):
    ran = cli("check", str(layout), "--system", "dgx-h100", "--format", "sarif")
    log = json.loads(ran.out)
    jsonschema.validate(log, SARIF)
    run = log["runs"][0]
    ids = [one["id"] for one in run["tool"]["driver"]["rules"]]
    assert all(ids[one["ruleIndex"]] == one["ruleId"] for one in run["results"])
    assert {one["level"] for one in run["results"]} >= {"error"}
    assert ran.code == 1


def test_sarif_of_nothing_found_is_valid(tmp_path, cli):
    path = tmp_path / "x.txt"
    path.write_text("--gpus 8 --tp 2\n", encoding="utf-8")
    ran = cli("check", str(path), "--format", "sarif")
    jsonschema.validate(json.loads(ran.out), SARIF)
    assert json.loads(ran.out)["runs"][0]["results"] == []
    assert ran.code == 0


def test_json_and_page_say_the_same(layout, cli):
    answer = json.loads(cli("check", str(layout), "--format", "json").out)
    page = cli("check", str(layout))
    assert answer["verdict"] == "stop"
    assert page.out.startswith("stop:")
    assert answer["findings"][0]["rule"] in page.out
    assert answer["findings"][0]["line"] == 1
    assert "advisor rules" in page.err
    assert cli("check", str(layout), "-q").err == ""


def test_worst_first(layout, cli):
    found = json.loads(cli("check", str(layout), "--format", "json").out)["findings"]
    order = ["stop", "silent", "slow", "info"]
    assert [one["severity"] for one in found] == sorted((one["severity"] for one in found), key=order.index)


def test_several_files_are_one_job(tmp_path, cli):
    """The environment in one file, the flags in another: TP 2 on Hopper needs one connection."""
    script = tmp_path / "train.sh"
    script.write_text(
        "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 8 --hidden-size 64 --num-attention-heads 8 "
        "--max-position-embeddings 64 --seq-length 64 --micro-batch-size 1 --tensor-model-parallel-size 2\n",
        encoding="utf-8",
    )
    env = tmp_path / "job.env"
    env.write_text("export CUDA_DEVICE_MAX_CONNECTIONS=1\n", encoding="utf-8")
    alone = cli("check", str(script), "--system", "dgx-h100", "--format", "json")
    both = cli("check", str(script), str(env), "--system", "dgx-h100", "--format", "json")
    assert "max-connections-on-hopper" in alone.out
    assert "max-connections-on-hopper" not in both.out


def test_rules_lists_and_explains_every_rule(cli):
    listed = json.loads(cli("rules", "--format", "json").out)["rules"]
    assert {one["id"] for one in listed} == set(rules_by_id())
    for one in listed:
        assert one["severity"] in ("stop", "silent", "slow", "info")
        assert one["targets"]
        assert one["source"]
        assert one["says"]
    ran = cli("rules", "tp-overlap-needs-sp")
    assert "sequence parallel" in ran.out
    assert "did you mean" in cli("rules", "tp-overlap-need-sp").err


def test_ids_are_unique_among_configuration_rules():
    ids = [one.id for one in CONFIG_RULES]
    assert len(set(ids)) == len(ids)
    assert len(ids) >= 200


def test_sarif_has_what_code_scanning_needs(tmp_path, monkeypatch, cli):
    repository = tmp_path / "repo"
    (repository / ".git").mkdir(parents=True)
    (repository / "my jobs").mkdir()
    inside, outside = repository / "my jobs" / "run é.sh", tmp_path / "b.txt"
    script = "#!/bin/bash\ntorchrun --nproc_per_node 4 pretrain_gpt.py --num-layers 8 --hidden-size 64 \\\n"
    inside.write_text(
        f"{script}  --expert-model-parallel-size 8 --num-experts 8 --sequence-paralel\n", encoding="utf-8"
    )
    outside.write_text("--gpus 8 --tp 3\n", encoding="utf-8")
    monkeypatch.chdir(repository / "my jobs")
    for path in (inside.name, str(inside)):
        (run,) = json.loads(cli("check", path, "--format", "sarif").out)["runs"]
        assert run["originalUriBaseIds"] == {"%SRCROOT%": {"uri": f"{repository.resolve().as_uri()}/"}}
        for one in run["results"]:
            place = one["locations"][0]["physicalLocation"]
            assert place["artifactLocation"] == {"uri": "my%20jobs/run%20%C3%A9.sh", "uriBaseId": "%SRCROOT%"}
            assert place["region"]["startLine"] >= 1
    (run,) = json.loads(cli("check", str(outside), "--format", "sarif").out)["runs"]
    assert run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"] == {
        "uri": outside.resolve().as_uri()
    }
    for rule in run["tool"]["driver"]["rules"]:
        assert rule["name"].isidentifier()
        assert rule["fullDescription"]["text"]
        assert rule["help"]["text"]


def test_fingerprints_survive_moved_lines_and_tell_findings_apart(tmp_path, cli):
    def prints(text):
        path = tmp_path / "x.sh"
        path.write_text(text, encoding="utf-8")
        (run,) = json.loads(cli("check", str(path), "--format", "sarif").out)["runs"]
        found = [one["partialFingerprints"]["primaryLocationLineHash"] for one in run["results"]]
        assert len(set(found)) == len(found) > 1
        return set(found)

    flags = "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 8 --sequence-paralel --swigluu\n"
    assert prints(f"#!/bin/bash\n{flags}") == prints(f"#!/bin/bash\n# moved\n\n{flags}")
