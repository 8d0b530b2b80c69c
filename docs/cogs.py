"""What the generated blocks of README.md and docs/*.md call: run a command, give its output (`make docs`)."""

from __future__ import annotations

import contextlib
import io
import os
import shlex

import cog

from advisor.cli.main import run

BLANK = ("ADVISOR_", "NO_COLOR", "FORCE_COLOR")


def shell(command: str, keep: tuple[str, ...] = ()) -> None:
    """Put `command` and its stdout into the page; with `keep`, only the blocks that begin with one of these words."""
    for name in [name for name in os.environ if name.startswith(BLANK)]:
        del os.environ[name]
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        code = run(shlex.split(command)[1:])
    if code not in {0, 1}:
        raise RuntimeError(f"{command} exits with {code}")
    text = out.getvalue().strip("\n")
    if keep:
        blocks = text.split("\n\n")
        text = "\n\n".join(block for block in blocks if block.startswith(keep))
    cog.outl(f"\n```console\n$ {command}\n{text}\n```\n")
