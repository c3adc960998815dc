"""A log-linear model as users write it: its law, posteriors by enumeration, refusals."""

from itertools import combinations

import numpy as np
import pymc as pm
import pytest
from scipy import stats

import pymc_dp as dp
from pymc_dp.graphs.values import plain_function
from tests.agreement import values_follow

LEVELS = {"a": 2, "b": ["no", "yes"], "c": 2}
TERMS = [("a", "b"), ("b", "c")]


def small(n=4, releases=True, **noises):
    """Return three columns in two cliques, and the object of the rows."""
    noises = noises or {"ab": dp.GaussianMechanism(1.2), "cb": dp.LaplaceMechanism(0.8)}
    values = {"ab": [[2.3, 0.4], [-0.6, 1.9]], "cb": [[0.2, 1.1], [2.5, 0.7]], "b": [2.0, 3.0]}
    with pm.Model() as model:
        rows = dp.LogLinear("rows", LEVELS, TERMS, n, concentration=2.0)
        for name, noise in noises.items() if releases else ():
            dp.PrivateObservation(name, rows.margin(*name), noise, observed=values[name])
    return model, rows


def all_tables(n):
    """Return the clique tables of all full tables of n rows, each once."""
    found = {}
    for bars in combinations(range(n + 7), 7):
        full = (np.diff([-1, *bars, n + 7]) - 1).reshape(2, 2, 2)
        key = np.concatenate([full.sum(axis=2).ravel(), full.sum(axis=0).ravel()])
        found[tuple(key.tolist())] = key
    return list(found.values())


def log_densities(model, tables):
    values = [model.rvs_to_values[model["rows"]]]
    terms = plain_function(values, model.logp())
    return np.array([terms(t) for t in tables])


def test_the_law_sums_to_one_over_all_tables_and_is_that_of_prior_draws():
    model, _ = small(releases=False)
    tables = all_tables(4)
    log_p = log_densities(model, tables)
    np.testing.assert_allclose(np.exp(log_p).sum(), 1.0)
    drawn = pm.draw(model["rows"], 20_000, random_seed=1)
    place = {tuple(t): i for i, t in enumerate(tables)}
    found = np.bincount([place[tuple(t)] for t in drawn], minlength=len(tables)) / len(drawn)
    exact = np.exp(log_p)
    assert np.abs(found - exact).max() < 5 * np.sqrt(exact.max() / len(drawn))
    wrong = tables[0].copy()
    wrong[4] += 1
    assert log_densities(model, [wrong])[0] == -np.inf


@pytest.mark.by_day("withheld", "two laws")
@pytest.mark.parametrize(
    "noises",
    [
        {},
        {"ab": dp.GeometricMechanism(1.5).clipped(lower=0), "b": dp.CauchyMechanism(1.0)},
        {"ab": dp.LaplaceMechanism(1.0).suppressed(below=1.0)},
    ],
    ids=["two laws", "clipped", "withheld"],
)
def test_posterior_of_all_tables(noises):
    if "ab" in noises:
        value = [[2.0, 0.0], [0.0, 2.0]] if "b" in noises else [[2.3, np.nan], [np.nan, 1.9]]
        with pm.Model() as model:
            rows = dp.LogLinear("rows", LEVELS, TERMS, 4, concentration=2.0)
            dp.PrivateObservation("ab", rows.margin("a", "b"), noises["ab"], observed=value)
            if "b" in noises:
                dp.PrivateObservation("b", rows.margin("b"), noises["b"], observed=[2.0, 3.0])
    else:
        model, rows = small()
    tables = all_tables(4)
    log_p = log_densities(model, tables)
    exact = np.exp(log_p - log_p.max())
    exact /= exact.sum()
    idata = dp.sample(model, draws=4_000, tune=50, chains=2, random_seed=1, quiet=True)
    drawn = idata["posterior"]["rows"].to_numpy()
    place = {tuple(t): i for i, t in enumerate(tables)}
    found = np.array([place[tuple(t)] for t in drawn.reshape(-1, 8)])
    values_follow(found[::4], np.arange(len(tables)), exact)
    counts = np.array(tables)[:, :4] @ [0, 1, 2, 3]
    np.testing.assert_allclose(
        (drawn[..., :4] @ [0, 1, 2, 3]).mean(), exact @ counts, atol=5 * counts.std() / 40
    )


def test_probabilities_are_drawn_given_the_tables():
    """Their mean is that of a Dirichlet law, for the clique's cells and for a margin."""
    _, rows = small()
    tables = np.array([2, 1, 0, 1, 1, 1, 1, 1])
    import xarray as xr

    drawn = xr.Dataset({"rows": (("chain", "draw", "k"), np.tile(tables, (1, 8_000, 1)))})
    idata = xr.DataTree.from_dict({"posterior": drawn})
    p = rows.probabilities(idata, "b", "a", random_seed=1)
    assert p.dims == ("chain", "draw", "b", "a")
    assert list(p.coords["b"].to_numpy()) == ["no", "yes"]
    exact = (tables[:4].reshape(2, 2).T + 0.5) / 6.0
    np.testing.assert_allclose(p.mean(("chain", "draw")), exact, atol=0.012)
    np.testing.assert_allclose(
        rows.probabilities(idata, "b", random_seed=1).mean(("chain", "draw")), exact.sum(1),
        atol=0.012,
    )  # fmt: skip


def test_no_rows_and_very_many():
    for n in (0, 10**9):
        with pm.Model() as model:
            rows = dp.LogLinear("rows", LEVELS, TERMS, n)
            z = np.full((2, 2), n / 4)
            dp.PrivateObservation("z", rows.margin("a", "b"), dp.GaussianMechanism(9.0), observed=z)
        idata = dp.sample(model, draws=50, tune=50, chains=2, random_seed=1, quiet=True)
        found = idata["posterior"]["rows"].to_numpy()[..., :4]
        assert (found.sum(axis=-1) == n).all()
        assert np.abs(found - n / 4).max() < 60


def test_refusals():
    model, rows = small(releases=False)
    with model:
        with pytest.raises(ValueError, match=r"'rows': 'a', 'c' is no margin .* a, b; b, c"):
            rows.margin("a", "c")
        with pytest.raises(ValueError, match="CliqueGibbs cannot update 'rows': no margin"):
            dp.CliqueGibbs([rows.rv])
        half = rows.margin("a", "b")[0]
        dp.PrivateObservation("z", half, dp.LaplaceMechanism(1.0), observed=[1.0, 2.0])
        with pytest.raises(ValueError, match="'z' depends on it, and is no release of a margin"):
            dp.CliqueGibbs([rows.rv])
        wide = {f"x{i}": 12 for i in range(4)}
        with pytest.raises(ValueError, match=r"'wide': the clique x0, x1, x2, x3 has 20,736 cells"):
            dp.LogLinear("wide", wide, [tuple(wide)], 5)
        with pytest.raises(ValueError, match="n=-1 is no whole number"):
            dp.LogLinear("few", LEVELS, TERMS, -1)
        with pytest.raises(ValueError, match="concentration=0 is no finite"):
            dp.LogLinear("flat", LEVELS, TERMS, 5, concentration=0)


def test_the_prior_predictive_has_the_margins_of_the_rows():
    model, _ = small()
    drawn = pm.sample_prior_predictive(500, model=model, random_seed=1)
    noise = drawn["prior_predictive"]["ab"].to_numpy()[0] - drawn["prior"]["rows"].to_numpy()[
        0, :, :4
    ].reshape(-1, 2, 2)
    assert stats.kstest(noise.ravel() / 1.2, "norm").pvalue > 1e-3


def test_the_step_is_taken_by_itself_and_says_why_it_cannot():
    model, rows = small()
    with model:
        drawn = pm.sample(50, tune=50, chains=1, random_seed=1, progressbar=False)
        assert np.unique(drawn["posterior"]["rows"].to_numpy(), axis=1).shape[1] > 5
        pm.Normal("public", rows.margin("b"), 1, observed=[2.0, 2.0])
        for sample in (dp.sample, pm.sample):
            with pytest.raises(ValueError, match="CliqueGibbs cannot update 'rows': 'public'"):
                sample(draws=10, tune=10, progressbar=False)


@pytest.mark.parametrize("possible", [True, False])
def test_bounded_noise_starts_where_it_is_possible_or_says_so(possible):
    with pm.Model() as model:
        rows = dp.LogLinear("rows", {"a": 3, "b": 4}, [("a", "b")], 600)
        z = np.arange(12.0).reshape(3, 4) * 8.0 + (6.0 if possible else 0.0)
        dp.PrivateObservation("z", rows.margin("a", "b"), dp.UniformMechanism(4.0), observed=z)
    if not possible:
        with pytest.raises(ValueError, match="'rows': no counts were found"):
            dp.sample(model, draws=20, tune=20, chains=1, random_seed=1, quiet=True)
        return
    idata = dp.sample(model, draws=50, tune=50, chains=1, random_seed=1, quiet=True)
    counts = idata["posterior"]["rows"].to_numpy().reshape(-1, 3, 4)
    assert (abs(counts - z) <= 4.0).all()
