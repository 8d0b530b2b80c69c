"""Pages of `advisor resiliency` and `advisor goodput` for an estimated MiniMax-M2 job, as reviewable text."""

from __future__ import annotations

import shlex

import pytest

from advisor.cli.render import WIDTH
from tests.configure.plans import plan_file

PAGES = {
    "resiliency.txt": "resiliency m2.json",
    "resiliency_in_process.txt": "resiliency m2.json --in-process-restart --spare-nodes 1 --mtbf-hours 8",
    "goodput.txt": "goodput m2.json --tokens 15T --gpu-hour-price 2.5",
    "goodput_mtbf.txt": "goodput m2.json --tokens 1T --mtbf-hours 8 --checkpoint-write-gbs 20",
}


@pytest.mark.parametrize("name", PAGES)
def test_page(cli, golden, tmp_path, monkeypatch, name):
    plan_file(tmp_path, "m2")
    monkeypatch.chdir(tmp_path)
    ran = cli(*shlex.split(PAGES[name]))
    assert ran.code == 0, ran.err
    golden(name, f"$ advisor {PAGES[name]}\n{ran.out}{ran.err}")
    assert max(map(len, ran.out.splitlines())) <= WIDTH
