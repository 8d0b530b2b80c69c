"""Launch lines: Slurm directives, srun, torchrun, ft_launcher, and what goes wrong around them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from advisor.check.reading import Reading, scalar
from advisor.spec.load.megatron.shell import Script

_DIRECTIVE = re.compile(r"^#SBATCH\s+(-{1,2})([A-Za-z][\w-]*)(?:[=\s]\s*(\S+))?", re.MULTILINE)
_SHORT = {"N": "nodes", "n": "ntasks", "t": "time", "J": "job-name", "p": "partition", "A": "account", "G": "gpus"}
_LAUNCHERS = {
    "torchrun": "torchrun", "torch.distributed.run": "torchrun", "torch.distributed.launch": "torchrun",
    "ft_launcher": "ft_launcher", "srun": "srun", "mpirun": "mpirun", "deepspeed": "deepspeed",
}  # fmt: skip
_PER_TASK = re.compile(r"(?<!\\)\$\{?(SLURM_PROCID|SLURM_LOCALID|SLURM_NODEID)\b")
_SECRET = re.compile(
    r"^\s*(?:export\s+)?(\w*(?:TOKEN|API_KEY|SECRET|PASSWORD)\w*)=[\"']?([A-Za-z0-9_\-.]{8,})", re.MULTILINE
)
_TRAINING = ("run_recipe", "pretrain", "finetune", "train", "recipe", "sft", "bridge")
_NOT_TRAINING = ("convert", "preprocess", "download", "tools/")


@dataclass(frozen=True, slots=True)
class Training:
    """The command that trains: its launcher words, its program and the words after it."""

    launcher: tuple[str, ...]
    program: str
    words: list[str]


def directives(reading: Reading, text: str) -> None:
    """`#SBATCH --name=value` lines as `slurm.name`."""
    for found in _DIRECTIVE.finditer(text):
        dashes, name, value = found.groups()
        name = _SHORT.get(name, name) if dashes == "-" else name
        line = text.count("\n", 0, found.start()) + 1
        known = None if value is None or value.startswith("#") else scalar(value.split("#")[0])
        reading.put(f"slurm.{name}", True if known is None else known, line)
        reading.know("sbatch", True, line)
    gres = reading.values.get("slurm.gres")
    count = re.search(r"gpu(?::\w+)?:(\d+)", str(gres.value)) if gres else None
    if count and "slurm.gpus-per-node" not in reading.values:
        reading.put("slurm.gpus-per-node", int(count[1]), gres.line if gres else 0)


def training_command(script: Script) -> Training | None:
    """The command with a Python program that looks most like training; None if no command runs Python."""
    best: tuple[int, Training] | None = None
    for command in script.commands:
        at = _program(command)
        if at is None:
            continue
        name = command[at]
        likely = 100 * any(word in name for word in _TRAINING) - 100 * any(word in name for word in _NOT_TRAINING)
        score = likely + sum(word.startswith("--") or "=" in word for word in command[at + 1 :])
        if best is None or score >= best[0]:
            best = (score, Training(tuple(command[:at]), name, command[at + 1 :]))
    return best[1] if best else None


def _program(command: list[str]) -> int | None:
    """Index of the program that Python or a launcher runs."""
    for at, word in enumerate(command):
        if word.endswith(".py") and " " not in word:
            return at
        if word == "-m" and at + 1 < len(command) and command[at + 1].startswith("megatron"):
            return at + 1
    return None


def facts(reading: Reading, script: Script, training: Training, text: str) -> None:
    """Who starts the ranks, how many, and what is written in the wrong place."""
    reading.know("training", training.program)
    words = training.launcher
    launcher = next((_LAUNCHERS[word.rpartition("/")[2]] for word in reversed(words)
                     if word.rpartition("/")[2] in _LAUNCHERS), None)  # fmt: skip
    outer = [command for command in script.commands if command[0].rpartition("/")[2] == "srun"
             and any(".py" in word or "megatron" in word for word in command)]  # fmt: skip
    reading.know("launcher", launcher or ("srun" if outer else "python"))
    if outer or "srun" in words:
        reading.know("under_srun")
    for command in (*outer, list(words)):
        _srun(reading, command)
    # What srun hands to a shell may complete the launcher's words: `bash -c '... "$@" --node_rank="$SLURM_NODEID"'`.
    code = [piece for command in outer for word in command if " " in word for piece in word.split()]
    _options(reading, [*words, *code], reading.facts["launcher"].value)
    if any("nsys" in word for word in words) or any("nsys" in word for command in outer for word in command):
        reading.know("nsys")
    _texts(reading, text)
    _world(reading)


def _srun(reading: Reading, words: Iterable[str]) -> None:
    for word in words:
        name, equals, value = word.partition("=")
        if name == "--kill-on-bad-exit" or word == "-K0":
            reading.know("kill_on_bad_exit", (value or "1") if word != "-K0" else "0")
        if name == "--ntasks-per-node" and equals and value.isdigit():
            reading.put("slurm.ntasks-per-node", int(value))
        if name in ("--gpus-per-node", "--gres") and equals:
            count = re.search(r"(\d+)$", value)
            if count:
                reading.put("slurm.gpus-per-node", int(count[1]))


def _options(reading: Reading, words: Iterable[str], launcher: str) -> None:
    """Node and process counts, node rank and rendezvous of torchrun and its like."""
    listed = list(words)
    for at, word in enumerate(listed):
        name, equals, value = word.lstrip("-").replace("-", "_").partition("=")
        value = value if equals else (listed[at + 1] if at + 1 < len(listed) else "")
        if name == "node_rank":
            reading.know("node_rank")
        if name in ("rdzv_endpoint", "rdzv_backend"):
            reading.know("rendezvous")
        if launcher != "srun" and name in ("nnodes", "nproc_per_node"):
            slurm = {"nnodes": "slurm.nodes", "nproc_per_node": "slurm.gpus-per-node"}[name]
            known = reading.values.get(slurm)
            if value.isdigit():
                reading.put(f"launch.{name}", int(value))
            elif "$" in value and known is not None:
                reading.put(f"launch.{name}", known.value)


def _world(reading: Reading) -> None:
    """Ranks that the launch line starts."""

    def number(key: str) -> int | None:
        value = reading.values.get(key)
        return value.value if value is not None and type(value.value) is int else None

    if reading.facts["launcher"].value == "srun":
        nodes, tasks = number("slurm.nodes") or 1, number("slurm.ntasks-per-node")
        world = number("slurm.ntasks") or (nodes * tasks if tasks else None)
    else:
        per = number("launch.nproc_per_node")
        world = per * (number("launch.nnodes") or 1) if per else None
    if world:
        reading.put("launch.world", world)
        reading.gpus = world


def _texts(reading: Reading, text: str) -> None:
    """Variables that expand too early, secrets, clean-up, `uv sync`."""
    for quoted, line in _double_quoted(text):
        early = _PER_TASK.search(quoted)
        if early and (".py" in quoted or "torch" in quoted or "uv " in quoted):
            reading.know("early_variable", f"${early[1]}", line + quoted.count("\n", 0, early.start()))
    secret = _SECRET.search(text)
    if secret:
        reading.know("secret", secret[1], text.count("\n", 0, secret.start(1)) + 1)
    if "nemo_experiments" in text:
        reading.know("clears_experiments")
    if "PYTHONPATH" in text:
        reading.know("pythonpath")
    if re.search(r"uv sync", text) and "SLURM_LOCALID" not in text and text.count("srun") < 2:
        reading.know("uv_sync")


def _double_quoted(text: str) -> Iterable[tuple[str, int]]:
    """Double-quoted pieces of a script outside comments and single quotes, with the line each starts on."""
    at, line, start = 0, 1, -1
    while at < len(text):
        char = text[at]
        if char == "\n":
            line += 1
        elif char == "\\":
            line += text[at + 1 : at + 2] == "\n"
            at += 1
        elif char == "'" and start < 0:
            end = text.find("'", at + 1)
            line += text.count("\n", at, end if end > 0 else at)
            at = end if end > 0 else len(text)
        elif char == "#" and start < 0 and (at == 0 or text[at - 1] in " \t\n"):
            end = text.find("\n", at)
            at = (end if end > 0 else len(text)) - 1
        elif char == '"':
            if start < 0:
                start, first = at + 1, line
            else:
                yield text[start:at], first
                start = -1
        at += 1
