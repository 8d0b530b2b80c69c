"""Writes the sbatch script of a launch from templates.

Every value from outside is quoted, and the whole text is searched for secrets before anybody gets it.
"""

from __future__ import annotations

import re
import shlex
from functools import lru_cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from advisor.configure.job import preset
from advisor.configure.launch import Launch
from advisor.configure.mounts import FACTS, outside_path
from advisor.configure.secrets import refuse_secrets
from advisor.export.resiliency import ft_launcher_flags

LEFT_FOR_END_S = 120


def directive_word(text: str) -> str:
    """A value for an #SBATCH line: sbatch reads double quotes and backslashes there, and a # outside quotes ends it."""
    if re.fullmatch(r"[\w@%+=:,./-]+", text, re.ASCII):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def file_stem(name: str) -> str:
    """A job name as part of a file name."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", name).strip("._") or "job"


def clock(seconds: int) -> str:
    """Seconds as Slurm writes them: D-HH:MM:SS or HH:MM:SS."""
    days, rest = divmod(seconds, 86_400)
    text = f"{rest // 3600:02d}:{rest % 3600 // 60:02d}:{rest % 60:02d}"
    return f"{days}-{text}" if days else text


@lru_cache(maxsize=1)
def _templates() -> Environment:
    environment = Environment(  # noqa: S701 (shell text, quoted by `q`; HTML escapes would break it)
        loader=PackageLoader("advisor.export.slurm"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        comment_start_string="{##",  # ${#array[@]} is bash
        comment_end_string="##}",
    )
    environment.filters["q"] = lambda value: shlex.quote(str(value))
    return environment


def log_path(job: Launch) -> str:
    """Log of the job on the host, with %j for the job id."""
    file = f"{file_stem(job.name)}_%j.log"
    return f"{job.log_dir}/{file}" if job.log_dir else file


def directives(job: Launch, output: str = "", error: str = "") -> tuple[str, ...]:
    """#SBATCH lines without the word, in the order of the manual page; `output` and `error` in place of one log."""
    found = {
        "job-name": job.name,
        "account": job.account,
        "partition": job.partition,
        "qos": job.qos,
        "nodes": job.nodes + job.spare_nodes,
        "ntasks-per-node": job.tasks_per_node,
        "gpus-per-node": job.gpus_per_node if job.gres else "",
        "segment": job.segment or "",
        "time": clock(job.time_s),
        "output": output or log_path(job),
        "error": error,
        "open-mode": "append",
        "signal": f"B:USR1@{job.lead_s}" if job.signal else "",
    }
    lines = [f"--{name}={directive_word(str(value))}" for name, value in found.items() if value != ""]
    lines += ["--exclusive", "--mem=0"] if job.exclusive else []
    lines.append("--requeue" if job.restarts else "--no-requeue")
    return (*lines, *(["--no-kill"] if job.spare_nodes else []))


def srun_flags(job: Launch) -> tuple[str, ...]:
    """Flags of every srun: the container, which #SBATCH lines cannot ask for."""
    if not job.container:
        return ()
    facts = preset(FACTS)
    mounts = ",".join(mount.text for mount in job.mounts)
    return (
        f"--mpi={facts['mpi']}",
        f"--container-image={job.container}",
        *((f"--container-mounts={mounts}",) if mounts else ()),
        *facts["container_flags"],
    )


def _program(job: Launch) -> tuple[str, ...]:
    """How Python is started."""
    return ("uv", "run", "python") if job.uv else ("python",)


def launcher(job: Launch) -> tuple[str, ...]:
    """Words in front of the command that are the same on every node."""
    if job.style == "srun":
        return _program(job) if job.python else ()
    no_python = () if job.python else ("--no-python",)
    if job.style == "torchrun":
        return (*_program(job), "-m", "torch.distributed.run", f"--nproc_per_node={job.gpus_per_node}", *no_python)
    run = ("uv", "run") if job.uv else ()
    flags = ft_launcher_flags(job.sections, job.outside_section_s, job.max_restarts)
    return (*run, "ft_launcher", "--rdzv_backend=c10d", f"--nproc-per-node={job.gpus_per_node}", *flags, *no_python)


def _context(job: Launch) -> dict[str, Any]:
    facts = preset(FACTS)
    return {
        "job": job,
        "directives": directives(job),
        "srun_flags": srun_flags(job),
        "launcher": launcher(job),
        "log": log_path(job).replace("%j", ""),
        "log_head": log_path(job).partition("%j")[0],
        "facts": facts,
        "kill_on_bad_exit": 0 if job.in_process or job.spare_nodes else 1,
        "early_end_s": job.time_s - job.lead_s - LEFT_FOR_END_S,
        "file_folder": outside_path(job.file_folder, job.mounts) if job.container else job.file_folder,
        "end_of": end_of,
    }


def end_of(text: str) -> str:
    """A word that ends a here-document with `text`: no line of it."""
    word = "END_OF_FILE"
    while word in text.splitlines():
        word += "_"
    return word


def fill(template: str, **values: Any) -> str:
    """A template of this package with its values."""
    return _templates().get_template(template).render(values)


def script_text(job: Launch) -> str:
    """The sbatch script. Raises InputError when anything in it looks like a secret."""
    text = fill("job.sbatch.j2", **_context(job))
    refuse_secrets(text, "the script")
    return text


def interactive_text(job: Launch) -> str:
    """The recipe for an interactive allocation: salloc, a shell in the container, environment."""
    text = fill("interactive.sh.j2", **_context(job) | {"file_folder": job.file_folder})
    refuse_secrets(text, "the recipe")
    return text
