"""Run by tests in a process of its own: parses flag lists (JSON on stdin) with Megatron-LM's own argument parser.

The sources of megatron-core 0.19 are found in MEGATRON_SOURCE; its kernels (Transformer Engine, triton) are stood in.
Prints, for every list, the destinations that differ from the defaults, or the message of the parser.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import sys
import typing
from pathlib import Path
from typing import Any

sys.path[:0] = [os.environ["MEGATRON_SOURCE"], str(Path(__file__).parent)]

import te_stub  # noqa: E402

te_stub.install("transformer_engine", "triton")
if not hasattr(typing, "override"):
    typing.override = lambda function: function

from megatron.training.arguments import add_megatron_arguments  # noqa: E402


def main() -> None:
    parser = add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False))
    usual = vars(parser.parse_args([]))
    answers: list[Any] = []
    for words in json.load(sys.stdin):
        said = io.StringIO()
        try:
            with contextlib.redirect_stderr(said):
                values = vars(parser.parse_args(words))
        except SystemExit:
            answers.append({"error": said.getvalue().splitlines()[-1]})
            continue
        answers.append({name: value for name, value in values.items() if value != usual[name]})
    print("ANSWERS" + json.dumps(answers, default=lambda value: getattr(value, "name", str(value))))


main()
