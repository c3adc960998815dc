"""A log-linear model of rows whose weights have a prior: its law and posteriors by enumeration."""

from collections import defaultdict
from itertools import combinations

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import xarray as xr
from scipy import special

import pymc_dp as dp
from pymc_dp.graphs.values import plain_function
from pymc_dp.plugins.log_linear.cliques import junction_tree
from pymc_dp.plugins.log_linear.layout import joint
from pymc_dp.plugins.log_linear.weights import conditionals
from tests.agreement import follows, values_follow

LEVELS = {"a": 2, "b": ["no", "yes"], "c": 2}
TERMS = [("a", "b"), ("b", "c")]
EFFECTS = {("b", "a"): [[0.9, -0.3], [0.2, -0.8]], ("c",): [0.0, 1.1], ("c", "b"): [[1, 0], [0, 1]]}
SHORT = {"draws": 20, "tune": 20, "chains": 1, "random_seed": 1, "quiet": True}


def full_table(levels, weights):
    """Return the probabilities of all columns, from the sum of the weights of each row."""
    values = dict(zip(levels, np.indices([*levels.values()]), strict=True))
    total = sum(np.asarray(lam)[tuple(values[c] for c in term)] for term, lam in weights.items())
    return np.exp(total) / np.exp(total).sum()


def build(released=True, n=4):
    with pm.Model() as model:
        theta = pm.Normal("theta", 0.3, 1)
        weights = {term: theta * np.array(lam) for term, lam in EFFECTS.items()}
        rows = dp.LogLinear("rows", LEVELS, TERMS, n, weights=weights)
        if released:
            z, w = [[2.3, 0.4], [-0.6, 1.9]], [0.2, 3.1]
            dp.PrivateObservation(
                "ab", rows.margin("a", "b"), dp.GaussianMechanism(1.2), observed=z
            )
            dp.PrivateObservation("c", rows.margin("c"), dp.LaplaceMechanism(0.8), observed=w)
    return model, rows


def all_tables(theta, n=4):
    """Return the clique tables of n rows, and their probabilities, summed over full tables."""
    row = full_table(dict.fromkeys("abc", 2), {t: theta * np.array(e) for t, e in EFFECTS.items()})
    found = defaultdict(float)
    for bars in combinations(range(n + 7), 7):
        full = (np.diff([-1, *bars, n + 7]) - 1).reshape(2, 2, 2)
        log_p = special.gammaln(n + 1) - special.gammaln(full + 1).sum()
        key = (*full.sum(axis=2).ravel().tolist(), *full.sum(axis=0).ravel().tolist())
        found[key] += np.exp(log_p + (full * np.log(row)).sum())
    return np.array(list(found)), np.array(list(found.values()))


@pytest.mark.parametrize(
    ("levels", "terms"),
    [
        ({"d": 2, "a": 3, "b": 2, "c": 3}, [("c", "a", "b"), ("c", "d", "b"), ("d",)]),
        ({"a": 2, "b": 3, "c": 2, "d": 2}, [("c", "a"), ("b", "c"), ("d",)]),
        ({"a": 2, "b": 3, "c": 2, "d": 2}, [("a", "b"), ("b", "c"), ("d", "c"), ("a", "d")]),
        ({"a": 2, "b": 1, "c": 3}, [("a", "b"), ("c", "a"), ("c",)]),
    ],
    ids=["two columns between", "a column alone", "a cycle", "one level"],
)
def test_messages_give_the_probabilities_of_the_full_table(levels, terms):
    rng, tree = np.random.default_rng(3), junction_tree(levels, terms)
    weights = {t: rng.normal(0, 2, tree.shape(t)) for t in terms}
    logs = conditionals(tree, {t: pt.constant(w) for t, w in weights.items()})
    found = joint(tree, np.exp(plain_function([], logs)()))
    p = full_table(levels, weights)
    for clique, cells in zip(tree.cliques, found, strict=True):
        gone = tuple(i for i, c in enumerate(levels) if c not in clique)
        np.testing.assert_allclose(cells, p.sum(axis=gone).ravel(), rtol=1e-10)


def test_the_law_is_that_of_the_full_table():
    model, rows = build(released=False)
    logp = model.logp(vars=[rows.rv])
    terms = plain_function([model.rvs_to_values[v] for v in (model["theta"], rows.rv)], logp)
    tables, p = all_tables(-0.7)
    np.testing.assert_allclose(np.exp([terms(np.array(-0.7), t) for t in tables]), p)
    assert terms(np.array(-0.7), tables[0] + [1, 0, 0, 0, 0, 0, 0, 0]) == -np.inf
    values_follow(pm.draw(pm.do(model, {"theta": -0.7})["rows"], 20_000, random_seed=1), tables, p)


def test_posterior_of_weights_and_tables():
    model, _ = build()
    grid = np.linspace(-4, 4.5, 60)
    tables, _ = all_tables(0.0)
    at = [model.rvs_to_values[model["rows"]]]
    released = plain_function(at, model.logp(vars=[model["ab"], model["c"]]))
    noise = np.exp([released(t) for t in tables])
    each = np.array([all_tables(t)[1] for t in grid]) * noise
    each *= np.exp(-0.5 * (grid - 0.3) ** 2)[:, None]
    idata = dp.sample(model, draws=5_000, tune=500, chains=2, random_seed=1, quiet=True)
    drawn = idata["posterior"]
    follows(drawn["theta"].to_numpy()[:, ::10], (grid, each.sum(axis=1)))
    values_follow(drawn["rows"].to_numpy()[:, ::10].reshape(-1, 8), tables, each.sum(axis=0))


def test_probabilities_and_new_rows():
    model, rows = build()
    theta = np.random.default_rng(2).normal(size=(2, 300))
    tables = np.zeros((2, 300, 8), dtype=int)
    drawn = {"theta": (("chain", "draw"), theta), "rows": (("chain", "draw", "cell"), tables)}
    idata = xr.DataTree.from_dict({"posterior": xr.Dataset(drawn)})
    p = rows.probabilities(idata, "c", "b")
    for place in ((0, 0), (1, 299)):
        one = {t: theta[place] * np.array(e) for t, e in EFFECTS.items()}
        exact = full_table(dict.fromkeys("abc", 2), one).sum(axis=0).T
        np.testing.assert_allclose(p.to_numpy()[place], exact)
    new = dp.predict_records(model, idata, size=200, random_seed=1)
    both = new["c"].to_numpy().reshape(-1, 200).mean(1), p.sel(c=1).sum("b").to_numpy().ravel()
    assert abs(np.mean(both[0] - both[1])) < 5 * 0.5 / np.sqrt(120_000)
    assert np.corrcoef(*both)[0, 1] > 0.95
    less = xr.DataTree.from_dict({"posterior": xr.Dataset(drawn).drop_vars("theta")})
    with pytest.raises(ValueError, match="'rows': the result has no draws of 'theta'"):
        rows.probabilities(less, "c")


def test_a_term_of_variables_and_a_number_of_rows():
    with pm.Model() as model:
        n = pm.Poisson("n", 400)
        weights = {("b", "a"): pm.Normal("ab", 0, 1, shape=(2, 2)), "c": pm.Normal("c", shape=2)}
        rows = dp.LogLinear("rows", LEVELS, TERMS, n, weights=weights)
        noise = dp.GaussianMechanism(5.0)
        z = [[200.0, 90.0], [30.0, 80.0]]
        dp.PrivateObservation("z", rows.margin("a", "b"), noise, observed=z)
    idata = dp.sample(model, draws=100, tune=200, chains=1, random_seed=1, quiet=True)
    p = rows.probabilities(idata, "a", "b").mean(("chain", "draw"))
    np.testing.assert_allclose(p, np.array(z) / 400, atol=0.06)
    assert idata["posterior"]["n"].to_numpy().std() > 1


def test_refusals():
    model, _ = build()
    with pytest.raises(ValueError, match=r"'rows' has weights=: approximate='clt' is for"):
        dp.sample(model, approximate="clt", **SHORT)
    cases = {
        r"'rows': the weights of the term a, b have the shape \(2, 3\)": {
            ("a", "b"): np.ones((2, 3))
        },
        "'rows': no clique of the model has the columns a, c": {("a", "c"): np.ones((2, 2))},
        r"'rows': weights= has the term \('a', 'a'\)": {("a", "a"): np.ones((2, 2))},
        "'rows': unknown columns d": {"d": np.ones(2)},
    }
    for wrong, weights in cases.items():
        with pm.Model(), pytest.raises(ValueError, match=wrong):
            dp.LogLinear("rows", LEVELS, TERMS, 4, weights=weights)
    with pm.Model(), pytest.raises(ValueError, match="'rows': concentration= is for rows without"):
        dp.LogLinear("rows", LEVELS, TERMS, 4, concentration=2, weights={"a": np.ones(2)})
