"""The multi-node document's lines for parameter memory per GPU, as findings of kind assumed."""

from __future__ import annotations

from advisor.spec.plan import Finding
from advisor.spec.workload import Mode

LINES_GB: dict[Mode, float] = {"weights": 60.0, "inference": 40.0, "train": 30.0}
"""Parameter memory per GPU, in 1e9 bytes (assumed; requirements/multi_node_slurm.txt, sizing rule of thumb)."""


def document_lines(mode: Mode, weights_bytes: float) -> tuple[Finding, ...]:
    """An `info` finding if `weights_bytes` of parameters on the fullest rank are above the document's line for `mode`.

    The lines are a rule of thumb of kind assumed; the memory model decides whether a layout fits.
    """
    line, size = LINES_GB[mode], weights_bytes / 1e9
    if size <= line:
        return ()
    message = (
        f"{size:.1f} GB of parameters per GPU are above the {line:.0f} GB line for {mode}"
        " (assumed; requirements/multi_node_slurm.txt)"
    )
    return (Finding("parameter-line", "info", message, "raise ep, pp or tp"),)
