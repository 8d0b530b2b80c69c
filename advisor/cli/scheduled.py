"""Options of a Slurm job that launch, trial and tune share, and what is asked of such a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from advisor.cli.options import option
from advisor.cli.parameters import Text, shorten
from advisor.cli.survival import either, valued
from advisor.errors import InputError

if TYPE_CHECKING:
    from advisor.configure.launch import Wanted

ACCOUNT = valued("account", "NAME", "Job", "Slurm account.")
PARTITION = valued("partition", "NAME", "Job", "Slurm partition.")
QOS = valued("qos", "NAME", "Job", "Slurm quality of service.")
GRES = either("gres", "Job", "Ask for GPUs with --gpus-per-node (default on).")
EXCLUSIVE = either("exclusive", "Job", "Whole nodes with all their memory (default on).")
CONTAINER = valued("container", "IMAGE", "Container", "Image for Enroot/Pyxis.")
MOUNTS = option("--mounts", section="Container", type=Text("SRC:DST"), multiple=True, envvar="ADVISOR_MOUNTS",
                help="Container mounts; repeat, or separate by commas.")  # fmt: skip
WORKDIR = valued("workdir", "DIR", "Folders", "Where the program is started (default: --shared).")
SHARED = valued("shared", "DIR", "Folders", "Shared file system, as the job sees it: caches and logs go below (default:"
                " the first mount).")  # fmt: skip
ENV = option("--env", "env", section="Program", type=Text("NAME=VALUE"), multiple=True, help="Environment; repeat.")
SECRET = option(
    "--secret",
    section="Program",
    type=Text("NAME"),
    multiple=True,
    help="Variable that must be set when sbatch runs; its value is never read or written. Repeat.",
)
# What a job of some minutes may be asked; it starts Python itself and saves nothing.
SHORT_JOB = (
    valued("time", "4h", "Job", "Time limit of a trial's job (default: the total timeout and 2 minutes)."),
    ACCOUNT, PARTITION, QOS,
    valued("restarts", "N", "Job", "How often Slurm may start a trial again: node failure, preemption (default 1)."),
    GRES, EXCLUSIVE, CONTAINER, MOUNTS, WORKDIR, SHARED, ENV, SECRET,
)  # fmt: skip
JOB_NAMES = ("account", "partition", "qos", "container", "mounts", "workdir", "shared", "env", "secret")
TEXTS = ("account", "partition", "qos", "container", "workdir", "shared")


def short_job(options: dict[str, Any]) -> tuple[Wanted, int | None]:
    """What the options of SHORT_JOB ask, taken out of `options`, and the seconds of --time (None: not given)."""
    from advisor.configure.launch import Wanted, parse_time
    from advisor.search.values import whole

    time, restarts = options.pop("time"), options.pop("restarts")
    texts: dict[str, Any] = {name: options.pop(name) or "" for name in TEXTS}
    wanted = Wanted(
        mounts=tuple(options.pop("mounts")),
        variables=dict(assignment(text) for text in options.pop("env")),
        secrets=tuple(options.pop("secret")),
        uv=False,
        numa=False,
        gres=options.pop("gres") is not False,
        exclusive=options.pop("exclusive") is not False,
        restarts=1 if restarts is None else whole("restarts", restarts, 0, 1000),
        **texts,
    )
    return wanted, None if time is None else parse_time(time)


def assignment(text: str) -> tuple[str, str]:
    """Name and value of NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"--env {shorten(name)} has no value", "--env NAME=VALUE, or --secret NAME")
    return name, value
