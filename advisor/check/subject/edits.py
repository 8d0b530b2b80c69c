"""What has to be written for a change, in the words of the file: flags, overrides, fields, or layout flags.

An edit is the difference between two exports, of the job as it is asked for and of the job with the dial turned, so
that settings which follow from each other change together. Settings that another spelling in the file would contradict
are removed with it (`GROUPS`), and sizes that would follow the changed one are stated (`FOLLOWERS`).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from advisor.check.readers.flags import key_of
from advisor.check.subject.bridge import OVERLAPS, PRECISION_CLASS, Reader, bridge_version, with_overlap
from advisor.check.subject.effective import overlap_asked
from advisor.check.subject.form import Subject, place
from advisor.configure.job import Job
from advisor.configure.overlap import resolve
from advisor.configure.resolved import asked_of
from advisor.export.bridge_values import SPLIT_FIELDS, precision, sections
from advisor.export.megatron import setting_groups
from advisor.export.overrides import precision_object
from advisor.export.subject import Subject as Export
from advisor.export.subject import plain_split
from advisor.export.words import Code, hydra
from advisor.export.words import python as as_python
from advisor.rules.lint.setup import SHORT
from advisor.search.dials import knob_words
from advisor.search.improve_turns import CONNECTIONS, MANY_QUEUES
from advisor.search.request import Request
from advisor.search.single import SIZES, Choice
from advisor.spec.load.megatron import arguments as megatron

GROUPS: tuple[frozenset[str], ...] = (
    frozenset({
        "num_layers_per_virtual_pipeline_stage", "num_virtual_stages_per_pipeline_rank",
        "pipeline_model_parallel_layout", "decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers",
        "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split",
        "microbatch_group_size_per_virtual_pipeline_stage", "overlap_p2p_comm", "pipeline_model_parallel_size",
    }),
    frozenset({"recompute_granularity", "recompute_method", "recompute_num_layers", "recompute_modules",
               "recompute_activations"}),
    frozenset({"cuda_graph_impl", "cuda_graph_scope", "cuda_graph_modules", "enable_cuda_graph",
               "external_cuda_graph"}),
    frozenset({"moe_token_dispatcher_type", "moe_flex_dispatcher_backend"}),
    frozenset({"grad_reduce_in_bf16", "main_grads_dtype", "accumulate_allreduce_grads_in_fp32"}),
    frozenset({"fp8", "fp8_recipe", "fp4", "fp4_recipe", "fp8_param_gather", "reuse_grad_buf_for_mxfp8_param_ag"}),
)  # fmt: skip
"""Destinations of Megatron-LM's parser that say the same thing in several ways: a change of one replaces them all."""
FIELD_GROUPS: tuple[frozenset[str], ...] = tuple(
    frozenset(f"{section}.{name}" for name in names)
    for section, names in (
        ("model", ("recompute_granularity", "recompute_method", "recompute_num_layers", "recompute_modules")),
        ("model", ("moe_token_dispatcher_type", "moe_flex_dispatcher_backend", "moe_shared_expert_overlap")),
        ("model", ("cuda_graph_impl", "cuda_graph_scope", "cuda_graph_modules")),
        ("optimizer", ("optimizer", "use_distributed_optimizer", "use_precision_aware_optimizer")),
    )
)
"""Settings of Bridge that are only legal together: a recipe may hold some of them that no table of ours knows."""
FOLLOWERS = {"tensor_model_parallel_size": "expert_tensor_parallel_size",
             "expert_model_parallel_size": "expert_tensor_parallel_size"}  # fmt: skip
"""Sizes that another one follows where it is not stated."""
FASTER: dict[str, Mapping[str, tuple[str, ...] | None]] = {
    "attention_impl": {"transformer-impl": ("transformer_engine",), "attention-backend": ("auto",)},
    "cross_entropy_fused": {"cross-entropy-loss-fusion": ()},
    "grad_accumulation_fused": {"no-gradient-accumulation-fusion": None},
    "grouped_gemm": {"moe-grouped-gemm": ()},
}
"""Flags of Megatron-LM for kernels that the workload, not the layout, decides (None = drop it)."""
FASTER_FIELDS = {
    "attention_impl": ("model.attention_backend", "auto"),
    "cross_entropy_fused": ("model.cross_entropy_loss_fusion", True),
    "grad_accumulation_fused": ("model.gradient_accumulation_fusion", True),
    "grouped_gemm": ("model.moe_grouped_gemm", True),
}
OFF = {"model.cpu_offloading_num_layers": 0, "model.offload_modules": []}
"""What fields hold that take no None and that nothing states any more."""
NAMED_PRECISION = "get_mixed_precision_config"
LAYOUT = "model.pipeline_model_parallel_layout"
PIPELINE = frozenset({SHORT["pp"], SHORT["vpp"], *(f"model.{field}" for field in SPLIT_FIELDS.values())})
OF_EXPORT = ("tp-comm-overlap-cfg", "ddp-bucket-size")
"""Flags that an export brings along beside its dials: a file written with it, and Bridge's own bucket size."""
BATCHED = "model.batch_p2p_comm"


@dataclass(frozen=True, slots=True)
class Edit:
    """One setting to write: `key` in the words of the file, `value` as Python sees it (None with `drop` = remove it).

    `words` are the values as they follow a flag; `where` is where the setting stands now, "" where it is not stated. A
    `variable` is one of the environment of the script.
    """

    key: str
    value: Any
    words: tuple[str, ...]
    where: str = ""
    drop: bool = False
    variable: bool = False

    def flag(self, quoted: bool = False) -> str:
        """The edit as words of a command line; without quotes of their own inside somebody's double quotes."""
        words = (f"--{self.key}", *self.words)
        return " ".join(words) if quoted else shlex.join(words)


def edits(subject: Subject, request: Request, choice: Choice) -> tuple[Edit, ...]:
    """The edits that turn the file of `subject` into one that asks for `choice` of `request`."""
    kind = subject.reading.kind
    if kind in ("layout", "plan"):
        return tuple(_layout_edits(subject, request, choice))
    settings = _flag_edits if subject.setup.framework == "megatron-lm" else _field_edits
    return (*_variable_edits(subject, request), *settings(subject, request, choice))


def override(edit: Edit) -> str:
    """An edit as an override of Bridge; an object takes the place of whatever the recipe holds there."""
    if isinstance(edit.value, Mapping):
        return f"++{edit.key}=null ++{edit.key}={hydra(edit.value)}"
    return f"{edit.key}={hydra(edit.value)}"


def written(subject: Subject, edit: Edit) -> str:
    """An edit as the user writes it: a flag, an override, or a line of Python; removals say so."""
    kind = subject.reading.kind
    if edit.variable:
        return f"export {edit.key}={edit.value}"
    if subject.setup.framework == "megatron-lm" or kind in ("layout", "plan"):
        text = edit.flag()
        yaml_form = kind == "megatron-yaml"
        text = f"{edit.key}: {' '.join(edit.words) or 'true'}" if yaml_form and not edit.drop else text
        return f"remove --{edit.key}" if edit.drop else text
    if kind == "bridge-python":
        return f"cfg.{edit.key} = {as_python(edit.value)}"
    return f"remove {edit.key}" if edit.drop else override(edit)


def _export(subject: Subject, request: Request, choice: Choice) -> Export:
    """The choice as it is exported: with the knobs that are asked for."""
    job = Job(request.model, request.cluster, request.workload, choice.layout, choice.knobs)
    job = replace(job, layout=replace(job.layout, split=plain_split(job)))
    asked = asked_of(job.knobs, overlap_asked(subject.setup))
    overlap = resolve(job, asked)
    version = bridge_version(subject.setup)
    return Export(job, overlap, (), version, "0.16" if version == "0.3" else "0.19", subject.reading.file)


def _flags(export: Export) -> dict[str, tuple[str, ...]]:
    found = {words[0].removeprefix("--"): words[1:] for _, group in setting_groups(export) for words in group}
    return {flag: words for flag, words in found.items() if flag not in OF_EXPORT}


def _variable_edits(subject: Subject, request: Request) -> Iterator[Edit]:
    """Hardware queues in a script that launches the job; other files have no place for them."""
    number = request.workload.connections
    if number != subject.request.workload.connections and subject.reading.launches:
        stated = subject.reading.env.get(CONNECTIONS)
        where = "" if stated is None else place(stated.file, stated.line)
        number = number or MANY_QUEUES
        yield Edit(CONNECTIONS, number, (str(number),), where, variable=True)


def _flag_edits(subject: Subject, request: Request, choice: Choice) -> Iterator[Edit]:
    before = _flags(_export(subject, subject.request, subject.asked))
    after = _flags(_export(subject, request, choice))
    changed = {flag for flag in {*before, *after} if before.get(flag) != after.get(flag)}
    dests = {megatron.flags()[flag].dest for flag in changed}
    wanted = {megatron.flags()[flag].dest: (flag, words) for flag, words in after.items()}
    for group in GROUPS:
        if group & dests:
            dests |= {dest for dest in group if dest in wanted or key_of(dest) in subject.reading.values}
    for size, follower in FOLLOWERS.items():
        if size in dests and request.model.is_moe:
            dests.add(follower)
    for dest in sorted(dests):
        where = _where(subject, key_of(dest))
        if dest in wanted:
            flag, words = wanted[dest]
            yield Edit(flag, " ".join(words) if words else True, words, where)
        elif where:
            yield Edit(_stated_flag(subject, dest), None, (), where, drop=True)
    for name, flags in FASTER.items():
        if getattr(subject.request.workload, name) != getattr(request.workload, name):
            for flag, given in flags.items():
                where = _where(subject, key_of(megatron.flags()[flag].dest))
                if given is not None or where:
                    yield Edit(flag, None if given is None else " ".join(given) or True, given or (), where,
                               drop=given is None)  # fmt: skip
    yield from _bucket_edits(subject, request)


def _bucket_edits(subject: Subject, request: Request) -> Iterator[Edit]:
    """Parameters per bucket, and no number of buckets beside it, which megatron-core refuses."""
    size = request.workload.bucket_size
    if size == subject.request.workload.bucket_size:
        return
    where = _where(subject, key_of("ddp_bucket_size"))
    if size is not None or where:
        yield Edit("ddp-bucket-size", size, () if size is None else (str(size),), where, drop=size is None)
    number = _where(subject, key_of("ddp_num_buckets"))
    if number:
        yield Edit("ddp-num-buckets", None, (), number, drop=True)


def _stated_flag(subject: Subject, dest: str) -> str:
    """The flag by which a destination is stated: of a pair of switches the one that says what the value is."""
    value = subject.reading.values[key_of(dest)].value
    names = [flag for flag in megatron.flags().values() if flag.dest == dest]
    fitting = [flag for flag in names if flag.kind == ("on" if value is True else "off" if value is False else "")]
    return (fitting or names)[0].name


def _where(subject: Subject, key: str) -> str:
    stated = subject.reading.values.get(key)
    return "" if stated is None else place(stated.file, stated.line)


def _fields(subject: Subject, request: Request, choice: Choice) -> dict[str, Any]:
    """Settings of a Bridge configuration by dotted name."""
    export = _export(subject, request, choice)
    found = {name: value for _, values in sections(export) for name, value in values}
    name, changed = precision(export)
    found["mixed_precision"] = name
    found |= {f"mixed_precision.{field}": value for field, value in changed}
    has = with_overlap(subject.setup)
    for knob, (field, key, _) in OVERLAPS.items():
        found[f"comm_overlap.{field}" if has else key] = getattr(choice.knobs, knob)
    if not has:
        found[BATCHED] = not choice.knobs.overlap_p2p
    found[f"{'comm_overlap' if has else 'ddp'}.bucket_size"] = request.workload.bucket_size
    return found


def _field_edits(subject: Subject, request: Request, choice: Choice) -> Iterator[Edit]:
    before = _fields(subject, subject.request, subject.asked)
    after = _fields(subject, request, choice)
    changed = [name for name in after if name not in before or hydra(before[name]) != hydra(after[name])]
    changed += _beside(subject, changed, after)
    if PIPELINE & {*changed} and "pipeline_layout" in subject.request.settings:
        # A layout string, of the file or of its recipe, would go on deciding the stages.
        changed += [key for key in (SHORT["pp"], SHORT["vpp"], LAYOUT) if key not in changed]
    etp = SHORT["etp"]
    follows = {SHORT["tp"], SHORT["ep"]} & {*changed}
    stated = subject.reading.values.get(etp)
    if follows and etp in after and etp not in changed and (stated is None or stated.value is None):
        changed.append(etp)
    for name, (key, value) in FASTER_FIELDS.items():
        if getattr(subject.request.workload, name) != getattr(request.workload, name):
            after[key] = value
            changed.append(key)
    fields = [key for key in (*changed, *before) if key.startswith("mixed_precision.")]
    touched = any(key in changed or key not in after for key in fields)
    if subject.reading.kind != "bridge-python" and (touched or "mixed_precision" in changed):
        # Whatever the recipe holds, a name or an object, is replaced whole.
        changed = [key for key in changed if not key.startswith("mixed_precision")]
        before = {key: value for key, value in before.items() if not key.startswith("mixed_precision.")}
        yield from _whole_precision(subject, precision_object(_export(subject, request, choice)))
    elif fields and (touched or "mixed_precision" in changed) and _named_precision(subject):
        # Fields need the object: the name is replaced by it, and brings its own values of all fields.
        name = after["mixed_precision"]
        after["mixed_precision"] = Code(f'{NAMED_PRECISION}("{name}")', str(name))
        others = [key for key in changed if not key.startswith("mixed_precision")]
        changed = ["mixed_precision", *(key for key in after if key.startswith("mixed_precision.")), *others]
        before = {key: value for key, value in before.items() if not key.startswith("mixed_precision.")}
    for key in changed:
        yield Edit(key, after[key], (hydra(after[key]),), _where(subject, key))
    for key, old in before.items():
        if key not in after:
            value = not old if isinstance(old, bool) else OFF.get(key)
            yield Edit(key, value, (hydra(value),), _where(subject, key))


def _named_precision(subject: Subject) -> bool:
    """Whether a Python file leaves mixed precision to a name, its own or that of its recipe."""
    stated = subject.reading.values.get("mixed_precision")
    built = any(key.startswith("mixed_precision.") for key in subject.reading.values)
    return subject.reading.kind == "bridge-python" and not built and (stated is None or isinstance(stated.value, str))


def _whole_precision(subject: Subject, value: Any) -> Iterator[Edit]:
    """Mixed precision in one edit, and fields of it that the file states beside it taken away."""
    yield Edit("mixed_precision", value, (hydra(value),), _where(subject, "mixed_precision"))
    for key in subject.reading.values:
        if key.startswith("mixed_precision.") and subject.reading.kind != "bridge-config" and _states(subject, key):
            yield Edit(key, None, (), _where(subject, key), drop=True)


def _states(subject: Subject, key: str) -> bool:
    """Whether a setting is stated by itself, not within the object that holds it."""
    whole = subject.reading.values.get(key.partition(".")[0])
    return whole is None or whole.value != PRECISION_CLASS


def _beside(subject: Subject, changed: Sequence[str], after: Mapping[str, Any]) -> list[str]:
    """Other settings of the groups that `changed` touches, where nothing says that they hold already."""
    reader = Reader(subject.setup)
    found = []
    for group in FIELD_GROUPS:
        if not group & {*changed}:
            continue
        for key in after:
            held = reader.find(key)
            if key in group and key not in changed and (held is None or not _same(held.value, after[key])):
                found.append(key)
    return found


def _same(held: Any, wanted: Any) -> bool:
    """Whether a setting holds what is wanted; no list and an empty one are the same."""
    return hydra(held) == hydra(wanted) or (not held and not wanted and not isinstance(held, bool | int))


def _layout_edits(subject: Subject, request: Request, choice: Choice) -> Iterator[Edit]:
    """Our own options: sizes and knobs that differ."""
    old, new = subject.asked.layout, choice.layout
    values = {name: (getattr(old, name), getattr(new, name)) for name in (*SIZES, "sp", "gbs")}
    was, now = knob_words(subject.asked.knobs), knob_words(choice.knobs)
    values |= {name: (was[name], now[name]) for name in was}
    values["precision"] = (subject.request.workload.precision.name, request.workload.precision.name)
    for name in ("optimizer", "routing", "capacity_factor", "fp8_params"):
        values[name] = (getattr(subject.request.workload, name), getattr(request.workload, name))
    for name, (before, after) in values.items():
        if before != after:
            word = ",".join(after) or "none" if isinstance(after, list) else str(after).lower()
            key = KEYS.get(name, f"knob.{name}")
            yield Edit(name.replace("_", "-"), after, (word,), _where(subject, key))


KEYS = {name: SHORT[name] for name in (*SIZES, "sp", "gbs")}
"""The setting that holds each of our sizes."""
