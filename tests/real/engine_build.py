"""Builds GPU jobs of the trial worker with the real Python of Transformer Engine, without its compiled part or a GPU.

`python engine_build.py WHEEL JOBS.json`: WHEEL is the unpacked wheel of transformer-engine, whose Python knows every
argument that megatron-core and the worker give it; the compiled part is answered by stand-ins, process groups are fake.
A line of JSON per job: what was built, or what was refused. Nothing can be trained this way.
"""

from __future__ import annotations

import enum
import importlib
import importlib.abc
import importlib.machinery
import json
import os
import re
import sys
import types
from pathlib import Path
from typing import Any

os.environ |= {"NVTE_PROJECT_BUILDING": "1", "TORCHDYNAMO_DISABLE": "1"}

import torch
import torch._dynamo
import torch._inductor.compile_fx
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.testing._internal.distributed.fake_pg import FakeStore

COMPILED = ("transformer_engine_torch", "triton", "onnxscript", "onnx")
DTYPES = ("kByte", "kInt16", "kInt32", "kInt64", "kFloat32", "kFloat16", "kBFloat16", "kFloat8E4M3", "kFloat8E5M2",
          "kFloat8E8M0", "kFloat4E2M1")  # fmt: skip
BACKENDS = ("No_Backend", "F16_max512_seqlen", "F16_arbitrary_seqlen", "FP8")


class Constant(int):
    """A number of an enumeration that can be called too."""

    def __call__(self, *_: object, **__: object) -> Constant:
        return self


class Named(type):
    """A class whose attributes are constants."""

    def __getattr__(cls, name: str) -> Constant:
        if name.startswith("__"):
            raise AttributeError(name)
        return Constant(len(name))


def decorated(*given: Any, **options: Any) -> Any:
    """A decorator with or without arguments that changes nothing."""
    return given[0] if len(given) == 1 and callable(given[0]) and not options else lambda function: function


class Compiled(types.ModuleType):
    """A module of which everything exists: classes, functions, decorators."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in {"jit", "autotune", "heuristics"}:
            return decorated
        if self.__name__.startswith("onnx"):
            return (lambda *_, **__: decorated) if name == "script" else _onnx(self.__name__, name)
        made = Named(name, (), {"__init__": lambda *_, **__: None, "__class_getitem__": classmethod(lambda c, _: c)})
        setattr(self, name, made)
        return made


def _onnx(module: str, name: str) -> Any:
    if name[0].islower():
        return Compiled(f"{module}.{name}")
    return Named(name, (), {"__init__": lambda *_, **__: None, "__call__": lambda *_, **__: None})


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Answers imports of what is compiled."""

    def find_spec(self, name: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        compiled = name.partition(".")[0] in COMPILED
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if compiled else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = Compiled(spec.name)
        module.__path__, module.__version__ = [], "3.4.0"
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run."""


def enumeration(name: str, values: tuple[str, ...]) -> Any:
    return enum.IntEnum(name, {value: number for number, value in enumerate(values)})


def load(wheel: Path) -> Any:
    """transformer_engine.pytorch of the wheel; the module of its buffers."""
    sys.path.insert(0, str(wheel))
    sys.meta_path.insert(0, Finder())
    root = wheel / "transformer_engine" / "pytorch"
    compiled: Any = importlib.import_module("transformer_engine_torch")
    compiled.DType = enumeration("DType", _members(root / "constants.py", r"^    (k\w+) = ", DTYPES))
    backends = root / "cpp_extensions" / "fused_attn.py"
    names = _members(backends, r"^    (\w+) = int\(NVTE_Fused_Attn_Backend", BACKENDS)
    compiled.NVTE_Fused_Attn_Backend = enumeration("Backend", tuple(f"NVTE_{name}" for name in names))
    for way, parts in (("Fwd", ("INPUT", "WEIGHT", "OUTPUT")), ("Bwd", ("OUTPUT", "INPUT"))):
        ends = [f"GEMM{i}_{part}" if way == "Fwd" else f"GRAD_{part}{i}" for i in (1, 2, 3) for part in parts]
        setattr(compiled, f"FP8{way}Tensors", enumeration(way, tuple(ends)))
    compiled.device_supports_multicast = lambda *_: True
    compiled.ubuf_built_with_mpi = lambda: False
    compiled.get_stream_priority_range = lambda *_: (0, -1)
    compiled.get_cublasLt_version = lambda: 130000
    compiled.get_cudnn_version = lambda: 91000
    card = types.SimpleNamespace(major=9, minor=0, name="H100", multi_processor_count=132, total_memory=80 << 30)
    torch.cuda.get_device_properties = lambda *_: card  # type: ignore[assignment]
    torch.cuda.get_device_capability = lambda *_: (9, 0)
    torch.cuda.is_available = lambda: True
    importlib.import_module("transformer_engine.common").load_framework_extension = lambda *_: None
    importlib.import_module("transformer_engine.pytorch")
    return importlib.import_module("transformer_engine.pytorch.module.base")


def _members(path: Path, pattern: str, otherwise: tuple[str, ...]) -> tuple[str, ...]:
    """Names of an enumeration as the wheel's own Python repeats them, the older ones where it does not."""
    found = re.findall(pattern, path.read_text(), re.MULTILINE) if path.exists() else []
    return tuple(dict.fromkeys(found)) or otherwise


def fake_groups(world: int) -> None:
    """Process groups that do nothing, also where NCCL is asked for."""
    opened, group = dist.init_process_group, distributed_c10d.new_group

    def init_process_group(*_: object, **__: object) -> None:
        opened("fake", store=FakeStore(), rank=0, world_size=world)

    def new_group(*args: Any, **options: Any) -> Any:
        return group(*args, **{**options, "backend": None})

    def all_gather_object(found: list[Any], one: Any, *_: object, **__: object) -> None:
        found[:] = [one] * len(found)

    dist.init_process_group = init_process_group  # type: ignore[assignment]
    dist.new_group = distributed_c10d.new_group = new_group  # type: ignore[assignment]
    dist.all_gather_object = all_gather_object  # type: ignore[assignment]
    dist.is_backend_available = lambda _: True


def main(wheel: str, jobs_file: str) -> None:
    base = load(Path(wheel))
    from advisor.trial.worker import build, optional

    fake_groups(2)
    optional.lack_of_engine = lambda _: ""
    for name, job in json.loads(Path(jobs_file).read_text()).items():
        job["run"]["device"] = "cpu"
        try:
            build.open_groups(job)
            made = build.build(job)
            kinds = {type(module).__name__ for chunk in made.chunks for module in chunk.modules()}
            found = {"spec": made.layer_spec, "ignored": made.ignored, "stand_ins": made.stand_ins,
                     "tp_comm_overlap": made.config.tp_comm_overlap, "modules": sorted(kinds)}  # fmt: skip
        except Exception as problem:
            found = {"problem": f"{type(problem).__name__}: {problem}"}
        print(json.dumps({"job": name, **found}), flush=True)
        from megatron.core import parallel_state

        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()
        base._ub_communicators = None


if __name__ == "__main__":
    main(*sys.argv[1:])
