"""Random command lines: an answer or one error, never a fault."""

from __future__ import annotations

import contextlib
import io

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from advisor.cli.estimate import command as estimate
from advisor.cli.main import run
from advisor.search.options import EstimateOptions

KEYWORDS = {name.replace("_", "-") for name in EstimateOptions.__annotations__}
OPTIONS = {param.opts[0]: param for param in estimate.params if param.opts[0].removeprefix("--") in KEYWORDS}
SIZES = st.sampled_from(
    ["1", "2", "3", "4", "6", "8", "16", "32", "62", "128", "0", "-1", "1000000", "4096", "1e3", "0.5"]
)
ANYTHING = st.text(alphabet=st.characters(blacklist_categories=("Cs",)), max_size=12)


@st.composite
def option(draw):
    name = draw(st.sampled_from(sorted(OPTIONS)))
    param = OPTIONS[name]
    if param.is_flag:
        return [draw(st.sampled_from([*param.opts, *param.secondary_opts]))]
    known = list(getattr(param.type, "known", tuple)())
    values = [SIZES, SIZES, ANYTHING, *([st.sampled_from(known)] * 4 if known else [])]
    return [f"{name}={draw(st.one_of(values))}"]


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    model=st.sampled_from(["qwen3-0.6b", "minimax-m2", "deepseek-v2-lite", "nemotron-h-8b", "gpt-oss-20b"]),
    gpus=st.sampled_from(["1", "8", "16", "24", "64"]),
    options=st.lists(option(), max_size=6),
    form=st.sampled_from(["table", "json", "csv", "md"]),
)
def test_any_estimate(model, gpus, options, form):
    words = ["estimate", "--model", model, "--gpus", gpus, "--format", form, *(word for one in options for word in one)]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(words)
    assert code in {0, 1, 2}, (words, err.getvalue())
    if code == 2:
        assert out.getvalue() == ""
        assert err.getvalue().count("error: ") == 1
    else:
        assert out.getvalue()
        assert "error: " not in err.getvalue()
        assert "nan" not in out.getvalue().lower().split()
