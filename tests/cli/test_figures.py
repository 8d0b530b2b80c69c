import math

import pytest

from advisor.cli.figures import billions, count, figure, gain, percent


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (5287.4, "5\u202f290"), (61.84, "61.8"), (0.4123, "0.412"), (100.4, "100"), (99.96, "100"), (9.996, "10.0"),
        (0.9996, "1.00"), (0, "0"), (-12.345, "-12.3"), (1234567, "1\u202f230\u202f000"), (3e-7, "3.00e-07"),
        (math.nan, "-"), (math.inf, "-"), (None, "-"),
    ],
)  # fmt: skip
def test_figure_has_three_significant_digits(value, shown):
    assert figure(value) == shown


def test_count_is_exact():
    assert count(228_689_764_864) == "228\u202f689\u202f764\u202f864"


def test_shares_and_gains():
    assert percent(0.3421) == "34.2"
    assert percent(None) == "-"
    assert gain(0.05) == "+5.0 %"
    assert gain(-0.011) == "-1.1 %"
    assert billions(228_689_764_864) == "229 B"
