"""A refusal tells the one or two reasons that matter, each once, and what to write instead."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_dp as dp
from pymc_dp.graphs.declined import Declined
from pymc_dp.laws.sum_law import law_of
from pymc_dp.reading.groups import record_groups
from pymc_dp.reading.model import Reading

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
        r"^the release 'z' has shape \(3,\): one sum", 1,
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
        normal, lambda x: pt.clip(x, 0, 1).var(), GAUSSIAN, "only a sum of a function", 1,
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


def of_unknown_number(law, *, several=False):
    """Records of unknown number, which is released."""

    def made():
        n = pm.Poisson("n", 20, shape=2 if several else None)
        observed = np.full(n.type.shape, 20.0)
        dp.PrivateObservation("count", n, GAUSSIAN, observed=observed)
        return law(n)

    return made


def two_of_one(n):
    mu = pm.Normal("mu")
    first, second = (pm.Normal(name, mu, 1, shape=n[1]) for name in "xy")
    dp.PrivateObservation("first", first.sum(), GAUSSIAN, observed=1.0)
    return second


# Records, statistic, and what is said to whoever declares or collapses it.
MISWRITTEN = {
    "fewer places": (
        normal, lambda x: pt.zeros(3)[G[:5]].inc(x),
        r"values of 'x', of the shape 6, are put at places of the shape 5: write an index",
    ),
    "fewer places, a slice": (
        normal, lambda x: pt.zeros(3)[:2].inc(x), "of the shape 6, are put at places of the shape 2"
    ),
    "negative shape": (lambda: normal(-3), lambda x: x.sum(), "'x' has the shape -3, .* shape=n"),
    "square of one": (
        lambda: normal(1), lambda x: (x**2).sum(), "'x' has 1. .* sample with rung='records'"
    ),
    "two vectors of one number": (
        of_unknown_number(two_of_one, several=True), lambda x: x.sum(),
        "'x' and 'y' have the same unknown number",
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:No safe default transform")
@pytest.mark.parametrize("case", MISWRITTEN)
def test_what_is_miswritten_is_told_by_name(case):
    records, statistic, match = MISWRITTEN[case]

    def collapse():
        with pm.Model() as model:
            released = statistic(records())
            observed = np.ones(released.type.shape)
            dp.PrivateObservation("z", released, GAUSSIAN, observed=observed)
        dp.collapse(model, "statistics")

    with pytest.raises((ValueError, NotImplementedError), match=match):
        collapse()


@pytest.mark.parametrize(
    ("records", "statistic", "same"),
    [
        (
            normal,
            lambda x: pt.zeros(3)[np.array([True, False, True])].inc(x[:2]),
            lambda x: pt.stack([x[0], 0.0, x[1]]),
        ),
        (
            of_unknown_number(lambda n: pm.Normal("x", pm.Normal("mu"), 1, shape=n)),
            lambda x: [x.mean()],
            lambda x: pt.stack([x.sum()]) / x.shape[0],
        ),
    ],
    ids=["places by truth values", "a list of one"],
)
def test_other_spellings_are_read(records, statistic, same):
    found = []
    for spelling in (statistic, same):
        with pm.Model() as model:
            released = (
                pt.stack(written) if isinstance(written := spelling(records()), list) else written
            )
            observed = np.full(released.type.shape, 0.3)
            dp.PrivateObservation("z", released, GAUSSIAN, observed=observed)
        dp.collapse(model)
        [group] = record_groups(reading := Reading(model))
        law = law_of(reading, group)
        found.append((type(law), law.describe(model["z"])))
    assert found[0] == found[1]


@pytest.mark.parametrize("shape", [None, 5])
def test_a_mean_of_one_value_is_warned_of(shape, caplog):
    with pm.Model():
        x = pm.Normal("x", pm.Normal("mu"), 2, shape=shape)
        dp.PrivateObservation("z", x.clip(-9, 9).mean(), LAPLACE, observed=1.0)
    said = [r.message for r in caplog.records if "shape=n for 'x'" in r.message]
    assert len(said) == (shape is None)
