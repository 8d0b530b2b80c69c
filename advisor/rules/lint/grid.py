"""Arguments, the split of layers, batches and schedules: what is refused before a model is built."""

from __future__ import annotations

from advisor.errors import InputError
from advisor.rules.lint.form import ARG, CFG, MPC, TC, Hit, rule
from advisor.rules.lint.setup import Setup
from advisor.spec.split import parse_layout_string

LAYOUT = "ML:megatron/core/transformer/pipeline_parallel_layer_layout.py"
REQUIRED = ("layers", "hidden_size", "num_attention_heads", "max_position_embeddings", "mbs")
FORMS = (
    "num_layers_per_virtual_pipeline_stage",
    "num_virtual_stages_per_pipeline_rank",
    "pipeline_model_parallel_layout",
)


def _missing(c: Setup) -> Hit | None:
    if not c.fact("complete_script") or c.on("use_checkpoint_args") or c.get("hybrid_layer_pattern"):
        return None
    absent = [key for key in REQUIRED if c.get(key) is None and not (key == "layers" and c.get("encoder_num_layers"))]
    if not absent or len(absent) > 2:
        return None
    names = ", ".join(key if key != "layers" else "num_layers" for key in absent)
    return Hit(f"a launch script without {names.replace('mbs', 'micro_batch_size')}", f"state {names}")


def _ends(c: Setup) -> list[int]:
    first, last = c.number("num_layers_in_first_pipeline_stage"), c.number("num_layers_in_last_pipeline_stage")
    return [int(n) for n in (first, last) if n is not None]


def _dealt_elsewhere(c: Setup) -> bool:
    """Whether somebody else deals the layers out: a layout string, a pattern, or the recipe a file starts from."""
    if c.get("pipeline_model_parallel_layout") is not None or c.get("hybrid_layer_pattern"):
        return True
    if c.fact("bare_layout") is not None:
        return not c.given("layers")
    recipe = c.base.get("model.pipeline_model_parallel_size")
    layers = c.number("layers")
    return isinstance(recipe, int) and recipe > 1 and bool(layers and layers % recipe) and not c.given("layers")


def _even(c: Setup) -> str | None:
    layers = c.number("layers")
    if layers is None or _ends(c) or _dealt_elsewhere(c):
        return None
    count = int(layers) + c.on("account_for_embedding_in_pipeline_split") + c.on("account_for_loss_in_pipeline_split")
    if c.pp > 1 and count % c.pp:
        return f"{count} layers (embedding and loss counted where asked for) do not divide by PP {c.pp}"
    return None


def _virtual(c: Setup) -> str | None:
    layers, per = c.number("layers"), c.number("num_layers_per_virtual_pipeline_stage")
    if layers is None or _even(c) or _ends(c) or _dealt_elsewhere(c):
        return None
    count = int(layers) + c.on("account_for_embedding_in_pipeline_split") + c.on("account_for_loss_in_pipeline_split")
    stage = count // c.pp
    if c.framework == "megatron-lm" and per is not None and (per < 1 or stage % int(per)):
        return f"{stage} layers per stage do not divide by {per} layers per virtual stage"
    if c.vpp > 1 and stage % c.vpp:
        return f"{stage} layers per stage do not divide by VPP {c.vpp}"
    return None


def _uneven(c: Setup) -> str | None:
    layers, ends = c.number("layers"), _ends(c)
    if layers is None or not ends or c.get("pipeline_model_parallel_layout"):
        return None
    middle, stages = int(layers) - sum(ends), c.pp - len(ends)
    if min(ends) <= 0:
        return f"a first or last stage of {min(ends)} layers"
    if any(count % c.vpp for count in ends):
        return f"first and last stage of {ends} layers do not divide by VPP {c.vpp}"
    if bool(middle) != bool(stages) or stages < 0 or middle < 0:
        return f"{middle} layers are left for {stages} middle stages (PP {c.pp})"
    if stages and middle % stages:
        return f"{middle} middle layers do not divide by {stages} middle stages"
    if stages and middle // stages % c.vpp:
        return f"{middle // stages} layers per middle stage do not divide by VPP {c.vpp}"
    return None


def _layout(c: Setup) -> str | None:
    text, layers = c.get("pipeline_model_parallel_layout"), c.number("layers")
    if not isinstance(text, str) or layers is None or "$" in text:
        return None
    depth = c.number("mtp_num_layers") if c.known("mtp_num_layers") else None
    try:
        split = parse_layout_string(text, c.pp, int(layers), int(depth or 0) if c.known("mtp_num_layers") else None)
    except InputError as error:
        return error.message
    if c.vpp > 1 and c.framework != "megatron-lm" and c.given("vpp") and c.vpp != split.vpp:
        return f"VPP {c.vpp} conflicts with the layout of {split.vpp} virtual stages"
    return None


def _eval_batch(c: Setup) -> str | None:
    gbs, mbs = c.number("validation.eval_global_batch_size"), c.number("validation.eval_micro_batch_size")
    if (gbs is None and mbs is None) or c.dp is None:
        return None
    gbs, mbs = gbs if gbs is not None else c.number("gbs"), mbs if mbs is not None else c.number("mbs")
    if gbs is None or mbs is None or mbs < 1 or gbs % (mbs * c.dp) == 0:
        return None
    return f"eval batch {gbs} is no multiple of eval micro batch {mbs} x DP {c.dp}"


def _modes(c: Setup) -> int:
    return sum(c.number(f"train.{key}") is not None for key in ("train_iters", "train_samples", "num_epochs"))


def _no_length(c: Setup) -> bool:
    keys = [f"train.{key}" for key in ("train_iters", "train_samples", "num_epochs")]
    return c.given(*keys) and _modes(c) == 0 and all(c.get(key) is None for key in keys)


def _no_decay(c: Setup) -> bool:
    lengths = [c.number(f"scheduler.{key}") for key in ("lr_decay_iters", "lr_decay_samples")]
    return any(length is not None and length <= 0 for length in lengths)


def _iterations_and_samples(c: Setup) -> bool:
    by_iters, by_samples = c.number("train.train_iters"), c.number("train.train_samples")
    samples = c.number("scheduler.lr_decay_samples") or c.number("scheduler.lr_warmup_samples")
    iters = c.number("scheduler.lr_decay_iters") or c.number("scheduler.lr_warmup_iters")
    mixed = c.framework == "bridge" and bool(iters and samples)
    return mixed or bool((by_iters and not by_samples and samples) or (by_samples and not by_iters and iters))


def _both_warmups(c: Setup) -> bool:
    exact = c.number("scheduler.lr_warmup_iters") or c.number("scheduler.lr_warmup_samples")
    return c.number("scheduler.lr_warmup_fraction") is not None and bool(exact)


def _capped_warmup(c: Setup) -> bool:
    warmup = c.number("scheduler.lr_warmup_iters")
    decay = c.number("scheduler.lr_decay_iters") or c.number("train.train_iters")
    return warmup is not None and decay is not None and warmup > 0 and warmup >= decay


def _one_way(c: Setup) -> bool:
    return c.framework != "bridge" and sum(c.get(form) is not None for form in FORMS) > 1


def _ways_with_ends(c: Setup) -> bool:
    account = c.on("account_for_embedding_in_pipeline_split") or c.on("account_for_loss_in_pipeline_split")
    layout = c.get("pipeline_model_parallel_layout") is not None
    per = c.get("num_layers_per_virtual_pipeline_stage") is not None and c.framework == "megatron-lm"
    return (bool(_ends(c)) and (account or layout or per)) or (layout and account)


def _vpp_at_all(c: Setup) -> bool:
    if c.framework == "megatron-lm":
        return c.fact("interleaved") is True and c.pp <= 1
    return False


DP_FACTS = "Megatron-Core: DP = GPUs / (TP x PP x CP), expert DP = GPUs / (ETP x EP x PP)"

GRID = (
    rule("required-arguments", "stop", "arguments", "megatron-lm", f"{ARG} (required_args)", _missing,
         "a required argument is missing", "state the argument named"),
    rule("one-way-to-split-layers", "stop", "arguments", "megatron-lm", ARG, _one_way,
         "more than one of layers per virtual stage ({num_layers_per_virtual_pipeline_stage}), virtual stages per rank "
         "({num_virtual_stages_per_pipeline_rank}) and layout ({pipeline_model_parallel_layout})", "keep one of them"),
    rule("split-forms-exclude", "stop", "arguments", "mcore", f"{TC} __post_init__; {ARG}", _ways_with_ends,
         "first/last stage layer counts, account_for_*, a layout string and layers per virtual stage do not mix",
         "keep one form; with uneven ends state virtual stages per rank"),
    rule("layers-divide-by-pp", "stop", "grid", "mcore", f"{TC} __post_init__; {ARG}", _even,
         "layers do not divide by PP", "use a pipeline layout string, uneven first/last stages, or another PP"),
    rule("stage-layers-divide-by-vpp", "stop", "grid", "mcore", f"{TC} __post_init__; {ARG}", _virtual,
         "layers per stage do not divide by virtual stages", "choose VPP among the divisors of the layers per stage"),
    rule("uneven-split-needs-stages", "stop", "grid", "mcore", f"{TC} __post_init__", _uneven,
         "first/last stage layer counts leave layers that the other stages cannot share", "adjust counts or PP"),
    rule("layout-string-fits", "stop", "grid", "mcore", f"{LAYOUT}; {TC}", _layout,
         "the pipeline layout string does not fit", "E first, L last, every layer once, stages in multiples of PP"),
    rule("interleave-flags-need-pp", "stop", "grid", "megatron-lm", ARG, _vpp_at_all,
         "virtual stages with PP {pp}: the interleaved schedule needs PP > 1", "drop the virtual stages or raise PP"),
    rule("data-parallel-size-agrees", "stop", "grid", "mcore", DP_FACTS,
         lambda c: c.dp is not None and c.number("layout.dp") is not None and c.number("layout.dp") != c.dp,
         "DP {layout.dp} is stated, {gpus} GPUs / (TP {tp} x PP {pp} x CP {cp}) is {dp}", 
         "drop DP, or make it the quotient: EP is no factor of it"),
    rule("positive-sizes", "stop", "arguments", "mcore", f"{TC} __post_init__",
         lambda c: next((f"{key} is {c.get(key)}: it must be 1 or more" for key in ("tp", "pp", "cp", "ep", "etp",
         "mbs",
                         "gbs", "layers") if (n := c.number(key)) is not None and n < 1), None),
         "a size below 1", "use 1 or more"),
    rule("sp-needs-tp", "stop", "grid", "bridge mcore", f"{MPC} __post_init__",
         lambda c: c.on("sp") and c.given("sp") and c.one("tp"),
         "sequence parallelism needs TP > 1, TP is {tp} (Bridge 0.3 refuses it, 0.6 switches it off)",
         "switch sequence_parallel off, or raise TP", versions="megatron-core >=0.16, bridge <0.6"),
    rule("sp-off-without-tp", "silent", "grid", "bridge megatron-lm", f"{ARG} (Disabling sequence parallelism)",
         lambda c: c.on("sp") and c.one("tp") and (c.framework != "bridge" or c.given("sp")),
         "sequence parallelism is switched off because TP is {tp}", "drop it, or raise TP", versions="bridge >=0.6"),
    rule("eval-batch-divides", "stop", "grid", "bridge megatron-lm", f"{CFG}; {ARG}", _eval_batch,
         "the eval batch does not divide", "make it a multiple of eval micro batch x eval DP"),
    rule("batch-schedule-or-size", "stop", "arguments", "megatron-lm", ARG,
         lambda c: c.get("train.step_batch_size_schedule") is not None and c.given("gbs"),
         "a step batch size schedule and a global batch size", "keep one of them"),
    rule("one-training-length", "stop", "arguments", "bridge megatron-lm", f"{CFG}: TrainingConfig; {ARG}",
         lambda c: _modes(c) > 1, "more than one of train_iters ({train.train_iters}), train_samples "
         "({train.train_samples}) and num_epochs ({train.num_epochs})", "keep one"),
    rule("training-length-stated", "stop", "arguments", "bridge", f"{CFG}: TrainingConfig", _no_length,
         "neither train_iters nor train_samples nor num_epochs says how long to train", "train.train_iters=N"),
    rule("epochs-and-samples-without-rampup", "stop", "arguments", "bridge", f"{CFG}: TrainingConfig",
         lambda c: c.on("train.rampup_batch_size")
         and (c.number("train.train_samples") or c.number("train.num_epochs")) is not None,
         "batch ramp-up goes with train_iters only", "drop rampup_batch_size, or train by iterations"),
    rule("epochs-need-batch-dataloader", "stop", "arguments", "bridge", f"{CFG}: num_epochs",
         lambda c: c.number("train.num_epochs") is not None and c.isnt("dataset.dataloader_type", "batch", None),
         "num_epochs needs dataloader_type batch, it is {dataset.dataloader_type}", "dataset.dataloader_type=batch",
         versions="bridge >=0.6"),
    rule("schedule-in-one-unit", "stop", "arguments", "bridge megatron-lm", f"{CFG} scheduler; {ARG}",
         _iterations_and_samples,
         "training and learning-rate schedule are counted in different units (iterations, samples)",
         "iterations throughout, or samples throughout"),
    rule("warmup-once", "stop", "arguments", "bridge megatron-lm", f"{CFG}: SchedulerConfig; {ARG}", _both_warmups,
         "lr_warmup_fraction {scheduler.lr_warmup_fraction} and an exact warm-up are both set", "keep one"),
    rule("warmup-capped", "silent", "arguments", "bridge", f"{CFG}: _calculate_scheduler_steps", _capped_warmup,
         "warm-up of {scheduler.lr_warmup_iters} iterations reaches the end of the decay: it is capped one below",
         "shorten the warm-up"),
    rule("decay-takes-steps", "stop", "arguments", "bridge megatron-lm", f"{CFG}: _calculate_scheduler_steps; "
         "ML:megatron/core/optimizer_param_scheduler.py", _no_decay,
         "the learning rate decays over no step: lr_decay_iters {scheduler.lr_decay_iters}, lr_decay_samples "
         "{scheduler.lr_decay_samples}", "the length of training, or leave it unset"),
    rule("schedule-reaches-the-end", "stop", "arguments", "bridge", f"{CFG}: _calculate_scheduler_steps",
         lambda c: c.number("scheduler.max_steps") is not None and (c.n("scheduler.max_steps") <= 0
         or c.n("scheduler.max_steps") < c.n("train.train_iters")),
         "scheduler.max_steps {scheduler.max_steps} is below train_iters {train.train_iters}",
         "scheduler.max_steps of the whole run, or leave it unset", versions="bridge >=0.6"),
    rule("scheduler-override-or-checkpoint", "stop", "arguments", "bridge megatron-lm", f"{CFG}: SchedulerConfig",
         lambda c: c.on("scheduler.override_opt_param_scheduler")
         and c.on("scheduler.use_checkpoint_opt_param_scheduler"),
         "the scheduler is to be overridden and to be taken from the checkpoint", "keep one"),
    rule("weight-decay-rises", "stop", "arguments", "bridge", f"{CFG}: SchedulerConfig",
         lambda c: (start := c.number("scheduler.start_weight_decay")) is not None
         and (start < 0 or ((end := c.number("scheduler.end_weight_decay")) is not None and end < start)),
         "weight decay from {scheduler.start_weight_decay} to {scheduler.end_weight_decay}: it may not fall or be "
         "negative", "0 <= start_weight_decay <= end_weight_decay"),
    rule("tracker-needs-name", "stop", "arguments", "bridge", f"{CFG}: LoggerConfig",
         lambda c: next((f"logger.{what} {c.get(f'logger.{what}')} without logger.{name}" for what, name in (
             ("mlflow_experiment", "mlflow_run_name"), ("comet_project", "comet_experiment_name"))
             if c.on(f"logger.{what}") and not c.on(f"logger.{name}")), None),
         "an experiment tracker without the name of the run", "logger.mlflow_run_name, logger.comet_experiment_name"),
    rule("min-lr-below-lr", "stop", "arguments", "megatron-lm", ARG,
         lambda c: c.n("optimizer.lr") > 0 and (c.number("optimizer.min_lr")
         or 0) > c.n("optimizer.lr"),
         "min_lr {optimizer.min_lr} is above lr {optimizer.lr}", "lower min_lr"),
    rule("save-needs-interval", "stop", "checkpoint", "megatron-lm", ARG,
         lambda c: c.get("checkpoint.save") is not None and not c.number("checkpoint.save_interval"),
         "--save without --save-interval", "add --save-interval"),
    rule("retain-multiple-of-save", "stop", "checkpoint", "megatron-lm", ARG,
         lambda c: c.n("checkpoint.save_retain_interval") != 0 and c.n("checkpoint.save_interval") != 0
         and c.n("checkpoint.save_retain_interval") % c.n("checkpoint.save_interval") != 0,
         "retain interval {checkpoint.save_retain_interval} is no multiple of save interval {checkpoint.save_interval}",
         "make it a multiple"),
    rule("positions-cover-sequence", "stop", "arguments", "megatron-lm", ARG,
         lambda c: (c.number("max_position_embeddings") or 10**12) < c.n("seq"),
         "max_position_embeddings {max_position_embeddings} is below seq_length {seq}", "raise it to {seq}"),
    rule("heads-divide-hidden", "stop", "transformer", "megatron-lm", ARG,
         lambda c: c.get("kv_channels") is None and c.n("hidden_size") != 0
         and c.n("num_attention_heads") != 0
         and c.n("hidden_size") % c.n("num_attention_heads") != 0,
         "hidden size {hidden_size} does not divide by {num_attention_heads} heads and kv_channels is not set",
         "set --kv-channels"),
    rule("deprecated-argument", "stop", "arguments", "megatron-lm", f"{ARG} (Deprecated arguments)",
         lambda c: next((f"--{name.replace('_', '-')} is no longer valid" for name in
                         ("batch_size", "warmup", "model_parallel_size", "checkpoint_activations")
                         if c.stated(name) not in (None, False)),
                         None),
         "an argument that Megatron-LM has removed", "use --micro-batch-size, --lr-warmup-fraction, "
         "--tensor-model-parallel-size, --recompute-granularity"),
    rule("one-activation", "stop", "arguments", "megatron-lm", "ML:megatron/training/arguments.py "
         "core_transformer_config_from_args", lambda c: c.on("swiglu")
         and (c.on("squared_relu") or c.on("quick_geglu")),
         "--swiglu together with another activation", "keep one"),
    rule("memory-log-interval", "stop", "arguments", "megatron-lm", ARG,
         lambda c: c.n("log_memory_interval") > 0 and c.n("log_interval") > 0
         and c.n("log_memory_interval") % c.n("log_interval") != 0,
         "log_memory_interval {log_memory_interval} is no multiple of log_interval {log_interval}",
         "a multiple of log_interval"),
    rule("local-attention-needs-spec", "stop", "arguments", "megatron-lm", ARG,
         lambda c: c.get("attention_backend") == "local" and "local" not in c.items("spec"),
         "--attention-backend local without --spec local", "--spec local"),
    rule("weight-decay-style", "stop", "arguments", "megatron-lm", ARG,
         lambda c: (c.given("scheduler.weight_decay_incr_style")
                    and c.get("scheduler.weight_decay_incr_style") != "constant"
                    and not (c.given("scheduler.start_weight_decay") and c.given("scheduler.end_weight_decay")))
         or (c.get("scheduler.weight_decay_incr_style") == "constant"
         and (c.given("scheduler.start_weight_decay") or c.given("scheduler.end_weight_decay"))),
         "start and end weight decay go with a style that is not constant, and with it both are needed",
         "--weight-decay alone, or style, start and end"),
)  # fmt: skip
