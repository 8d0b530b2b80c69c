"""One colour per memory term, the same in every table and plot."""

from __future__ import annotations

TERM_COLOURS = {
    "weights": "#1f5a99",
    "gradients": "#3f88c5",
    "optimizer": "#7fb3dd",
    "activations": "#e07a1f",
    "logits": "#f2b04b",
    "working_set": "#f6d186",
    "dispatch_buffers": "#8c5aa8",
    "optimizer_step": "#5b8c5a",
    "param_gather": "#9cc29b",
    "p2p_buffers": "#c2d6a4",
    "context": "#6b6b6b",
    "nccl": "#8f8f8f",
    "ep_buffers": "#b39cc7",
    "cuda_graph_pool": "#c9b18a",
    "fragmentation": "#c4c4c4",
}


def term_colour(name: str) -> str:
    """The colour of a memory term as #rrggbb; grey for one without its own."""
    return TERM_COLOURS.get(name, "#dddddd")
