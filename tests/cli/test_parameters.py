import click
import pytest

from advisor.cli import options, parameters
from advisor.spec.layout import DTYPE_BYTES, CpComm, CudaGraph, Dispatcher, Fsdp


def gpus(text):
    return parameters.Gpus().convert(text, None, None)


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("64", (64,)),
        ("auto", "auto"),
        ("64,128,256", (64, 128, 256)),
        ("64,128,...,2048", (64, 128, 256, 512, 1024, 2048)),
        ("8,16,24,...,48", (8, 16, 24, 32, 40, 48)),
        (" 8 , 16 ", (8, 16)),
    ],
)
def test_gpu_counts(text, counts):
    assert gpus(text) == counts


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("many", "not a whole number"), ("0", "not between"), ("-8", "not between"), ("nan", "not a whole number"),
        ("1e3", "not a whole number"), ("64,64", "twice"), ("64,...,128", "needs two counts"), ("", "not a whole"),
        ("64,128,...,3000", "not reached"), ("128,64,...,8", "not reached"), ("9" * 5000, "not"),
        ("8,16,...", "needs two"),
        (",".join(str(n) for n in range(1, 100)), "more than the 64"),
    ],
)  # fmt: skip
def test_wrong_gpu_counts_are_explained_briefly(text, said):
    with pytest.raises(click.BadParameter) as caught:
        gpus(text)
    assert said in caught.value.message
    assert len(caught.value.message) < 200


def test_choices_are_those_of_the_enums():
    assert [one.name for one in Dispatcher if one] == list(options.DISPATCHERS)
    assert [one.name for one in CudaGraph] == list(options.CUDA_GRAPHS)
    assert [one.name for one in CpComm] == list(options.CP_COMMS)
    assert [one.name for one in Fsdp] == list(options.FSDP)
    assert list(DTYPE_BYTES) == list(options.DTYPES)


def test_every_keyword_of_the_python_functions_has_an_option():
    from advisor.cli.estimate import command as estimate
    from advisor.cli.plan import command as plan
    from advisor.search.options import EstimateOptions, PlanOptions

    output = {"form", "out", "color", "quiet", "verbose"}
    for verb, keywords, own in ((plan, PlanOptions, set()), (estimate, EstimateOptions, {"megatron_args"})):
        names = {param.name for param in verb.params} - output - own - {"model", "gpus"}
        assert names == set(keywords.__annotations__) - {"given_by"}


def test_out_file(tmp_path):
    kind = parameters.OutFile([".json", ".md"])
    assert kind.convert(str(tmp_path / "a.json"), None, None) == tmp_path / "a.json"
    for bad, said in (
        (tmp_path, "is a directory"),
        (tmp_path / "no" / "a.json", "does not exist"),
        (tmp_path / "a.x", "end in"),
    ):
        with pytest.raises(click.BadParameter, match=said):
            kind.convert(str(bad), None, None)


def test_the_shell_completes_presets_and_words():
    from advisor.cli.plan import command

    params = {param.name: param for param in command.params}
    with click.Context(command) as ctx:
        names = [item.value for item in params["model"].type.shell_complete(ctx, params["model"], "minimax")]
        words = [item.value for item in params["objective"].type.shell_complete(ctx, params["objective"], "m")]
    assert "minimax-m2" in names
    assert words == ["memory"]
