"""Starts of a job within its logs, and which release printed them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from advisor.check.defaults import fields
from advisor.check.readback.observed import Place, Remark, Seen
from advisor.check.readback.values import same
from advisor.check.readback.wording import Wording, wordings

_MOST_NAMED = 4
_SECTIONS = ("model", "train", "validation", "optimizer", "ddp", "dist", "checkpoint")


class Starts:
    """Follows dumps of settings; a dump after reports of steps is that of another start, and the last one counts."""

    def __init__(self) -> None:
        self.count = 0
        self._parts: set[str] = set()
        self._before: Mapping[str, Seen] = {}
        self._changed: dict[str, tuple[Any, Any]] = {}
        self._place: Place | None = None

    def dumped(self, part: str, place: Place, stepped: bool, settings: Mapping[str, Seen]) -> bool:
        """A part of a dump: an argument's name, or the kind of a block. True where another start begins.

        `stepped` says that steps were reported since the last start, `settings` what holds so far.
        """
        again = part in self._parts and stepped
        if again or not self.count:
            self.count += 1
            self._place = place
            self._before = dict(settings) if again else {}
            self._changed.clear()
            self._parts.clear()
        self._parts.add(part)
        return again

    def changes(self, key: str, seen: Seen) -> bool:
        """Whether a dumped setting that decides the speed is another than in the start before."""
        before = self._before.get(key)
        if before is None or seen.how not in ("dump", "summary", "default") or before.how in ("message", "record"):
            return False
        if same(before.value, seen.value) or key not in wordings().shown:
            self._changed.pop(key, None)
            return False
        self._changed[key] = (before.value, seen.value)
        return True

    def remark(self) -> Remark | None:
        """How often the job started, and what was changed before the last start."""
        if self.count < 2 or self._place is None:
            return None
        named = [f"{key} {old} -> {new}" for key, (old, new) in self._changed.items()]
        more = f" and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
        told = f"changed before it, so earlier steps are left out: {', '.join(named[:_MOST_NAMED])}{more}"
        said = f"start {self.count} of the job counts; {told if named else 'its settings are those of the one before'}"
        return Remark(self._place.file, self._place.line, said, "restart")


class Told:
    """Releases as far as names and sentences tell: those that only one of the known releases has."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[str, Place]] = {}

    def argument(self, name: str, place: Place) -> None:
        """An argument of Megatron-LM."""
        if name in wordings().told:
            self._found["megatron-lm"] = (wordings().told[name], place)

    def field(self, key: str, place: Place) -> None:
        """A setting of Bridge."""
        if key in _bridge_fields():
            self._found["bridge"] = (_bridge_fields()[key], place)

    def sentence(self, kind: Wording, place: Place) -> None:
        """A sentence that only Bridge 0.6 prints."""
        if kind.framework == "bridge" and kind.source.startswith("MB6 "):
            self._found["bridge"] = ("0.6", place)

    def version(self, framework: str | None, settings: Mapping[str, Seen]) -> tuple[str | None, Place | None]:
        """The release and the last line that tells it; nothing where none does.

        Parts under `cuda_graph_scope` are of the older releases: megatron-core 0.19 moves them to `cuda_graph_modules`
        and leaves none behind (ML:megatron/core/transformer/transformer_config.py).
        """
        parts = settings.get("model.cuda_graph_scope")
        if framework == "bridge" and framework not in self._found and parts is not None and parts.value:
            return "0.3", parts
        return self._found.get(framework or "", (None, None))


@lru_cache(maxsize=1)
def _bridge_fields() -> Mapping[str, str]:
    return {
        f"{section}.{name}": ".".join(str(row["only"]).split(".")[:2])
        for section in _SECTIONS
        for name, row in fields().get(section, {}).items()
        if "only" in row
    }
