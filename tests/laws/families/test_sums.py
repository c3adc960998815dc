"""Sums over groups of records, against convolutions, quadrature and closed forms."""

from itertools import pairwise

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import integrate, stats

import pymc_dp as dp
from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.values import PLAIN_MODE as PLAIN

LAPLACE, GAUSSIAN, GEOMETRIC = dp.LaplaceMechanism, dp.GaussianMechanism, dp.GeometricMechanism
RNG = np.random.default_rng(20)
SIZES = np.array([1, 4, 7])
G = RNG.permutation(np.repeat(np.arange(3), SIZES))
N = G.size
M = (np.arange(3)[:, None] == G).astype(float)
X = RNG.normal(size=(N, 2)).round(1)
THETA, SIGMA = np.array([0.4, -1.0, 2.0]), 0.7


def density(model, point, to="marginal"):
    """Log density of all releases of a model's rung without records, given its parameters."""
    collapsed = dp.collapse(model, to)
    names = [v.name for v in collapsed.free_RVs]
    assert sorted(names) == sorted(point)
    logps = [pm.logp(r, collapsed.rvs_to_values[r]).sum() for r in collapsed.observed_RVs]
    inputs = [collapsed[name] for name in names]
    return float(pm.compile(inputs, sum(logps), mode=PLAIN)(*(point[n] for n in names)))


def convolved(logpdf, noise, z, lower=-40.0, upper=40.0):
    """Log of the integral of a density times that of noise around a published value."""
    f = lambda s: np.exp(logpdf(s)) * noise.pdf(z - s)  # noqa: E731
    points = sorted({z, *np.clip([z - 1, z + 1, 0], lower, upper)})
    return np.log(
        integrate.quad(f, lower, upper, points=points, epsabs=0, epsrel=1e-11, limit=400)[0]
    )


# Other spellings of the same model: a release, or one for each group.
Z = np.array([0.1, -0.4, 1.5])
ENDS = np.cumsum([0, *SIZES])
COORDS = {"hospital": list("abc"), "patient": range(N)}
SPELLINGS = {
    "segments": lambda t, s: segments(pm.Normal("x", pt.repeat(t, SIZES), s, shape=N)),
    "releases": lambda t, s: masks(pm.Normal("x", t[G], s, shape=N)),
    "variables": lambda t, s: pt.stack(
        [pm.Normal(f"x{j}", t[j], s, shape=int(n)).mean() for j, n in enumerate(SIZES)]
    ),
    "by hand": lambda t, s: pm.Normal("y", t, s / np.sqrt(SIZES)),
    "data": lambda t, s: M @ pm.Normal("x", t[g := pm.Data("g", G)], s, shape=g.shape) / SIZES,
    "dims": lambda t, s: M @ pm.Normal("x", t[G], s, dims="patient") / SIZES,
    "filled": lambda t, s: segments(
        pm.Normal(
            "x",
            pt.concatenate([pt.full((int(n),), t[j]) for j, n in enumerate(SIZES[:2])]
                           + [pt.broadcast_to(t[2], (int(SIZES[2]),))]),
            pt.broadcast_to(s, (N,)), shape=N,
        )
    ),
}  # fmt: skip


def segments(x):
    """Means of records that are in the order of their groups."""
    return pt.stack([x[low:high].mean() for low, high in pairwise(ENDS)])


def masks(x):
    return [x[j == G].mean() for j in range(3)]


@pytest.mark.parametrize("name", SPELLINGS)
@pytest.mark.parametrize("mechanism", [LAPLACE(0.3), GAUSSIAN(0.3)], ids=["laplace", "gaussian"])
def test_every_spelling_has_the_same_density(name, mechanism):
    with pm.Model(coords=COORDS) as model:
        found = SPELLINGS[name](pm.Normal("theta", dims="hospital"), pm.HalfNormal("sigma"))
        if isinstance(found, list):
            for j, mean in enumerate(found):
                dp.PrivateObservation(f"z{j}", mean, mechanism, observed=Z[j])
        else:
            dp.PrivateObservation("z", found, mechanism, observed=Z, dims="hospital")
    noise = stats.laplace(scale=0.3) if isinstance(mechanism, LAPLACE) else stats.norm(scale=0.3)
    expected = sum(
        convolved(stats.norm(THETA[j], SIGMA / np.sqrt(SIZES[j])).logpdf, noise, Z[j])
        for j in range(3)
    )
    found = density(model, {"theta": THETA, "sigma": SIGMA})
    assert found == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize(
    ("statistic", "z"),
    [
        (lambda x: pt.stack([x.mean(), x[0] - x[2]]), np.ones(2)),
        (lambda x: pt.dot(M, x), np.ones(3)),
        (lambda x: pt.stack([x.sum(), x.var()]), np.ones(2)),
        (lambda x: pt.dot(M, x**2), 0.16 * SIZES),
    ],
)
def test_a_negative_spread_is_impossible(statistic, z):
    """Squared in a variance it is lost, and half of the posterior would be another one."""
    with pm.Model() as model:
        x = pm.Normal("x", pm.Normal("mu"), pm.Normal("sigma", 0.4), shape=N)
        dp.PrivateObservation("z", statistic(x), GAUSSIAN(0.3), observed=z)
    for rung in ("marginal", "statistics"):
        try:
            collapsed = dp.collapse(model, rung)
        except Declined:
            continue
        point = collapsed.initial_point()
        possible = collapsed.compile_logp()(point)
        with_negative = collapsed.compile_logp()(point | {"sigma": np.array(-0.4)})
        assert np.isfinite(possible)
        assert not with_negative > -np.inf


COUNTS = np.array([1, 3, -2])


# --- Edges --------------------------------------------------------------------------------------


def test_truth_values_and_whole_numbers_in_parameters():
    b = np.array([0.0, -1.5, 0.5])
    with pm.Model() as model:
        beta = pm.Normal("b", shape=3)
        x = pm.Normal("x", (beta > -1)[G] + (beta > -2)[G], 1, shape=N)
        dp.PrivateObservation("z", pt.dot(M, x), GAUSSIAN(0.3), observed=Z)
    mean = ((b > -1) | (b > -2)).astype(float)  # as PyTensor adds truth values
    expected = stats.norm(SIZES * mean, np.sqrt(SIZES + 0.09)).logpdf(Z).sum()
    assert density(model, {"b": b}) == pytest.approx(expected, rel=1e-11)


@pytest.mark.parametrize("spelling", [lambda b: X @ b, lambda b: (X * b).sum(axis=-1)])
def test_impossible_parameters_of_some_records(spelling):
    with pm.Model() as model:
        x = pm.Poisson("x", 1 + spelling(pm.Normal("b", shape=2)), shape=N)
        dp.PrivateObservation("z", pt.dot(M, x), GEOMETRIC(0.9), observed=[1, 3, -2])
    assert np.isnan(density(model, {"b": np.array([0.0, 2.0])}))
    assert np.isfinite(density(model, {"b": np.array([0.1, -0.2])}))


def test_two_variables_in_two_releases():
    with pm.Model() as model:
        p = pm.Uniform("p")
        a, b = pm.Poisson("a", p, shape=6), pm.Poisson("b", 5 * p, shape=8)
        for name, part in (("r1", slice(0, 3)), ("r2", slice(3, None))):
            observed = [1, 12]
            statistic = [a[part].sum(), b[part].sum()]
            dp.PrivateObservation(name, statistic, GEOMETRIC(0.9), observed=observed)
    names = {v.name for v in dp.collapse(model, "statistics").free_RVs}
    assert names == {"p", *(f"{v}_{r}_sum" for v in "ab" for r in ("r1", "r2"))}
    posterior = az.from_dict({"posterior": {"p": np.full((1, 5), 0.4)}})
    assert names - {"p"} <= set(dp.recover(model, posterior, random_seed=1)["posterior"])


def test_the_groups_parameters_stay_in_the_model():
    """A hierarchy of the same length as what is released is no part of the record."""
    with pm.Model() as model:
        m, tau = pm.Normal("m"), pm.HalfNormal("tau")
        raw = pm.Normal("raw", shape=3)
        theta = pm.Deterministic("theta", m + tau * raw)
        y = pm.Normal("y", theta, 0.5)
        dp.PrivateObservation("z", y, LAPLACE(0.3), observed=Z)
    collapsed = dp.collapse(model)
    assert {"m", "tau", "raw", "theta"} <= set(collapsed.named_vars)
    assert "y" not in collapsed.named_vars
    assert "one of y" in str(dp.explain(model, details=True))


@pytest.mark.parametrize(
    ("law", "name"),
    [
        (lambda t: pm.Bernoulli("x", logit_p=t), "x_count"),
        (lambda t: pm.Normal("x", t, 1.0), "x_sum"),
        (lambda t: pm.Gamma("x", pt.exp(t), 1.0), "x_sum"),
    ],
)
@pytest.mark.parametrize("districts", [3, 4])
def test_sums_by_group_have_the_dims_of_their_release(law, name, districts):
    """And a place for a group of no records, as `dp.recover` has it."""
    group = np.repeat([0, districts - 2, districts - 1], [5, 6, 7])
    with pm.Model(coords={"district": np.arange(districts)}) as model:
        x = law(pm.Normal("theta", dims="district")[group])
        sums = pt.zeros(districts)[group].inc(x)
        noise, z = dp.GaussianMechanism(1.0), np.ones(districts)
        dp.PrivateObservation("z", sums, noise, observed=z, dims="district")
    collapsed = dp.collapse(model, "statistics")
    assert collapsed.named_vars_to_dims[name] == ("district",)
    drawn = pm.draw(collapsed[name], 200, random_seed=1)
    assert drawn.shape == (200, districts)
    assert [*np.flatnonzero(drawn.var(axis=0) == 0)] == [*range(1, districts - 2)]
