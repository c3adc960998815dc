"""A refusal tells the one or two reasons that matter, each once, and what to write instead."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_dp as dp
from pymc_dp.graphs.declined import Declined

LAPLACE, GAUSSIAN = dp.LaplaceMechanism(1.0), dp.GaussianMechanism(1.0)
G = np.array([0, 0, 0, 1, 1, 1])


def normal(n=6):
    return pm.Normal("x", pm.Normal("mu"), pm.HalfNormal("s"), shape=n)


def lognormal():
    return pm.LogNormal("x", pm.Normal("mu"), 1, shape=9)


def unlike():
    return pm.Gamma("x", 2, pm.HalfNormal("r", shape=2)[G], shape=6)


# Records, statistic, noise; the reason, and how many there are.
CASES = {
    "no sum": (normal, lambda x: x.max(), LAPLACE, "`Max` makes .* Release sums of functions", 1),
    "no sum either": (lognormal, lambda x: pt.sort(x)[4], LAPLACE, "^the statistic .*SortOp", 1),
    "three sums": (
        normal, lambda x: [pt.clip(x, 0, k).sum() for k in (1, 2, 3)], LAPLACE,
        r"^the release 'z' has shape \(3,\): one or two", 1,
    ),
    "of another variable": (
        normal, lambda x: x.sum() * pm.Normal("q"), LAPLACE,
        "mixes the records 'x' with 'q': write what does not depend on 'x' behind", 1,
    ),
    "data": (normal, lambda x: (pm.Data("w", np.ones(6)) * x).sum(), LAPLACE, "write numbers", 1),
    "different parameters": (unlike, lambda x: x.sum(), LAPLACE, "the release 'z' adds rec", 1),
    "rounded noise": (
        unlike, lambda x: pt.clip(x, 0, 1).sum(), LAPLACE.rounded(0), "no characteristic fun", 1,
    ),
    "products of sums": (
        normal, lambda x: pt.clip(x, 0, 1).var(), GAUSSIAN, "release the sums themselves", 1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_reasons(case):
    records, statistic, noise, match, most = CASES[case]
    with pm.Model() as model:
        released = statistic(records())
        shape = np.shape(released) if isinstance(released, list) else released.type.shape
        dp.PrivateObservation("z", released, noise, observed=np.ones(shape))
    with pytest.raises(Declined, match=match) as caught:
        dp.collapse(model)
    assert str(caught.value).count("; nor ") < most
    assert len(str(caught.value)) < 200 * most
