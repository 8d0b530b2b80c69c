"""A file as a `Reading`: bounded, text only, its kind taken from its content."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from advisor import documents
from advisor.check.readers.foreign import refuse_toml
from advisor.check.readers.mapping import load_mapping, read_mapping
from advisor.check.readers.python import read_python
from advisor.check.readers.script import read_script_text
from advisor.check.reading import Reading
from advisor.errors import InputError

LARGEST_BYTES = 2 << 20
LARGER = "a job log is read by advisor check --log LOG, and by advisor diagnose"
_PYTHON = re.compile(
    r"^\s*(from\s+[\w.]+\s+import\s|import\s+\w|def\s+\w+\(|class\s+\w+|@\w+|\w+(\.\w+)+\s+=\s)", re.MULTILINE
)
_SHELL = re.compile(r"^#!.*\b(?:ba|z|k|da)?sh\b|^#SBATCH\b|^\s*(?:export|srun|torchrun|ft_launcher)\s", re.MULTILINE)
_FLAGS = re.compile(r"(?:^|\s)(?:--?[a-zA-Z][\w-]*|\+{0,2}[a-z_]+\.[\w.]+=\S*)(?:\s|=|$)")
_MAPPINGS = (".yaml", ".yml", ".json", ".ipynb")
_YAML_KEY = re.compile(r"^[\w\"'-]+\s*:(\s|$)", re.MULTILINE)


def read_file(path: str | Path) -> Reading:
    """What the file says. InputError for a directory, a huge, binary or unreadable file, and one without settings."""
    name = str(path)
    return read_text(name, documents.read_text(name, LARGEST_BYTES, "configuration", LARGER))


def read_text(name: str, text: str) -> Reading:
    """What `text` says as the content of a file `name`. InputError for a text without settings."""
    reading = _read(name, text)
    if reading.empty:
        raise InputError(
            f"{name!r} holds no setting of Megatron-Bridge or Megatron-LM",
            hint="give a Bridge file or overrides, Megatron-LM flags, a launch script, or layout flags",
        )
    return reading


def _read(name: str, text: str) -> Reading:
    suffix = Path(name).suffix.lower()
    if suffix == ".py" or (suffix not in (".sh", ".sbatch", ".toml", *_MAPPINGS) and _is_python(text)):
        return read_python(name, text)
    if suffix == ".toml":
        refuse_toml(name, text)
    shell = _SHELL.search(text) is not None
    if suffix in _MAPPINGS or text.lstrip().startswith("{") or (
        not shell and not _FLAGS.search(text) and _YAML_KEY.search(text)
    ):  # fmt: skip
        mapping = load_mapping(name, text)
        if mapping is not None:
            return read_mapping(name, text, mapping)
        if suffix in _MAPPINGS:
            raise InputError(f"{name!r} holds no mapping of keys to values")
    return read_script_text(name, text)


def _is_python(text: str) -> bool:
    """Whether text without a telling suffix is Python: it looks so, and parses or at least imports something."""
    if _SHELL.search(text) or not _PYTHON.search(text):
        return False
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return re.search(r"^(from\s+[\w.]+\s+import|import)\s", text, re.MULTILINE) is not None
    return True
