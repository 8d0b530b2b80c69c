"""A Megatron-Bridge configuration in Python, followed statement by statement without running it.

Understood are assignments to attributes of a configuration, constructors with keywords, local names and functions,
plugins, `os.environ`, and the order of `finalize()`. What is not understood becomes unknown. Both branches of a
condition are followed, so the later one wins.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from advisor.check.readers.expressions import UNKNOWN, constant, dotted
from advisor.check.reading import SECTIONS, Reading, comments
from advisor.errors import InputError
from advisor.rules.lint import Value

_SECTION_OF = {
    "CommOverlapConfig": "comm_overlap", "DistributedDataParallelConfig": "ddp", "OptimizerConfig": "optimizer",
    "CheckpointConfig": "checkpoint", "FaultToleranceConfig": "ft", "NVRxStragglerDetectionConfig": "nvrx_straggler",
    "StragglerDetectionConfig": "straggler", "InProcessRestartConfig": "inprocess_restart",
    "RerunStateMachineConfig": "rerun_state_machine", "TrainingConfig": "train", "SchedulerConfig": "scheduler",
    "DistributedInitConfig": "dist", "LoggerConfig": "logger", "TokenizerConfig": "tokenizer", "RNGConfig": "rng",
    "MixedPrecisionConfig": "mixed_precision", "ProfilingConfig": "profiling", "ValidationConfig": "validation",
    "LoRA": "peft", "DoRA": "peft", "CanonicalLoRA": "peft", "TensorInspectConfig": "tensor_inspect",
}  # fmt: skip
_DEEPEST = 60
_TOUCHES_CUDA = ("torch.cuda.set_device", "init_process_group", "torch.cuda.init", "initialize_megatron")


@dataclass(slots=True, eq=False)
class Thing:
    """An object under construction: its class (or ""), its attributes and the line each was set on."""

    kind: str = ""
    line: int = 0
    attributes: dict[str, tuple[Any, int]] = field(default_factory=dict)
    keywords: frozenset[str] = frozenset()
    finalized: bool = False
    home: str = ""

    def child(self, name: str, line: int) -> Thing:
        """The object behind an attribute, made when it is first used."""
        value = self.attributes.get(name, (None, 0))[0]
        if not isinstance(value, Thing):
            # A name (`mixed_precision = "bf16_mixed"`) stands for the object whose fields are set next.
            value = Thing(value if isinstance(value, str) else "", line=line, home=name)
            self.attributes[name] = (value, line)
        return value


def section_of(kind: str) -> str:
    """The section of a configuration that an object of this class fills; "" if it is none."""
    name = kind.rpartition(".")[2]
    if name in _SECTION_OF:
        return _SECTION_OF[name]
    if name.endswith(("Provider", "ModelConfig", "TransformerConfig")) and not name.endswith("DatasetProvider"):
        return "model"
    return "dataset" if "Dataset" in name else ""


class Follower:
    """Follows the statements of a module and collects things, environment and facts."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.names: dict[str, Any] = {}
        self.functions: dict[str, Any] = {}
        self.roots: list[Thing] = []
        self.loose: list[Thing] = []
        self.cuda_touched = False

    def block(self, statements: Iterable[ast.stmt], depth: int = 0) -> Any:
        """Follow statements; the value of the last `return`."""
        result: Any = None
        for statement in statements if depth < _DEEPEST else ():
            found = self.statement(statement, depth)
            result = found if found is not None else result
        return result

    def statement(self, node: ast.stmt, depth: int) -> Any:
        """Follow one statement; what it returns, if it does."""
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            outer, touched = dict(self.names), self.cuda_touched
            for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
                self.names.pop(argument.arg, None)
            self.functions[node.name] = self.block(node.body, depth + 1)
            self.names, self.cuda_touched = outer, touched
        elif isinstance(node, ast.ClassDef):
            self.block(node.body, depth + 1)
        elif isinstance(node, ast.Assign):
            self.assign(node)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self.target(node.target, self.value(node.value), node.lineno)
        elif isinstance(node, ast.AugAssign):
            self.target(node.target, UNKNOWN, node.lineno)
        elif isinstance(node, ast.Return) and node.value is not None:
            return self.value(node.value)
        elif isinstance(node, ast.Expr):
            self.value(node.value)
        elif isinstance(node, ast.If | ast.For | ast.While | ast.With | ast.Try):
            if isinstance(node, ast.If):
                self.condition(node.test)
            bodies = [node.body, *([h.body for h in node.handlers] if isinstance(node, ast.Try) else [])]
            bodies += [getattr(node, "orelse", []), getattr(node, "finalbody", [])]
            results = [self.block(body, depth + 1) for body in bodies]
            return next((result for result in results if result is not None), None)
        return None

    def condition(self, test: ast.expr) -> None:
        """A script that refuses to run because WORLD_SIZE is not set does not start under srun."""
        text = ast.unparse(test)[:2000]
        if "WORLD_SIZE" in text and "SLURM_NTASKS" not in text and ("None" in text or "not in" in text):
            self.reading.know("tests_world_size", True, test.lineno)

    def assign(self, node: ast.Assign) -> None:
        """`a = b = value`, `a, b = value, value`."""
        value = self.value(node.value)
        for target in node.targets:
            if isinstance(target, ast.Tuple | ast.List):
                values = value if isinstance(value, list | tuple) else []
                for at, one in enumerate(target.elts):
                    self.target(one, values[at] if at < len(values) else UNKNOWN, node.lineno)
            else:
                self.target(target, value, node.lineno)

    def target(self, node: ast.expr, value: Any, line: int) -> None:
        """Store a value under a name, an attribute or an item."""
        if isinstance(node, ast.Name):
            self.names[node.id] = value
        elif isinstance(node, ast.Attribute):
            holder = self.thing(node.value, line)
            if holder is None:
                return
            self._late(holder, node.attr, line)
            if node.attr == "env_vars" and isinstance(value, dict):
                self.environment(value, line, python=False)
            holder.attributes[node.attr] = (value, line)
        elif isinstance(node, ast.Subscript):
            self.item(node, value, line)

    def _late(self, holder: Thing, name: str, line: int) -> None:
        if holder.finalized:
            where = holder.home or section_of(holder.kind)
            fact = "comm_overlap_after_finalize" if where == "comm_overlap" else "after_finalize"
            self.reading.know(fact, f"{where}.{name}", line)

    def item(self, node: ast.Subscript, value: Any, line: int) -> None:
        """`os.environ["X"] = "1"`, `cfg.env_vars["X"] = "1"`."""
        base, key = dotted(node.value), constant(node.slice)
        if not isinstance(key, str) or base is None:
            return
        if base in ("os.environ", "environ"):
            self.environment({key: value}, line, python=True)
        elif base.endswith("env_vars"):
            self.environment({key: value}, line, python=False)

    def environment(self, found: dict[Any, Any], line: int, *, python: bool) -> None:
        """Environment variables that the file sets; in Python they come too late once CUDA is initialised."""
        for name, value in found.items():
            known = value is not UNKNOWN and isinstance(value, str | int | float)
            if not python or not self.cuda_touched:
                self.reading.env[str(name)] = Value(str(value) if known else "$", self.reading.file, line)
            if python and str(name) in ("CUDA_DEVICE_MAX_CONNECTIONS", "NVTE_FWD_LAYERNORM_SM_MARGIN",
                                        "NVTE_BWD_LAYERNORM_SM_MARGIN", "PYTORCH_CUDA_ALLOC_CONF"):  # fmt: skip
                self.reading.know("late_variable" if self.cuda_touched else "python_variable", name, line)

    def thing(self, node: ast.expr, line: int) -> Thing | None:
        """The object that an expression names; an unknown name is taken for a configuration."""
        if isinstance(node, ast.Name):
            found = self.names.get(node.id)
            if not isinstance(found, Thing):
                if found is not None and found is not UNKNOWN:
                    return None
                found = Thing(line=line)
                self.names[node.id] = found
                self.roots.append(found)
            return found
        if isinstance(node, ast.Attribute):
            holder = self.thing(node.value, line)
            return None if holder is None else holder.child(node.attr, line)
        if isinstance(node, ast.Call):
            made = self.value(node)
            return made if isinstance(made, Thing) else None
        return None

    def value(self, node: ast.expr) -> Any:
        """What an expression is worth: a constant, a thing, or UNKNOWN."""
        if isinstance(node, ast.Name) and node.id in self.names:
            return self.names[node.id]
        if isinstance(node, ast.Attribute):
            found = self._attribute(node)
            return constant(node) if found is UNKNOWN else found
        if isinstance(node, ast.Call):
            return self.call(node)
        if isinstance(node, ast.Tuple | ast.List | ast.Set):
            return [self.value(one) for one in node.elts]
        if isinstance(node, ast.Dict):
            keys = [constant(key) if key is not None else UNKNOWN for key in node.keys]
            return {key: self.value(one) for key, one in zip(keys, node.values, strict=True) if isinstance(key, str)}
        if isinstance(node, ast.IfExp):
            return UNKNOWN
        return constant(node, self.names)

    def _attribute(self, node: ast.Attribute) -> Any:
        if isinstance(node.value, ast.Name) and isinstance(self.names.get(node.value.id), Thing):
            holder: Thing | None = self.names[node.value.id]
        elif isinstance(node.value, ast.Attribute):
            inner = self._attribute(node.value)
            holder = inner if isinstance(inner, Thing) else None
        else:
            holder = None
            if isinstance(node.value, ast.Name) and node.attr in SECTIONS and node.value.id not in self.names:
                return self.thing(node, node.lineno)
        if holder is None:
            return UNKNOWN
        if node.attr in SECTIONS and node.attr not in holder.attributes and holder in self.roots:
            return holder.child(node.attr, node.lineno)
        return holder.attributes.get(node.attr, (UNKNOWN, 0))[0]

    def call(self, node: ast.Call) -> Any:
        """A constructor, a local function, a recipe, or one of the calls that matter."""
        name = dotted(node.func) or ""
        short = name.rpartition(".")[2]
        keywords = {one.arg: (self.value(one.value), one.value.lineno) for one in node.keywords if one.arg is not None}
        arguments = [self.value(one) for one in node.args]
        if name.endswith(_TOUCHES_CUDA):
            self.cuda_touched = True
        if short in ("finalize", "validate", "setup") and isinstance(node.func, ast.Attribute):
            self._finalize(node.func)
            return UNKNOWN
        if name in ("os.environ.update", "os.environ.setdefault", "environ.setdefault", "os.putenv"):
            pairs = arguments[0] if arguments and isinstance(arguments[0], dict) else {}
            pairs = pairs or ({arguments[0]: arguments[1]} if len(arguments) > 1 else {})
            pairs |= {key: value for key, (value, _) in keywords.items()}
            self.environment(pairs, node.lineno, python=True)
            return UNKNOWN
        return self._build(node, name, short, keywords, arguments)

    def _finalize(self, node: ast.Attribute) -> None:
        holder = self.value(node.value) if not isinstance(node.value, ast.Call) else None
        if isinstance(holder, Thing):
            holder.finalized = True
            for child, _ in holder.attributes.values():
                if isinstance(child, Thing) and holder in self.roots:
                    child.finalized = True

    def _build(self, node: ast.Call, name: str, short: str, keywords: Any, arguments: list[Any]) -> Any:
        if short in self.functions:
            return self.functions[short] if self.functions[short] is not None else UNKNOWN
        if short == "apply_flex_dispatcher_backend":
            backend = arguments[1] if len(arguments) > 1 else keywords.get("moe_flex_dispatcher_backend", (None, 0))[0]
            if backend is not UNKNOWN:
                self.reading.know("flex_helper", "None" if backend is None else str(backend), node.lineno)
        if short in ("init_process_group", "timedelta"):
            return self._timeout(short, keywords)
        if short in ("Script", "Partial") and name.startswith("run."):
            self.reading.know(f"run.{short}", True, node.lineno)
            self.reading.know("nemo_run", True, node.lineno)
        if short.endswith("_config") and short != "get_mixed_precision_config":
            return self._recipe(short, keywords, node.lineno)
        if short == "get_mixed_precision_config":
            return arguments[0] if arguments else UNKNOWN
        if short[:1].isupper():
            made = Thing(short, node.lineno)
            made.attributes.update(keywords)
            made.keywords = frozenset(keywords)
            if short.endswith("Plugin"):
                self._plugin(made)
            elif short == "ConfigContainer":
                self.roots.append(made)
            else:
                self.loose.append(made)
            return made
        return UNKNOWN

    def _timeout(self, short: str, keywords: Any) -> Any:
        if short == "timedelta":
            units = {"seconds": 1, "minutes": 60, "hours": 3600}
            parts = [units[key] * value for key, (value, _) in keywords.items()
                     if key in units and isinstance(value, int | float)]  # fmt: skip
            return float(sum(parts)) if parts else UNKNOWN
        value, line = keywords.get("timeout", (None, 0))
        if isinstance(value, float):
            self.reading.know("process_group_timeout_s", value, line)
        return UNKNOWN

    def _recipe(self, short: str, keywords: Any, line: int) -> Thing:
        self.reading.recipe = short
        root = Thing("ConfigContainer", line)
        for name, (value, at) in keywords.items():
            root.child("model", at).attributes[name] = (value, at)
        self.roots.append(root)
        return root

    def _plugin(self, made: Thing) -> None:
        self.reading.know(f"plugin.{made.kind}", True, made.line)
        for name, (value, line) in made.attributes.items():
            if value is not UNKNOWN and not isinstance(value, Thing):
                self.reading.put(f"plugin.{made.kind}.{name}", value, line)

    def settle(self) -> None:
        """Write everything found into the reading, objects that were never attached to a configuration included."""
        attached: set[int] = set()
        for root in self.roots:
            self._flatten(root, "", attached)
        for thing in self.loose:
            section = section_of(thing.kind)
            if id(thing) not in attached and section:
                self._section(section, thing, attached)

    def _flatten(self, thing: Thing, prefix: str, attached: set[int], depth: int = 0) -> None:
        attached.add(id(thing))
        for name, (value, line) in thing.attributes.items():
            key = f"{prefix}{name}"
            if name in thing.keywords:
                self.reading.know(f"keyword.{key}", True, line)
            if isinstance(value, Thing) and id(value) not in attached and depth < _DEEPEST:
                if not prefix and name in SECTIONS:
                    self._section(name, value, attached)
                else:
                    self.reading.put(key, value.kind or "object", line)
                    self._flatten(value, f"{key}.", attached, depth + 1)
            elif prefix or name in SECTIONS:
                self._setting(key, value, line)

    def _section(self, section: str, thing: Thing, attached: set[int]) -> None:
        if thing.kind:
            self.reading.know(f"built.{section}", thing.kind, thing.line)
            self.reading.put(section, thing.kind, thing.line)
        self._flatten(thing, f"{section}.", attached)

    def _setting(self, key: str, value: Any, line: int) -> None:
        if value is UNKNOWN or isinstance(value, Thing):
            self.reading.know(f"unknown.{key}", True, line)
            return
        if key.endswith("tp_comm_overlap_cfg") and value is not None:
            self._preset(value, line)
        if isinstance(value, list):
            value = [item for item in value if not isinstance(item, Thing) and item is not UNKNOWN]
        self.reading.put(key, value, line)

    def _preset(self, value: Any, line: int) -> None:
        if isinstance(value, dict):
            self.reading.know("tp_preset_kind", "dict", line)
        elif isinstance(value, str) and not isinstance(value, Imported):
            self.reading.know("tp_preset_kind", "name in quotes", line)


class Imported(str):
    """The name of an imported object, unlike a name that stands in quotes."""


def read_python(path: str, text: str) -> Reading:
    """The configuration that Python source states. InputError if it does not parse."""
    reading = Reading(path, "bridge-python", "bridge")
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        where = f" (line {line}: {getattr(error, 'msg', '')})" if line else ""
        raise InputError(
            f"{path!r} is not complete Python{where}", hint="finish the file; it is read, never run"
        ) from None
    follower = Follower(reading)
    _imports(follower, tree)
    try:
        follower.block(tree.body)
    except RecursionError:
        raise InputError(f"{path!r} nests too deeply to be read") from None
    follower.settle()
    comments(reading, text)
    return reading


def _imports(follower: Follower, tree: ast.Module) -> None:
    """Imported user-buffer presets become their own name; nemo_run becomes a fact."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if alias.name.startswith("userbuffers_"):
                    follower.names[alias.asname or alias.name] = Imported(alias.name)
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            modules.append(node.module)
        if any(module.split(".")[0] == "nemo_run" for module in modules):
            follower.reading.know("nemo_run", True, getattr(node, "lineno", 0))
        if any(module.split(".")[0] == "megatron" for module in modules):
            follower.reading.know("imports_megatron")
