"""Sums are found in their bulk, or declined with the reason."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import stats

import pymc_dp as dp
from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.values import PLAIN_MODE as PLAIN
from pymc_dp.laws.parts import Part
from pymc_dp.plugins.inversion import trial
from pymc_dp.plugins.inversion.quadrature import log_density_of_sum
from pymc_dp.plugins.inversion.summand import Summand

LAWS = {
    "exponential": lambda n: pm.Exponential("x", pm.Gamma("theta", 4, 4), shape=n),
    "lognormal": lambda n: pm.LogNormal("x", pm.Normal("theta"), 1.0, shape=n),
}
GAUSSIAN, LAPLACE = dp.GaussianMechanism(1.0), dp.LaplaceMechanism(1.0)


def clipped(x):
    return pt.clip(x, 0, 2)


@pytest.mark.parametrize(
    ("law", "n", "statistic", "noise", "match"),
    [
        ("exponential", 2, lambda x: clipped(x).sum(0), GAUSSIAN, None),
        ("exponential", 2, lambda x: clipped(x).sum(0), LAPLACE, "narrow noise"),
        ("exponential", 5, lambda x: clipped(x).sum(0), LAPLACE, None),
        ("exponential", 2, lambda x: (x > 1).sum(0), LAPLACE, None),
        ("exponential", 3, lambda x: (x**2).sum(), GAUSSIAN, "few records without bounds"),
        ("lognormal", 50, lambda x: x.sum(), GAUSSIAN, "heavy tails without bounds"),
        ("exponential", 1, lambda x: x.sum(0), GAUSSIAN, None),
    ],
)
def test_found_in_the_bulk_or_declined(law, n, statistic, noise, match):
    with pm.Model() as model:
        released = statistic(LAWS[law](n))
        dp.PrivateObservation("z", released, noise, observed=1.0)
    if match:
        with pytest.raises(Declined, match=match):
            dp.collapse(model, "marginal")
        return
    on = dp.collapse(model, "marginal")
    value, theta = pt.dscalar(), on["theta"]
    log = pm.logp(on["z"], value).sum()
    density, slope = (pm.compile([value, theta], g, mode=PLAIN) for g in (log, pt.grad(log, theta)))
    rate, step = 0.7, 1e-4
    records = np.random.default_rng(1).exponential(1 / rate, (100_000, n))
    sums = pm.compile([], statistic(pt.constant(records.T)), mode=PLAIN)()
    kind = stats.norm if noise is GAUSSIAN else stats.laplace
    for z in np.quantile(sums + kind.rvs(size=len(sums), random_state=2), (0.01, 0.2, 0.5, 0.99)):
        expected = np.log(kind.pdf(z - sums).mean())
        assert density(z, rate) == pytest.approx(expected, abs=0.05)
    moved = density(z, rate + step) - density(z, rate - step)
    assert slope(z, rate) == pytest.approx(moved / (2 * step), rel=1e-4, abs=1e-4)


def heavy_tails():
    with pm.Model() as model:
        dp.PrivateObservation("z", LAWS["lognormal"](50).sum(), GAUSSIAN, observed=80.0)
    return model


def test_explain_computes_no_density(monkeypatch):
    for name in ("sparing_line", "tiers"):  # which compile
        monkeypatch.setattr(trial, name, None)
    [routes] = [
        rows
        for title, _, rows in dp.explain(heavy_tails(), details=True).tables
        if title == "Routes"
    ]
    assert "NUTS on the marginal" in [name for _, name, state, _ in routes if "open" in state]


def test_what_is_not_found_sends_on_to_the_next_route(caplog):
    short = {"draws": 5, "tune": 5, "chains": 1, "progressbar": False, "random_seed": 1}
    with caplog.at_level("INFO", logger="pymc.dp"):
        dp.sample(heavy_tails(), **short)
    said = [m for m in caplog.messages if "heavy tails without bounds" in m]
    assert said
    assert all(m.startswith("Not taken: ") and "marginal" in m for m in said)
    assert [m for m in caplog.messages if m.startswith("Route: ")][-1].endswith("(rung: records)")
    with pytest.raises(ValueError, match="heavy tails without bounds"):
        dp.sample(heavy_tails(), rung="marginal", **short)


def selected():
    with pm.Model() as model:
        b = pm.Bernoulli("b", pm.Beta("p", 2, 2), shape=50)
        released = (b * LAWS["lognormal"](50)).sum()
        dp.PrivateObservation("z", released, GAUSSIAN, observed=30.0)
    return model


def of_groups_without_parameters():
    groups = np.repeat(np.arange(3), 60)
    with pm.Model() as model:
        x = pm.Gamma("x", pm.Normal("theta", shape=3)[groups], 1.0, shape=180)
        released = pt.dot(np.eye(3)[:, groups], x.clip(0, 5))
        dp.PrivateObservation("z", released, GAUSSIAN, observed=[30.0, 40.0, 50.0])
    return model


@pytest.mark.parametrize(
    ("build", "match"), [(selected, "heavy tails"), (of_groups_without_parameters, "alpha > 0")]
)
def test_every_way_to_integrate_is_tried(build, match):
    with pytest.raises(Declined, match=match):
        dp.collapse(build())
    with pytest.raises(ValueError, match=f"(?s)no route on the rung 'marginal'.*{match}"):
        dp.sample(build(), rung="marginal", draws=5, tune=5, chains=1, progressbar=False)


@pytest.mark.parametrize("z", [0.2, 1.0, 2.0, 4.677, 10.0])
@pytest.mark.parametrize("b", [0.54, 5.4, 54.1])
def test_no_wrong_value_where_the_panels_are_wider_than_the_noise(z, b):
    """Of one squared log-normal value, whose law is cut at a billion."""
    record, given = pt.dvector("record"), [pt.constant(v) for v in (z, b, 0.0)]
    summand = Summand(record, record**2)
    given = [0.0, pt.zeros(1), *(v[None] for v in given)]
    density = log_density_of_sum([Part(pm.LogNormal.dist(0.0, 1.0))], 1.0, 1, summand, *given)
    with np.errstate(all="ignore"):
        found = pm.compile([], density, mode=PLAIN)()
    x = np.exp(2 * stats.norm.ppf((np.arange(200_000) + 0.5) / 200_000))
    expected = np.log(stats.laplace.pdf(z - x, scale=b).mean())
    assert np.isnan(found) or found == pytest.approx(expected, abs=1e-3)
