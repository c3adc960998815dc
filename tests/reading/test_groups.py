"""Which variables are records, and which of them are drawn together."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_dp as dp
from pymc_dp.reading.factors import parameters
from pymc_dp.reading.groups import blocks
from pymc_dp.reading.model import Reading, children
from pymc_dp.reading.records import has_record_axis, record_variables
from pymc_dp.reading.tags import is_tagged
from pymc_dp.step_methods.records import RecordMetropolis

LAPLACE = dp.LaplaceMechanism(1.0)


def names(variables):
    return [v.name for v in variables]


def release_sums(*records):
    sums = pt.stack([v.sum() for v in records])
    dp.PrivateObservation("z", sums, LAPLACE, observed=np.arange(1.0, 1 + len(records)))


def read(model, *records):
    """Return the names of records that are drawn together, and of what depends on them."""
    return [(names(b.records), names(b.factors)) for b in blocks(Reading(model), records)]


def test_a_latent_that_depends_on_a_mean_is_no_part_of_the_record():
    """It is a parameter of some records and a factor of the others: no move carries it along."""
    with pm.Model() as model:
        x = pm.Normal("x", 0, 1, shape=4)
        latent = pm.Normal("l", 3 * x.mean(), 1, shape=4)
        y = pm.Normal("y", x + latent, 1, shape=4)
        release_sums(x, y)
    [block] = blocks(Reading(model), (x, y))
    assert names(block.records) == ["x", "y"]
    assert names(block.factors) == ["l", "z"]
    assert not parameters(Reading(model), block)
    assert [is_tagged(v) for v in (x, latent, y)] == [True, False, True]


def test_a_latent_of_rows_is_part_of_the_record():
    with pm.Model() as model:
        x = pm.Normal("x", 0, 1, shape=4)
        latent = pm.Normal("l", 3 * x, 1, shape=4)
        y = pm.Normal("y", x + latent, 1, shape=4)
        release_sums(x, y)
    [block] = blocks(Reading(model), (x, y))
    assert names(block.records) == ["x", "l", "y"]


def test_every_dependence_within_a_group_is_by_rows():
    with pm.Model() as model:
        x = pm.Normal("x", 0, 1, shape=4)
        y = pm.Normal("y", x, 1, shape=4)
        w = pm.Normal("w", y + 3 * x.mean(), 1, shape=4)
        release_sums(x, y, w)
    assert read(model, x, y, w) == [(["x", "y"], ["w", "z"]), (["w"], ["z"])]


@pytest.mark.parametrize(
    "law",
    [
        lambda x: pm.Mixture("y", [0.5, 0.5], [pm.Normal.dist(x, 1), pm.Normal.dist(x + 3, 1)]),
        lambda x: pm.Censored("y", pm.Normal.dist(x, 1), lower=0.0, upper=None),
    ],
    ids=["mixture", "censored"],
)
def test_children_by_the_components_of_a_law(law):
    """Else records would move as if nothing but the releases depended on them."""
    with pm.Model() as model:
        x = pm.Normal("x", 0, 1, shape=4)
        y = law(x)
        release_sums(x, y)
    assert names(children(Reading(model), x)) == ["y", "z"]
    assert record_variables(Reading(model)) == [y]
    assert read(model, x, y) == [(["x"], ["y", "z"]), (["y"], ["z"])]


def test_rows_of_probabilities_are_rows():
    with pm.Model() as model:
        x = pm.Normal("x", 0, 1, shape=4)
        y = pm.Categorical("y", logit_p=pt.stack([x, -x, 0 * x], 1))
        sums = pt.stack([x.sum(), pt.eq(y, 1).sum()])
        dp.PrivateObservation("z", sums, LAPLACE, observed=[1.0, 2.0])
    [block] = blocks(Reading(model), tuple(record_variables(Reading(model))))
    assert names(block.records) == ["x", "y"]
    assert is_tagged(x)
    assert is_tagged(y)


# --- Laws that a user wrote ---------------------------------------------------------------------

N = 5
NORMAL = pm.Normal.dist
CUSTOM = {
    "cumulated": (lambda mu, size: pt.cumsum(NORMAL(mu, 1, size=size)), False),
    "centred": (lambda mu, size: (v := NORMAL(mu, 1, size=size)) - v.mean(), False),
    "of a common effect": (lambda mu, size: NORMAL(mu, 1, size=size) + NORMAL(0, 1), False),
    "about a common mean": (lambda mu, size: NORMAL(NORMAL(mu, 1), 1, size=size), False),
    "of one": (lambda mu, size: pt.zeros(N) + NORMAL(mu, 1), False),
    "transformed": (lambda mu, size: pt.exp(NORMAL(mu, 1, size=size) / 2) + mu, True),
    "hierarchical": (lambda mu, size: NORMAL(NORMAL(mu, 1, size=size), 1, size=size), True),
    "a hurdle": (
        lambda mu, size: pm.Bernoulli.dist(0.5, size=size) * NORMAL(mu, 1, size=size),
        True,
    ),
    "a mixture": (
        lambda mu, size: pm.Mixture.dist([0.5, 0.5], [NORMAL(mu, 1), NORMAL(1, 2)], size=size),
        True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CUSTOM)
def test_entries_of_a_custom_law(name):
    dist, independent = CUSTOM[name]
    with pm.Model() as model:
        x = pm.CustomDist("x", 0.0, dist=dist, shape=N)
        dp.PrivateObservation("z", x.sum(), LAPLACE, observed=1.0)
    assert has_record_axis(x) is independent
    assert is_tagged(x) is independent
    if not independent:
        with pytest.raises(ValueError, match="'x'"):
            RecordMetropolis([x], model=model)


def test_custom_rows_that_are_vectors():
    with pm.Model():
        dist = lambda mu, size: pt.cumsum(NORMAL(mu, 1, size=(N, 3)), axis=-1)  # noqa: E731
        x = pm.CustomDist("x", 0.0, dist=dist, ndim_supp=1, shape=(N, 3))
    assert has_record_axis(x)


@pytest.mark.parametrize("by_rows", [True, False])
def test_custom_law_given_other_records(by_rows):
    def dist(mu, size):
        return NORMAL(mu if by_rows else pt.cumsum(mu), 1, size=size)

    with pm.Model() as model:
        x = pm.Normal("x", 0, 1, shape=N)
        y = pm.CustomDist("y", x, dist=dist, shape=N)
        release_sums(x, y)
    found = [names(block.records) for block in blocks(Reading(model), (x, y))]
    assert found == ([["x", "y"]] if by_rows else [["x"], ["y"]])
