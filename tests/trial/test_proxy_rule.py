"""The way back from a proxy: what one factor says of the layout as planned, in worlds where the truth is known."""

from __future__ import annotations

import pytest

from advisor.trial.job import Drive
from advisor.trial.record import _full
from advisor.trial.trials import make_trial, read_trials
from tests.trial.layouts import write_estimate

DRIVE = Drive("cpu")


@pytest.fixture(scope="module")
def proxy(tmp_path_factory):
    """A proxy of two layers and four microbatches of a pipeline of eight layers and many."""
    path = write_estimate(tmp_path_factory.mktemp("proxy"), "deep", 2, pp=2, gbs=64, mbs=1)
    return read_trials(path, 1, DRIVE, 2)[0][0]


def test_a_proxy_is_smaller_and_cheaper(proxy):
    assert (proxy.run_request.model.num_layers, proxy.run_candidate.layout.num_microbatches) == (2, 4)
    assert proxy.predicted.step_s < proxy.candidate.step.step_s


@pytest.mark.parametrize("slower", [0.5, 1.0, 1.7])
def test_rates_that_are_off_by_one_factor_are_found_exactly(proxy, slower):
    """Everything takes `slower` times what is predicted, the proxy and the whole: then nothing is left to guess."""
    found, planned = _full(proxy, proxy.predicted.step_s * slower), proxy.candidate.step
    assert found["factor"] == pytest.approx(slower)
    assert found["step_s"] == pytest.approx(planned.step_s * slower)
    assert (found["low_s"], found["high_s"]) == pytest.approx((planned.low_s * slower, planned.high_s * slower))
    assert found["tokens_per_s_per_gpu"] == pytest.approx(planned.tokens_per_s_per_gpu / slower)
    assert found["rule"].startswith("predicted step of the layout as planned")


@pytest.mark.parametrize("layers", [2, 4])
def test_what_a_proxy_does_not_have_more_of_is_the_error_that_stays(proxy, layers):
    """Seconds that do not grow with layers, unknown to the prediction: the fewer layers, the more they count."""
    trial = make_trial(proxy.source, proxy.request, proxy.candidate, DRIVE, layers)
    hidden_s = 0.1 * proxy.candidate.step.step_s
    found = _full(trial, trial.predicted.step_s + hidden_s)["step_s"]
    truth = proxy.candidate.step.step_s + hidden_s
    assert found > truth
    whole = make_trial(proxy.source, proxy.request, proxy.candidate, DRIVE, 8)
    assert found > _full(whole, whole.predicted.step_s + hidden_s)["step_s"] > truth * (1 - 1e-9)
