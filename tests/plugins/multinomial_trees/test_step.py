"""TreeGibbs: against every table of small trees, what it takes, and what it refuses."""

from itertools import product

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import special

import pymc_dp as dp
from pymc_dp.graphs.values import plain_function
from tests.agreement import values_follow
from tests.chains import SHORT

N = 4


def areas():
    """Two states of known totals, counties, and tracts; released at two levels, and across."""
    county = pm.Multinomial("county", [N, 2], [[0.3, 0.7], [0.6, 0.4]])
    tract = pm.Multinomial("tract", county, [0.2, 0.5, 0.3])
    release("z", tract, dp.LaplaceMechanism(1.5), [[[1, 0, 2], [2, 1, 0]], [[0, 1, 0], [1, 1, 2]]])
    release("w", county.sum(0), dp.DiscreteGaussianMechanism(1.0), [2, 5])
    release("u", [tract[0, 0, 0] + 2 * tract[1, 1, 2]], dp.GaussianMechanism(0.8), [1.4])
    return ["county", "tract"]


def margins():
    """A table of a and b; c given b, d given c, and e given a: sums are split, two times over."""
    ab = pm.Multinomial("ab", N, [0.1, 0.4, 0.2, 0.3])
    bc = pm.Multinomial("bc", ab.reshape((2, 2)).sum(0), [[0.5, 0.5], [0.2, 0.8]])
    pm.Multinomial("cd", bc.sum(0), [[0.7, 0.3], [0.4, 0.6]])
    ae = pm.Multinomial("ae", ab.reshape((2, 2)).sum(1), [0.5, 0.5])
    model = pm.modelcontext(None)
    release("z", ab, dp.GaussianMechanism(1.0), [0.2, 2.3, 1.1, 0.5])
    release("w", model["cd"], dp.LaplaceMechanism(1.0), [[1.5, 0.1], [0.3, 1.6]])
    release("v", ae, dp.GeometricMechanism(1.0), [[1, 2], [0, 0]])
    return ["ab", "bc", "cd", "ae"]


def widths():
    """Areas with different numbers of parts, one that is not split, and one that must be empty."""
    state = pm.Multinomial("state", N, [0.3, 0.3, 0.4])
    a = pm.Multinomial("a", state[0], [0.2, 0.3, 0.5])
    b = pm.Multinomial("b", state[2], [1.0, 0.0])
    release("z", state, dp.GeometricMechanism(1.0), [1, 1, 3])
    release("w", pt.concatenate([a, b]), dp.DiscreteGaussianMechanism(1.5), [0, 1, 1, 2, 1])
    return ["state", "a", "b"]


def without_a_total():
    """Poisson counts that are split."""
    state = pm.Poisson("state", [1.2, 2.0])
    county = pm.Multinomial("county", state, [0.3, 0.7])
    release("z", county, dp.GaussianMechanism(0.9), [[0.2, 1.3], [1.1, 0.4]])
    release("w", state.sum(), dp.LaplaceMechanism(0.7), 3.1)
    return ["state", "county"]


def release(name, statistic, mechanism, observed):
    dp.PrivateObservation(name, pt.as_tensor(statistic), mechanism, observed=np.array(observed))


def splits(n, width):
    return [c for c in product(range(n + 1), repeat=width) if sum(c) == n]


def all_tables(model, names):
    """Return all values of the variables, those of one a row."""
    states = [{}]
    for name in names:
        rv = model[name]
        width, found = rv.type.shape[-1], []
        if isinstance(rv.owner.op, pm.Poisson.rv_type):
            found = [{name: np.array(c)} for c in product(range(9), repeat=width)]
        else:
            above = [model[other] for other in names if states[0].get(other) is not None]
            n = rv.owner.op.dist_params(rv.owner)[0]
            totals = plain_function(above, pt.broadcast_to(n, rv.type.shape[:-1]))
            for state in states:
                rows = totals(*state.values()).ravel()
                for cells in product(*(splits(int(m), width) for m in rows)):
                    found.append({**state, name: np.reshape(cells, rv.type.shape)})
        states = found
    return {name: np.array([s[name] for s in states]) for name in names}


@pytest.mark.parametrize("build", [areas, margins, widths, without_a_total])
def test_draws_follow_the_posterior(build):
    with pm.Model() as model:
        names = build()
        step = dp.TreeGibbs([model[name] for name in names], rng=2)
    tables = all_tables(model, names)
    values = [model.rvs_to_values[model[name]] for name in names]
    log_p = plain_function(values, model.logp())
    chances = special.softmax([log_p(*row) for row in zip(*tables.values(), strict=True)])
    point, drawn = model.initial_point(), []
    for _ in range(4_000):
        for _ in range(4):  # draws in a row hang together
            point, _ = step.step(point)
        drawn.append(np.concatenate([np.ravel(point[name]) for name in names]))
    listed = np.concatenate([t.reshape(len(chances), -1) for t in tables.values()], axis=1)
    values_follow(np.array(drawn), listed, chances)


def test_probabilities_are_integrated_out_and_drawn():
    a, b = np.array([1.0, 2.0]), np.array([[1.0, 0.4, 1.0], [0.5, 0.5, 2.0]])
    z, w = np.array([[1, 2, 1], [1, 0, 2]]), np.array([2, 5])
    with pm.Model() as model:
        p, q = pm.Dirichlet("p", a), pm.Dirichlet("q", b)
        county = pm.Multinomial("county", N, p)
        tract = pm.Multinomial("tract", county, q)
        release("z", tract, dp.DiscreteGaussianMechanism(2.0), z)
        release("w", county, dp.GeometricMechanism(0.7), w)
        [step] = dp.steps(model)
        step.rng = np.random.default_rng(3)
    assert isinstance(step, dp.TreeGibbs)
    states = all_tables(model, ["county", "tract"])

    def polya(counts, a):
        total, weights = counts.sum(-1), special.gammaln(counts + a) - special.gammaln(counts + 1)
        return weights.sum(-1) + special.gammaln(total + 1) - special.gammaln(total + a.sum(-1))

    log_p = polya(states["county"], a) + polya(states["tract"], b).sum(-1)
    log_p -= ((z - states["tract"]) ** 2).sum((1, 2)) / 8
    log_p -= np.abs(w - states["county"]).sum(1) / 0.7
    point, drawn, probabilities = model.initial_point(), [], []
    for _ in range(4_000):
        for _ in range(3):
            point, _ = step.step(point)
        drawn.append(np.concatenate([point["county"], point["tract"].ravel()]))
        probabilities.append(point["q_simplex__"])
    listed = np.concatenate([t.reshape(len(log_p), -1) for t in states.values()], axis=1)
    values_follow(np.array(drawn), listed, special.softmax(log_p))
    logs = np.array(probabilities)
    shares = special.softmax(np.append(logs, -logs.sum(-1, keepdims=True), axis=-1), axis=-1)
    counts = np.array(drawn)[:, 2:].reshape(-1, 2, 3)
    expected = (counts + b) / (counts + b).sum(-1, keepdims=True)
    error = (shares - expected).mean(0) / (shares - expected).std(0) * 4_000**0.5
    assert np.abs(error).max() < 4.5


def test_a_chain_begins_near_what_was_released():
    rng = np.random.default_rng(0)
    with pm.Model():
        p, q = pm.Dirichlet("p", np.ones(5)), pm.Dirichlet("q", np.ones((5, 8)))
        county = pm.Multinomial("county", 10**6, p)
        tract = pm.Multinomial("tract", county, q)
        truth = rng.multinomial(10**6, rng.dirichlet(np.full(40, 0.3))).reshape(5, 8)
        observed = truth + rng.normal(0, 10, truth.shape)
        dp.PrivateObservation("z", tract, dp.GaussianMechanism(10.0), observed=observed)
        idata = dp.sample(draws=300, tune=50, var_names=["county", "tract"], **SHORT)
        drawn = idata["posterior"]
    assert (drawn["tract"].sum("tract_dim_1") == drawn["county"].to_numpy()).all()
    assert (drawn["county"].sum("county_dim_0") == 10**6).all()
    apart = (drawn["tract"].to_numpy()[0] - truth) / 10
    assert np.mean(apart**2) < 3  # a truth and a draw, each about one away from the release


def test_what_is_refused():
    def refused(build, match):
        with pm.Model():
            rvs = build()
            with pytest.raises(ValueError, match=match):
                dp.TreeGibbs(rvs)

    noise = dp.GaussianMechanism(1.0)

    def depends():
        a = pm.Multinomial("a", 5, [0.5, 0.5])
        b = pm.Multinomial("b", a, [0.5, 0.5])
        pm.Normal("y", a.sum(), 1, observed=2.0)
        dp.PrivateObservation("z", b, noise, observed=np.ones((2, 2)))
        return [a, b]

    def doubled():
        a = pm.Multinomial("a", 5, [0.5, 0.5])
        b = pm.Multinomial("b", 2 * a, [0.5, 0.5])
        dp.PrivateObservation("z", b, noise, observed=np.ones((2, 2)))
        return [a, b]

    def alone():
        a = pm.Multinomial("a", 5, [0.5, 0.5])
        b = pm.Multinomial("b", a, [0.5, 0.5])
        dp.PrivateObservation("z", b, noise, observed=np.ones((2, 2)))
        return [b]

    def squared():
        a = pm.Multinomial("a", 5, [0.5, 0.5])
        b = pm.Multinomial("b", a, [0.5, 0.5])
        dp.PrivateObservation("z", b**2, noise, observed=np.ones((2, 2)))
        return [a, b]

    def student():
        a = pm.Multinomial("a", 5, [0.5, 0.5])
        b = pm.Multinomial("b", a, [0.5, 0.5])
        dp.PrivateObservation("z", b, dp.StudentTMechanism(1.0, 3.0), observed=np.ones((2, 2)))
        return [a, b]

    refused(depends, "'a': 'y', which is no release, depends on it")
    refused(doubled, "numbers of trials of 'b' are no counts of 'a'")
    refused(alone, "'b' without 'a'")
    refused(squared, "'z' is not linear")
    refused(student, "StudentTMechanism")


def test_counts_of_a_tree_are_no_records():
    with pm.Model() as model:
        county = pm.Multinomial("county", 50, [0.5, 0.5])
        release("w", county, dp.GaussianMechanism(3.0), [20.0, 31.0])
        tract = pm.Multinomial("tract", county, [0.2, 0.8])
        assert county.tag.dp_step != "TreeGibbs"
        release("z", tract, dp.GaussianMechanism(3.0), np.full((2, 2), 12.0))
    assert county.tag.dp_step == tract.tag.dp_step == "TreeGibbs"
    with pytest.raises(NotImplementedError, match="'tract' follow Multinomial, a law of vectors"):
        dp.collapse(model)
    drawn = dp.sample(model, draws=5, tune=5, **SHORT)["posterior"]
    assert {"county", "tract"} <= {*drawn.data_vars}
    seen = pm.observe(model, {"county": np.array([21, 29])})
    drawn = dp.sample(seen, draws=5, tune=5, var_names=["tract"], **SHORT)["posterior"]
    assert (drawn["tract"].sum("tract_dim_1") == [21, 29]).all()


def test_a_tree_that_cannot_be_drawn_is_no_records():
    with pm.Model() as model:
        county = pm.Multinomial("county", 10, [0.5, 0.5])
        tract = pm.Multinomial("tract", county, [0.2, 0.8])
        release("z", tract, dp.GaussianMechanism(1.0), [[2.0, 6.0], [1.0, 1.0]])
        pm.Normal("y", county[0], 1, observed=9.0)  # declared after the release
    match = "TreeGibbs cannot: 'y', which is no release, depends on it"
    for names in (None, ["county", "tract"]):
        with pytest.raises(ValueError, match=match):
            dp.sample(model, draws=5, tune=5, var_names=names, **SHORT)


def test_dirichlet_multinomial_counts_are_split_and_split_others():
    a, b = np.array([1.0, 2.0]), np.array([1.0, 2.0, 0.5])
    with pm.Model() as model:
        county = pm.DirichletMultinomial("county", n=6, a=a)
        tract = pm.DirichletMultinomial("tract", n=county[0], a=b)
        release("w", county, dp.DiscreteGaussianMechanism(2.0), [5, 2])
        release("z", tract, dp.DiscreteGaussianMechanism(1.5), [2, 3, 1])
        step = dp.TreeGibbs([county, tract], rng=4)
    states = np.array([[k, 6 - k, *t] for k in range(7) for t in splits(k, 3)])

    def polya(counts, a):
        total, weights = counts.sum(-1), special.gammaln(counts + a) - special.gammaln(counts + 1)
        return weights.sum(-1) + special.gammaln(total + 1) - special.gammaln(total + a.sum())

    log_p = polya(states[:, :2], a) + polya(states[:, 2:], b)
    log_p -= ((states[:, :2] - [5, 2]) ** 2).sum(1) / 8
    log_p -= ((states[:, 2:] - [2, 3, 1]) ** 2).sum(1) / 4.5
    point, drawn = model.initial_point(), []
    for _ in range(4_000):
        for _ in range(6):
            point, _ = step.step(point)
        drawn.append([*point["county"], *point["tract"]])
    values_follow(np.array(drawn), states, special.softmax(log_p))


def test_counts_with_a_total_are_not_left_to_metropolis(caplog):
    with pm.Model() as model:
        county = pm.Multinomial("county", 10, [0.5, 0.5])
        pm.Potential("more", -0.5 * (county[0] - 4.0) ** 2)
        release("z", county, dp.GaussianMechanism(1.0), [6.0, 3.0])
    with pytest.raises(NotImplementedError, match=r"'county' is left to Metropolis.*'more'"):
        dp.sample(model, draws=5, tune=5, **SHORT)
    with pm.Model() as model:
        county = pm.Multinomial("county", 1000, [0.5, 0.5])
        tract = pm.Multinomial("tract", county, [0.5, 0.5])
        release("z", tract, dp.GaussianMechanism(1.0), np.full((2, 2), 2.0))
        dp.sample(model, draws=5, tune=5, **SHORT)
    assert "far from all counts with these totals" in caplog.text
