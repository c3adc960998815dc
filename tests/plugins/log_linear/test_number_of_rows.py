"""A log-linear model whose number of rows is a variable: posteriors by enumeration, refusals."""

from itertools import combinations

import numpy as np
import pymc as pm
import pytest
import xarray as xr

import pymc_dp as dp
from pymc_dp.graphs.values import plain_function
from tests.agreement import values_follow

LEVELS = {"a": 2, "b": 2, "c": 2}
CHAIN, PARTS = [("a", "b"), ("b", "c")], [("a", "b")]
SHORT = {"draws": 20, "tune": 20, "chains": 1, "random_seed": 1, "quiet": True}


def build(terms=CHAIN, law=pm.Binomial, parameters=(4, 0.6), released=True):
    with pm.Model() as model:
        n = law("n", *parameters)
        rows = dp.LogLinear("rows", LEVELS, terms, n, concentration=2.0)
        ab, c = rows.margin("a", "b"), rows.margin("c")
        z = [[2.3, 0.4], [-0.6, 1.9]]
        dp.PrivateObservation("ab", ab, dp.GaussianMechanism(1.2), observed=z)
        dp.PrivateObservation("c", c, dp.LaplaceMechanism(0.8), observed=[1.1, 0.6])
        if released:
            dp.PrivateObservation("n_z", n, dp.GeometricMechanism(1.5), observed=1)
    return model, rows


def all_tables(tree, numbers):
    """Return all clique tables of these numbers of rows, after the number."""
    found = {}
    columns = tuple(tree.levels)
    maps = [tree.cells_of(columns, c) for c in tree.cliques]
    for n in numbers:
        for bars in combinations(range(n + 7), 7):
            full = np.diff([-1, *bars, n + 7]) - 1
            parts = [np.bincount(m, full, m.max() + 1).astype(int) for m in maps]
            found[(n, *np.concatenate(parts).tolist())] = True
    return np.array(list(found))


def probabilities(model, states, logp):
    values = [model.rvs_to_values[model[name]] for name in ("n", "rows")]
    terms = plain_function(values, logp)
    return np.exp([terms(np.array(s[0]), s[1:]) for s in states])


def test_the_law_sums_to_one_over_all_numbers_of_rows():
    model, rows = build()
    states = all_tables(rows.tree, range(5))
    p = probabilities(model, states, model.logp(vars=[model["n"], rows.rv]))
    np.testing.assert_allclose(p.sum(), 1.0)
    drawn = pm.draw([model["n"], rows.rv], 5_000, random_seed=1)
    values_follow(np.column_stack(drawn), states, p)


CASES = {
    "released": (CHAIN, pm.Binomial, (4, 0.6), True),
    "by its margins": (CHAIN, pm.Binomial, (4, 0.6), False),
    "two parts": (PARTS, pm.DiscreteUniform, (1, 4), False),
    "two parts, released": (PARTS, pm.DiscreteUniform, (1, 4), True),
    "truncated": (
        PARTS,
        lambda name, *p: pm.Truncated(name, pm.Poisson.dist(*p), upper=4),
        (2.5,),
        True,
    ),
}


@pytest.mark.by_day("by its margins", "two parts, released")
@pytest.mark.parametrize("case", CASES)
def test_posterior_of_all_tables_and_numbers_of_rows(case):
    model, rows = build(*CASES[case])
    states = all_tables(rows.tree, range(case[:3] == "two", 5))
    exact = probabilities(model, states, model.logp())
    idata = dp.sample(model, draws=4_000, tune=50, chains=2, random_seed=1, quiet=True)
    n = idata["posterior"]["n"].to_numpy().reshape(-1, 1)
    drawn = np.hstack([n, idata["posterior"]["rows"].to_numpy().reshape(n.size, -1)])
    values_follow(drawn[::4], states, exact / exact.sum())


@pytest.mark.parametrize("first", [True, False], ids=["n first", "margins first"])
def test_one_step_draws_both(first):
    with pm.Model() as model:
        n = pm.Poisson("n", pm.Gamma("mu", 50, 0.1))
        noise = dp.GeometricMechanism(3.0)
        if first:
            dp.PrivateObservation("n_z", n, noise, observed=430)
        rows = dp.LogLinear("rows", LEVELS, CHAIN, n)
        dp.PrivateObservation("b", rows.margin("b"), noise, observed=[160, 260])
        if not first:
            dp.PrivateObservation("n_z", n, noise, observed=430)
        drawn = pm.sample(50, tune=50, chains=1, random_seed=1, progressbar=False)["posterior"]
    step = next(s for s in dp.steps(model) if isinstance(s, dp.CliqueGibbs))
    assert {v.name for v in step.vars} == {"n", "rows"}
    n = drawn["n"].to_numpy()
    assert abs(n.mean() - 424) < 8
    assert np.unique(n).size > 4
    np.testing.assert_array_equal(drawn["rows"][..., :4].sum(axis=-1), n)


def test_the_start_is_near_what_was_released():
    """Also where the prior reaches far from it; a total that the prior excludes is not taken."""
    for most, expected in ((10**7, 900), (800, 800)):
        with pm.Model() as model:
            n = pm.DiscreteUniform("n", 0, most)
            rows = dp.LogLinear("rows", LEVELS, CHAIN, n)
            z, noise = np.full((2, 2), 225.0), dp.GaussianMechanism(4.0)
            dp.PrivateObservation("z", rows.margin("a", "b"), noise, observed=z)
        drawn = dp.sample(model, **SHORT)["posterior"]["n"].to_numpy()
        assert abs(drawn - expected).max() < 45
        assert np.unique(drawn).size > 1


def test_probabilities_and_new_rows():
    model, rows = build()
    idata = dp.sample(model, **SHORT)
    p = rows.probabilities(idata, "a", "b", random_seed=1)
    np.testing.assert_allclose(p.sum(["a", "b"]), 1.0)
    new = dp.predict_records(model, idata, size=7, random_seed=1)
    assert dict(new.sizes) == {"chain": 1, "draw": 20, "new_record": 7}
    with pytest.raises(ValueError, match="'rows': the number of rows, 'n', is another one in each"):
        dp.predict_records(model, idata)
    known = pm.do(model, {"n": 5})
    fixed = xr.DataTree.from_dict({"posterior": idata["posterior"].to_dataset().drop_vars("n")})
    assert dp.predict_records(known, fixed).sizes["new_record"] == 5


def test_the_default_concentration_is_weighed_against_the_law_of_n(caplog):
    for mean, said in ((9, True), (50_000, False)):
        caplog.clear()
        with pm.Model():
            dp.LogLinear("rows", LEVELS, CHAIN, pm.Poisson("n", mean))
        assert ("beside n=9" in caplog.text) == said


def test_refusals():
    model, rows = build(released=False)
    with pytest.raises(ValueError, match="'rows' has a random number of rows, 'n': approximate="):
        dp.sample(model, approximate="clt", **SHORT)
    with model:
        with pytest.raises(ValueError, match=r"cannot update 'rows': vars= are 'rows' and its num"):
            dp.CliqueGibbs([rows.rv])
        pm.Normal("public", model["n"], 1, observed=2.0)
        for sample in (dp.sample, pm.sample):
            with pytest.raises(ValueError, match="'public' depends on its number of rows, 'n'"):
                sample(draws=10, tune=10, progressbar=False)
    with pm.Model() as twice:
        n = pm.Poisson("n", 9)
        for name in ("rows", "others"):
            tables = dp.LogLinear(name, LEVELS, CHAIN, n, concentration=0.5)
            noise = dp.LaplaceMechanism(1.0)
            dp.PrivateObservation(f"{name}_z", tables.margin("a"), noise, observed=[4.0, 5.0])
        with pytest.raises(ValueError, match="'others' depends on its number of rows, 'n'"):
            dp.sample(twice, **SHORT)
        for wrong in (2 * n, pm.Normal("x"), pm.Poisson("k", 3, shape=2)):
            with pytest.raises(ValueError, match="is no whole number of rows: write an int, or"):
                dp.LogLinear("few", LEVELS, CHAIN, wrong)
    with pytest.raises(ValueError, match="'n', is no free variable of the model"):
        dp.sample(pm.observe(build()[0], {"n": 3}), **SHORT)
    of_vector, _ = build(law=pm.Categorical, parameters=(pm.Dirichlet.dist([1.0, 2.0]),))
    with pytest.raises(ValueError, match="the law of 'n' has parameters that are no numbers"):
        dp.sample(of_vector, **SHORT)
