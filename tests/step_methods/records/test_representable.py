"""No record comes to lie on the end of its support or beyond, whatever rounding does."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_dp as dp
from pymc_dp.reading.bounds import feasible_point
from pymc_dp.reading.groups import blocks
from pymc_dp.reading.model import Reading
from pymc_dp.step_methods.records.engine import Engine


def truncated_exponential(rate, upper=2.0, **kwargs):
    return pm.Truncated("x", pm.Exponential.dist(rate), upper=upper, **kwargs)


# A law of records by one parameter, values of it far apart, and the ends of the support.
LAWS = {
    "truncated exponential": (truncated_exponential, [1e-9, 1.0, 20.0, 1e4], (0, 2)),
    "exponential beyond 300": (
        lambda r, **kw: pm.Truncated("x", pm.Exponential.dist(r), lower=300.0, **kw),
        [1e-3, 1.0, 5.0], (300, np.inf),
    ),
    "truncated Laplace": (
        lambda b, **kw: pm.Truncated("x", pm.Laplace.dist(0, b), lower=1.0, upper=2.0, **kw),
        [1e-2, 1.0, 1e6], (1, 2),
    ),
    "truncated normal": (
        lambda m, **kw: pm.Truncated("x", pm.Normal.dist(m, 0.1), lower=0.0, upper=1.0, **kw),
        [1e-3, 0.5, 1.0, 6.0], (0, 1),
    ),
    "truncated Gumbel": (
        lambda b, **kw: pm.Truncated("x", pm.Gumbel.dist(0, b), lower=-1.0, upper=2.0, **kw),
        [0.02, 1.0, 50.0], (-1, 2),
    ),
    "uniform": (lambda t, **kw: pm.Uniform("x", 0, t, **kw), [1e-9, 1.0, 1e9], None),
    "uniform, far off": (
        lambda t, **kw: pm.Uniform("x", 1e9, 1e9 + t, **kw), [1e-5, 1.0, 1e3], None
    ),
    "uniform, no transform": (
        lambda t, **kw: pm.Uniform("x", 0, t, default_transform=None, **kw), [1e-9, 1.0, 1e9], None,
    ),
    "beta": (lambda a, **kw: pm.Beta("x", a, 0.02, **kw), [0.02, 1.0, 30.0], (0, 1)),
    "gamma": (lambda a, **kw: pm.Gamma("x", a, 1.0, **kw), [0.02, 1.0, 1e3], (0, np.inf)),
    "log-normal": (
        lambda s, **kw: pm.LogNormal("x", 0, s, **kw), [1e-3, 1.0, 400.0], (0, np.inf)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.nightly
def test_sweeps_and_moves_keep_the_records_inside(name):
    """The released statistic tells little, and the parameter jumps: anything goes but the ends."""
    law, values, ends = LAWS[name]
    with pm.Model() as model:
        t = pm.Gamma("t", 0.3, 0.01)
        x = law(t, shape=40)
        dp.PrivateObservation("z", pt.clip(x, 0, 2).mean(), dp.LaplaceMechanism(3.0), observed=1.0)
    point = feasible_point(model)
    engine = Engine(model, blocks(Reading(model), (x,))[0], point)
    assert not engine.fixed
    rng, axes, scales = np.random.default_rng(1), np.ones((1, 1)), np.array([4.0])
    for value in np.repeat(values, 40):
        point = {**point, "t_log__": np.log(value)}
        theta, env = engine.theta(point), engine.env(point)
        records = engine.draw(rng, theta, env)
        # Not only from where they are likely.
        for _ in range(20):
            records, theta, _, low, *_ = engine.sweep(
                rng, records, theta, engine.env(point), axes, scales, 1, 6, 0
            )
            assert not np.isnan(low)
            low_end, high_end = (0, np.inf) if ends is None else ends
            if name.startswith("uniform"):
                base = 1e9 if "far" in name else 0.0
                low_end, high_end = base, base + np.exp(theta[0])
            assert np.all((records[0] > low_end) & (records[0] < high_end))
            point = engine.update(point, records, theta)
            assert np.all(np.isfinite(point[engine.names[0]]))
            records = engine.records(point)
            np.testing.assert_allclose(records[0], engine.records(point)[0], rtol=1e-9)


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.nightly
def test_moves_of_no_length_are_accepted(name):
    """All that they compare is the same: nothing of the model is drawn instead of read."""
    law, values, _ = LAWS[name]
    with pm.Model() as model:
        x = law(pm.Gamma("t", 0.3, 0.01), shape=40)
        dp.PrivateObservation("z", pt.clip(x, 0, 2).sum(), dp.LaplaceMechanism(1e-3), observed=9.0)
    point = feasible_point(model) | {"t_log__": np.log(values[1])}
    engine = Engine(model, blocks(Reading(model), (x,))[0], point)
    theta, rng = engine.theta(point), np.random.default_rng(2)
    x = engine.draw(rng, theta, engine.env(point))
    _, there, _, _, tried, moved, _ = engine.sweep(
        rng, x, theta, engine.env(point), np.ones((1, 1)), np.zeros(1), 3, 50, 0
    )
    assert tried == moved == 150
    assert there == theta


def test_a_record_that_comes_back_on_the_end_is_moved_off_it():
    with pm.Model() as model:
        top = pm.Gamma("top", 2, 1)
        x = pm.Uniform("x", 0, top, shape=3)
        dp.PrivateObservation("z", x.sum(), dp.LaplaceMechanism(3.0), observed=1.0)
    point = feasible_point(model)
    engine = Engine(model, blocks(Reading(model), (x,))[0], point)
    point = {**point, "x_interval__": np.array([60.0, -800.0, 0.0])}
    records = engine.records(point)
    top = np.exp(point["top_log__"])
    assert np.all((records[0] > 0) & (records[0] < top))
    np.testing.assert_allclose(records[0], [top, 0, top / 2], rtol=1e-12, atol=1e-300)
    values = engine.update(point, records, engine.theta(point))["x_interval__"]
    assert np.all(np.isfinite(values))


@pytest.mark.parametrize("statistic", ["clipped mean", "median"])
@pytest.mark.nightly
def test_records_that_overflow_are_not_taken(statistic):
    """Their statistic is fine, and their logarithm is not."""
    with pm.Model() as model:
        x = pm.LogNormal("x", 700, 30, shape=9)
        s = pt.clip(x, 0, 1).mean() if statistic == "clipped mean" else pt.sort(pt.clip(x, 0, 1))[4]
        dp.PrivateObservation("z", s, dp.LaplaceMechanism(1.0), observed=0.5)
    point = feasible_point(model)
    engine = Engine(model, blocks(Reading(model), (x,))[0], point)
    assert bool(engine.in_full) == (statistic == "median")
    rng, theta = np.random.default_rng(1), engine.theta(point)
    records = engine.draw(rng, theta, engine.env(point))
    for _ in range(30):
        records, *_ = engine.sweep(
            rng, records, theta, engine.env(point), np.zeros((0, 0)), np.zeros(0), 1, 0, 0
        )
        assert np.all(np.isfinite(records[0]))
