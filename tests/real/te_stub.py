"""A stand-in for Transformer Engine, so that megatron.bridge can be imported where no GPU is.

Bridge imports `transformer_engine` unguarded (megatron.bridge.peft.lora_layers), and Transformer Engine needs CUDA to
build. Any `transformer_engine[.x]` import is answered by a module whose capitalised attributes are empty nn.Module
classes and whose other attributes are callable submodules. Nothing here computes; with it `HAVE_TE` is True, so that
communication overlap resolves as on a machine with GPUs.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import inspect
import sys
import types
from collections.abc import Sequence
from typing import Any

NAMES = ("transformer_engine",)
VERSION = "2.12.0"
# What Megatron looks for in the optimizer's signature before it allows moments in low precision.
ADAM = inspect.Signature(
    [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None)
        for name in (
            "self", "params", "master_weight_dtype", "exp_avg_dtype", "exp_avg_sq_dtype", "use_decoupled_grad",
            "store_param_remainders",
        )
    ]
)  # fmt: skip


class StubModule(types.ModuleType):
    """A module that has every attribute."""

    __version__ = VERSION
    __path__: Sequence[str] = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name[0].isupper():
            import torch

            def build(self: Any, *_args: Any, **_kwargs: Any) -> None:
                torch.nn.Module.__init__(self)

            if name == "FusedAdam":
                build.__signature__ = ADAM  # type: ignore[attr-defined]
            made: Any = type(
                name, (torch.nn.Module,), {"__init__": build, "__class_getitem__": classmethod(lambda cls, _: cls)}
            )
        else:
            made = sys.modules.setdefault(f"{self.__name__}.{name}", StubModule(f"{self.__name__}.{name}"))
        setattr(self, name, made)
        return made

    def __call__(self, *args: Any, **_kwargs: Any) -> Any:
        """A decorator hands its function back; every other call is answered by the module itself."""
        return args[0] if len(args) == 1 and callable(args[0]) else self


class StubFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Answers imports of the packages `names` and of nothing else."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if not any(fullname == name or fullname.startswith(f"{name}.") for name in self.names):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return StubModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        module.__version__ = VERSION  # type: ignore[attr-defined]


def install(*names: str) -> None:
    """Put the stand-in in place for Transformer Engine (or for `names`), unless it is there already."""
    wanted = names or NAMES
    if not any(isinstance(finder, StubFinder) and finder.names == wanted for finder in sys.meta_path):
        sys.meta_path.insert(0, StubFinder(wanted))
