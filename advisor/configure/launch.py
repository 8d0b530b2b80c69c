"""From a plan to a Slurm job: nodes, tasks, placement, folders, signals, restarts; `advisor.export.slurm` writes it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

from advisor.configure.chosen import Chosen
from advisor.configure.environment import Variable, variables
from advisor.configure.job import Job, preset
from advisor.configure.mounts import FACTS, Mount, mount_of, outside_path, parse_mounts, require_shared
from advisor.configure.resiliency import Resiliency
from advisor.configure.secrets import check_secret_name, check_variable
from advisor.errors import InputError
from advisor.spec.layout import Layout
from advisor.spec.load.system import ranks_per_node

Style = Literal["srun", "torchrun", "ft_launcher"]
LEAST_TIME_S, MOST_TIME_S = 60, 365 * 86_400
CONTROL = re.compile(r"[\x00-\x1f\x7f]")
UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What somebody asks of the job; None and empty values leave it to the plan.

    `command` is the program and its arguments (a `.py` file is run by Python); `shared` a folder on the shared file
    system below which the caches and logs go unless `folders` names them; `secrets` names of variables.
    """

    style: Style = "srun"
    command: tuple[str, ...] = ("train.py",)
    time_s: int = 4 * 3600
    name: str = ""
    account: str = ""
    partition: str = ""
    qos: str = ""
    container: str = ""
    mounts: tuple[str, ...] = ()
    shared: str = ""
    folders: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    workdir: str = ""
    log_dir: str = ""
    variables: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    secrets: tuple[str, ...] = ()
    uv: bool | None = None
    numa: bool | None = None
    gres: bool = True
    exclusive: bool = True
    restarts: int = 3
    fresh: bool = False


@dataclass(frozen=True, slots=True)
class Launch:
    """A job as it will be written; times in seconds, `segment` 0 where the scheduler has none.

    `signal` is what the ranks get before the time limit ("" = nothing); with `ends_itself` the program has to end by
    itself in time, because torchrun would kill it 30 s after a signal. `files` are texts by name that the job writes
    to `file_folder` (as the ranks see it) before they start.
    """

    style: Style
    name: str
    nodes: int
    spare_nodes: int
    gpus_per_node: int
    segment: int
    ranks_per_numa_node: int
    time_s: int
    lead_s: int
    signal: str
    account: str
    partition: str
    qos: str
    container: str
    mounts: tuple[Mount, ...]
    folders: Mapping[str, str]
    workdir: str
    log_dir: str
    environment: tuple[Variable, ...]
    secrets: tuple[str, ...]
    command: tuple[str, ...]
    python: bool
    uv: bool
    gres: bool
    exclusive: bool
    restarts: int
    max_restarts: int
    sections: str
    outside_section_s: int
    ends_itself: bool
    in_process: bool
    checkpoint_dir: str
    fresh: bool
    notes: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    file_folder: str = ""

    @property
    def tasks_per_node(self) -> int:
        """One per GPU when Slurm starts the ranks, else one per node."""
        return self.gpus_per_node if self.style == "srun" else 1


def fewest_gpus(layout: Layout) -> int:
    """Smallest world that holds one copy of the model: PP * lcm(TP * CP, EP * ETP)."""
    return layout.pp * math.lcm(layout.tp * layout.cp, layout.ep * layout.etp)


def parse_time(text: str) -> int:
    """Seconds of 4h, 90m, 1d12h, 30 (minutes, as Slurm), H:MM:SS or D-HH:MM:SS. Raises InputError."""
    plain = text.strip().lower() if text.isascii() else ""
    seconds = 0
    clock = re.fullmatch(r"(?:(\d+)-)?(\d{1,4}):(\d{2})(?::(\d{2}))?", plain)
    parts = re.findall(r"(\d+)([smhd])", plain)
    if clock and clock[4] is not None:
        seconds = int(clock[1] or 0) * 86_400 + int(clock[2]) * 3600 + int(clock[3]) * 60 + int(clock[4])
    elif clock and clock[1] is not None:
        seconds = int(clock[1]) * 86_400 + int(clock[2]) * 3600 + int(clock[3]) * 60
    elif clock:
        seconds = int(clock[2]) * 60 + int(clock[3])
    elif parts and "".join(map("".join, parts)) == plain:
        seconds = sum(int(count) * UNITS_S[unit] for count, unit in parts)
    elif plain.isdigit():
        seconds = int(plain) * 60
    if not LEAST_TIME_S <= seconds <= MOST_TIME_S:
        raise InputError(f"time {text!r} is no time from a minute to a year", "for example --time 4h or 1-12:00:00")
    return seconds


def launch(chosen: Chosen, wanted: Wanted, settings: Resiliency) -> Launch:
    """The job of a plan. Raises InputError for a layout that does not fill nodes, and for wishes that cannot work."""
    job = placed(chosen, wanted)
    spares = settings.setup.spares if wanted.style == "ft_launcher" or settings.wishes.in_process else 0
    lead = settings.limits.preempt_lead_s
    if wanted.time_s <= 2 * lead:
        raise InputError(
            f"--time {wanted.time_s} s leaves no room to train: saving before the limit takes {lead} s",
            f"--time {math.ceil(4 * lead / 60)}m or faster checkpoint storage",
        )
    folder = settings.wishes.checkpoint_dir or ""
    if folder.startswith("/"):
        require_shared("--checkpoint-dir", folder, job.mounts, container=bool(wanted.container))
        folder = outside_path(folder, job.mounts)
    settled = {value.path: Variable(value.path, str(value.value), value.reason, "resiliency")
               for value in settings.environment}  # fmt: skip
    return replace(
        job,
        spare_nodes=spares,
        segment=_segment(job.nodes + spares, chosen, job.gpus_per_node) if job.segment else 0,
        lead_s=lead,
        signal="TERM" if _signalled(wanted, settings) else "",
        environment=_environment(chosen, wanted, settled),
        max_restarts=settings.max_restarts,
        sections=settings.limits.sections,
        outside_section_s=settings.limits.outside_s,
        ends_itself=settings.wishes.preemption and wanted.style == "torchrun",
        in_process=settings.wishes.in_process,
        checkpoint_dir=folder if folder.startswith("/") else "",
        notes=_notes(chosen, job.nodes, spares, wanted.style),
    )


def placed(chosen: Chosen, wanted: Wanted) -> Launch:
    """The job of a plan as one that saves nothing and is followed by nobody: nodes, tasks, folders and environment.

    Raises InputError for a layout that does not fill nodes, and for texts and folders that cannot work.
    """
    _check_texts(wanted)
    per_node, nodes = _nodes(chosen)
    mounts = parse_mounts(wanted.mounts)
    folders, workdir, log_dir = _folders(wanted, mounts)
    return Launch(
        style=wanted.style,
        name=wanted.name or f"{chosen.model.name}-{chosen.cluster.gpus}",
        nodes=nodes,
        spare_nodes=0,
        gpus_per_node=per_node,
        segment=_segment(nodes, chosen, per_node) if _gpu_facts(chosen)["segment"] else 0,
        ranks_per_numa_node=int(_gpu_facts(chosen)["ranks_per_numa_node"]) if _numa(wanted, per_node) else 0,
        time_s=wanted.time_s,
        lead_s=0,
        signal="",
        account=wanted.account,
        partition=wanted.partition,
        qos=wanted.qos,
        container=wanted.container,
        mounts=mounts,
        folders=folders,
        workdir=workdir,
        log_dir=log_dir,
        environment=_environment(chosen, wanted, {}),
        secrets=tuple(check_secret_name(name) for name in wanted.secrets),
        command=wanted.command,
        python=wanted.command[0].endswith(".py"),
        uv=bool(wanted.container) if wanted.uv is None else wanted.uv,
        gres=wanted.gres,
        exclusive=wanted.exclusive,
        restarts=wanted.restarts,
        max_restarts=0,
        sections="",
        outside_section_s=0,
        ends_itself=False,
        in_process=False,
        checkpoint_dir="",
        fresh=wanted.fresh,
        notes=_notes(chosen, nodes, 0, wanted.style),
    )


def _check_texts(wanted: Wanted) -> None:
    """Values that end in a directive or a path of one line must be one line; a command may hold anything."""
    if not wanted.command or not wanted.command[0]:
        raise InputError("nothing to run", "advisor launch plan.json ... -- train.py ARGS")
    names = ("name", "account", "partition", "qos", "container", "shared", "workdir", "log_dir")
    texts = {name: str(getattr(wanted, name)) for name in names}
    texts.update(wanted.folders)
    texts.update({f"mounts[{index}]": text for index, text in enumerate(wanted.mounts)})
    for name, text in texts.items():
        if CONTROL.search(text):
            raise InputError(f"{name}={text!r} holds a line break or another control character", "one line of text")
    if "%" in texts["log_dir"] or "\\" in texts["log_dir"]:
        raise InputError(f"log_dir={wanted.log_dir!r}: Slurm reads % and \\ in a log path as patterns", "another name")
    if any("\x00" in word for word in wanted.command):
        raise InputError("the command holds a null character")
    for name, value in wanted.variables.items():
        check_variable(name, value)
    if wanted.restarts < 0:
        raise InputError(f"restarts={wanted.restarts} is negative", "--restarts 0 never requeues")


def _nodes(chosen: Chosen) -> tuple[int, int]:
    """GPUs per node that the job uses, and nodes."""
    cluster, layout = chosen.cluster, chosen.layout
    unit = fewest_gpus(layout)
    if cluster.gpus % unit:
        raise InputError(
            f"{cluster.gpus} GPUs are no multiple of PP x lcm(TP x CP, EP x ETP) = {layout.pp} x"
            f" lcm({layout.tp * layout.cp}, {layout.ep * layout.etp}) = {unit}",
            f"a plan for {math.ceil(cluster.gpus / unit) * unit} GPUs",
        )
    per_node = min(ranks_per_node(cluster.system, cluster.used_per_domain), cluster.gpus)
    if cluster.gpus % per_node:
        raise InputError(f"{cluster.gpus} GPUs do not fill nodes of {per_node}", f"a multiple of {per_node}")
    return per_node, cluster.gpus // per_node


def _gpu_facts(chosen: Chosen) -> Mapping[str, Any]:
    rows: Sequence[Mapping[str, Any]] = preset(FACTS)["gpus"]
    return next(row for row in rows if chosen.cluster.gpu.name.startswith(str(row["prefix"])))


def _segment(nodes: int, chosen: Chosen, per_node: int) -> int:
    """Nodes that must share an NVLink domain: all of them, or the largest divisor that fits the used part of a rack."""
    rack = min(int(preset(FACTS)["largest_segment"]), max(1, chosen.cluster.used_per_domain // per_node))
    return max(size for size in range(1, rack + 1) if nodes % size == 0)


def _numa(wanted: Wanted, per_node: int) -> bool:
    """Whether ranks are bound to NUMA nodes: where Slurm starts them and a container brings numactl."""
    if wanted.numa is not None:
        return wanted.numa and wanted.style == "srun"
    return bool(wanted.container) and wanted.style == "srun" and per_node >= 4


def _signalled(wanted: Wanted, settings: Resiliency) -> bool:
    """Torchrun kills its workers 30 s after a signal, so there the run ends itself; in-process restart wants none."""
    return wanted.style != "torchrun" and settings.wishes.preemption and not settings.wishes.in_process


def _folders(wanted: Wanted, mounts: Sequence[Mount]) -> tuple[Mapping[str, str], str, str]:
    """Shared folders by variable, the working directory, and the host folder of logs."""
    inside = bool(wanted.container)
    shared = wanted.shared.rstrip("/")
    if not shared and mounts:
        shared = mounts[0].inside
    folders = {}
    for variable, below in preset(FACTS)["shared_folders"].items():
        path = wanted.folders.get(variable) or (f"{shared}/{below}" if shared else "")
        if path:
            folders[variable] = require_shared(variable, path, mounts, container=inside)
        elif inside:
            raise InputError(f"{variable} has no shared folder", "--shared DIR under a --mounts folder")
    workdir = wanted.workdir or shared
    if workdir:
        if inside and mount_of(workdir, mounts) is None:
            raise InputError(f"--workdir {workdir} is under no container mount", "--workdir under a --mounts folder")
    elif inside:
        raise InputError("no working directory", "--workdir DIR under a --mounts folder")
    log_dir = wanted.log_dir or (f"{outside_path(shared, mounts)}/logs" if shared else "")
    if log_dir and not log_dir.startswith("/"):
        raise InputError(f"--log-dir {log_dir!r} is not an absolute path", "a folder of the shared file system")
    return MappingProxyType(folders), workdir, log_dir


def _environment(chosen: Chosen, wanted: Wanted, settled: Mapping[str, Variable]) -> tuple[Variable, ...]:
    """Variables of the plan, those of the resiliency settings over them, the given ones over all."""
    job = Job(chosen.model, chosen.cluster, chosen.workload, chosen.layout, chosen.knobs)
    found = {one.name: one for one in variables(job)} | {**settled}
    for name, text in wanted.variables.items():
        found[name] = Variable(name, text, "given", "given")
    return tuple(found.values())


def _notes(chosen: Chosen, nodes: int, spares: int, style: Style) -> tuple[str, ...]:
    layout = chosen.layout
    unit = fewest_gpus(layout)
    notes = [
        f"{nodes} nodes for {chosen.cluster.gpus} GPUs; the smallest world is PP x lcm(TP x CP, EP x ETP) = {unit} GPUs"
    ]
    if spares:
        notes.append(f"{spares} spare node{'s' if spares > 1 else ''} beside them")
    if spares and style == "ft_launcher":
        notes.append("the first node holds the rendezvous store: losing it ends the attempt, spare nodes or not")
    return tuple(notes)
