"""The small layers that are timed compute what a layer of their kind computes, and the clock knows crowded cores."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.real

from advisor.trial.worker import clock, replicas  # noqa: E402 (needs torch)


def test_the_expert_layer_adds_up_what_the_experts_of_each_token_say():
    torch.manual_seed(0)
    x = torch.randn(7, 1, replicas.HIDDEN)
    router = replicas._weight(4, replicas.HIDDEN, torch.float32)
    mlps = [
        (replicas._weight(2 * replicas.HIDDEN, replicas.HIDDEN, torch.float32),
         replicas._weight(replicas.HIDDEN, replicas.HIDDEN, torch.float32))
        for _ in range(4)
    ]  # fmt: skip
    out = replicas._experts(x, router, mlps)
    for token, said in zip(x[:, 0], out[:, 0], strict=True):
        scores, top = torch.topk(router @ token, replicas.TOPK)
        expected = 0
        for share, expert in zip(torch.softmax(scores, -1), top, strict=True):
            up, down = mlps[expert]
            gate, other = (up @ token).chunk(2)
            expected = expected + down @ (torch.nn.functional.silu(gate) * other * share)
        torch.testing.assert_close(said, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("experts", [0, 2, 8])
def test_a_gradient_is_added_to_a_buffer_and_then_gone(experts, dtype):
    x = torch.randn(replicas.TOKENS, 1, replicas.HIDDEN).to(dtype).requires_grad_()
    replicas._small_layer(experts, dtype)(x).float().sum().backward()
    assert x.grad is not None
    assert x.grad.dtype is dtype
    made = replicas._weight(3, 5, dtype)
    replicas._product(torch.ones(2, 5, dtype=dtype), made).float().sum().backward()
    assert made.grad is None


@pytest.mark.parametrize(("ranks", "cores", "drawn_out"), [(1, 2, 1.0), (2, 2, 1.0), (4, 2, 2.0), (3, 2, 1.5)])
def test_ranks_that_share_a_core_wait_for_each_other(ranks, cores, drawn_out):
    assert clock.crowding(ranks, cores) == drawn_out
