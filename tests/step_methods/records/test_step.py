"""`RecordMetropolis` at its edges: few records, extreme noise, impossible releases, chains."""

from copy import deepcopy
from dataclasses import dataclass, replace

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pymc.step_methods.compound import CompoundStep
from pymc.step_methods.state import equal_dataclass_values
from pytensor import scalar as ps
from pytensor.sparse import as_sparse_or_tensor_variable, structured_dot
from scipy import special, stats
from scipy.sparse import csr_matrix

import pymc_dp as dp
from pymc_dp.mechanisms.arguments import as_float
from pymc_dp.mechanisms.base import Mechanism
from pymc_dp.reading.bounds import feasible_point
from pymc_dp.reading.sums import additive
from pymc_dp.step_methods.records import graphs
from pymc_dp.step_methods.records.adaptation import WalkAdaptation
from tests.agreement import counts_follow, follows, has_moments, same_law, values_follow
from tests.chains import SHORT, begun, step_of
from tests.models import RECORD_MODELS


def run(model, draws=2_000, tune=300, seed=1, step=None):
    """Draws of one chain after tuning, by name; nothing in it may change a point that it got."""
    chain = CompoundStep(step or dp.steps(model))
    chain.setup_chain(np.random.default_rng(seed), tune, draws)
    point, points = feasible_point(model), []
    for i in range(tune + draws):
        if i == tune:
            chain.stop_tuning()
        for value in point.values():
            value.setflags(write=False)
        point, _ = chain.step(point)
        points.append(point)
    return {name: np.array([point[name] for point in points[tune:]]) for name in point}


def last(drawn):
    """Return the point at which a chain ended."""
    return {name: values[-1] for name, values in drawn.items()}


def mean_model(n, noise, z, mechanism=dp.GaussianMechanism):
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        x = pm.Normal("x", mu, 1, shape=n)
        observed, scale = pm.Data("observed", z), pm.Data("scale", noise)
        dp.PrivateObservation("z", x.mean(), mechanism(scale), observed=observed)
    return model


# --- Few records, extreme noise -------------------------------------------------------------------


@pytest.mark.by_day("1.0-2")
@pytest.mark.parametrize("n", [1, 2, 30])
@pytest.mark.parametrize("noise", [1e-6, 0.1, 1.0, 1e6])
def test_normal_mean_in_closed_form(n, noise):
    z = 0.7
    mu = run(mean_model(n, noise, z))["mu"]
    share = 1 / (1 + 1 / n + noise**2)
    follows(mu[::4], stats.norm(share * z, np.sqrt(1 - share)), level=1e-4)


GAUSS, LAPLACE = dp.GaussianMechanism, dp.LaplaceMechanism


@pytest.mark.parametrize(
    ("mechanism", "noise"), [(GAUSS, 1e-6), (GAUSS, 1.0), (LAPLACE, 1e-6), (LAPLACE, 1e-2)]
)
@pytest.mark.nightly
def test_release_a_thousand_scales_away(mechanism, noise):
    """Clipped records cannot follow it: all of them end at the clip."""
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        x = pm.Normal("x", mu, 1, shape=5)
        z = 2.0 + 1_000 * noise
        dp.PrivateObservation("z", pt.clip(x, -2, 2).mean(), mechanism(noise), observed=z)
    drawn = run(model, draws=500, tune=500)
    assert np.all(np.isfinite(drawn["mu"]))
    assert np.clip(drawn["x"], -2, 2).mean() > 1.95


@pytest.mark.parametrize("noise", [1e-3, 0.05])
@pytest.mark.nightly
def test_one_clipped_record_by_quadrature(noise):
    """A release that is far outside: p(z | mu) is a one-dimensional integral."""
    z = 1.0 + 50 * noise
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        x = pm.Normal("x", mu, 1, shape=1)
        dp.PrivateObservation("z", pt.clip(x, -1, 1).sum(), dp.LaplaceMechanism(noise), observed=z)
    found = run(model, draws=3_000)["mu"][::3]
    grid, s = np.linspace(-6, 6, 601), np.linspace(-1, 1, 40_001)
    weight = np.exp((s - 1) / noise)  # against the density at the upper clip
    likelihood = stats.norm.sf(1 - grid) + np.exp(-2 / noise) * stats.norm.cdf(-1 - grid)
    likelihood += [np.trapezoid(weight * stats.norm.pdf(s - m), s) for m in grid]
    follows(found, (grid, stats.norm.pdf(grid) * likelihood), level=1e-4)


# --- Releases that are possible for few records, or for none --------------------------------------


@dataclass(frozen=True, eq=False, repr=False, init=False)
class UniformNoise(Mechanism):
    """Noise on [-width, width]: most releases rule most records out."""

    def __init__(self, width):
        object.__setattr__(self, "width", float(width))

    def noise_sample(self, rng, statistic):
        next_rng, u = pt.random.uniform(
            -self.width, self.width, size=statistic.shape, rng=rng, return_next_rng=True
        )
        return next_rng, statistic + u

    def logp(self, value, statistic=0.0):
        near = pt.abs(as_float(value) - as_float(statistic)) <= self.width
        return pt.switch(near, -np.log(2 * self.width), -np.inf)

    def log_interval(self, lower, upper, statistic=0.0):
        raise NotImplementedError


def count_model(z, n=12):
    with pm.Model() as model:
        p = pm.Beta("p", 1, 1)
        x = pm.Bernoulli("x", p, shape=n)
        dp.PrivateObservation("z", x.sum(), UniformNoise(0.5), observed=z)
    return model


@pytest.mark.parametrize("z", [0.2, 6.0, 12.0])
@pytest.mark.nightly
def test_finds_records_that_are_possible(z):
    """At the start, one draw in 4,096 has the count 12. The posterior is Beta(1 + s, 13 - s)."""
    drawn, count = run(count_model(z), draws=4_000), round(z)
    assert np.all(drawn["x"].sum(1) == count)
    p = special.expit(drawn["p_logodds__"])
    follows(p[::4], stats.beta(1 + count, 13 - count), level=1e-4)


@pytest.mark.parametrize("as_published", [True, False], ids=["published", "initval"])
def test_begins_where_the_records_were_published_or_the_user_says(as_published):
    """Forty counts within 1/2 of what was published are not met by chance."""
    z = np.random.default_rng(1).poisson(9, 40)
    with pm.Model() as model:
        x = pm.Poisson("x", pm.Gamma("rate", 9, 1), shape=40, initval=None if as_published else z)
        statistic = x if as_published else x + np.zeros(40)
        dp.PrivateObservation("z", statistic, UniformNoise(0.5), observed=z + 0.2)
    assert np.all(run(model, draws=2, tune=1)["x"] == z)


@pytest.mark.parametrize("z", [-0.7, 13.0])
def test_impossible_release_is_named(z):
    with pytest.raises(ValueError, match=r"'x' cannot be drawn: .* density of 'z' was -inf"):
        run(count_model(z), draws=1)


@pytest.mark.nightly
def test_finds_records_within_bounds():
    """Records that start far too wide for the bounds of the release."""
    with pm.Model() as model:
        mu, sd = pm.Normal("mu", 0.5, 1), pm.HalfNormal("sd", 5)
        x = pm.Normal("x", mu, sd, shape=40)
        dp.PrivateObservation(
            "z", [x.mean(), x.var(ddof=1)], dp.LaplaceMechanism(0.01), observed=[0.9, 0.05],
            bounds=(0, 1),
        )  # fmt: skip
        step = [dp.RecordMetropolis([x])]
    records = run(model, draws=300, step=step)["x"]
    mean, variance = records.mean(1), records.var(1)
    assert np.all(variance <= mean * (1 - mean) + 1e-12)


# --- Records with point masses --------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:No safe default transform")
@pytest.mark.nightly
def test_zeros_of_a_hurdle_are_drawn():
    """Of four records, by their 16 patterns of zeros: the others are Gamma(2, 1)."""
    z, noise = 1.5, 0.5
    with pm.Model() as model:
        x = pm.HurdleGamma("x", 0.6, 2.0, 1.0, shape=4)
        dp.PrivateObservation("z", x.sum(), dp.LaplaceMechanism(noise), observed=z)
        step = [dp.RecordMetropolis([x])]
    number = (run(model, draws=4_000, step=step)["x"][::2] > 0).sum(1)
    grid = np.linspace(0, 30, 30_001)
    given = np.exp(-np.abs(z - grid) / noise)
    density = [np.trapezoid(stats.gamma(2 * k).pdf(grid) * given, grid) for k in range(1, 5)]
    exact = stats.binom(4, 0.6).pmf(np.arange(5)) * [np.exp(-z / noise), *density]
    counts_follow(np.bincount(number, minlength=5), exact, level=1e-4)


@pytest.mark.filterwarnings("ignore:No safe default transform")
@pytest.mark.parametrize("law", ["Normal", "Gamma"])
def test_point_masses_within_a_density_are_refused(law):
    """PyMC would add a probability to a density; not at 0 of a Gamma, whose density is zero."""
    other = pm.Normal.dist(0, 1) if law == "Normal" else pm.Gamma.dist(2, 1)
    with pm.Model():
        w = pm.Beta("w", 1, 1)
        x = pm.Mixture("x", pt.stack([w, 1 - w]), [pm.DiracDelta.dist(0.0), other], shape=6)
        dp.PrivateObservation("z", x.mean(), dp.LaplaceMechanism(0.2), observed=0.5)
        if law == "Gamma":
            assert not dp.RecordMetropolis([x]).engines[0].fixed
            return
        with pytest.raises(ValueError, match=r"cannot update 'x': PyMC adds .* DiracDelta"):
            dp.RecordMetropolis([x])


# --- Sums by a public design ----------------------------------------------------------------------

CELL = np.array([0, 1, 2, 0, 1, 2])
ROWS = np.array([[1.0, 0.5], [-1.0, 2.0], [0.3, 0.0], [2.0, 1.0], [1.0, -0.5], [0.0, 1.0]])
MEMBERS = (np.arange(3)[:, None] == CELL).astype(float)
SPARSE = as_sparse_or_tensor_variable(csr_matrix(MEMBERS))
BY_DESIGN = {
    "design": (lambda y: pt.dot(ROWS.T, y), ROWS.T),
    "incidence": (lambda y: pt.dot(MEMBERS, y), MEMBERS),
    "sparse": (lambda y: structured_dot(SPARSE, y[:, None])[:, 0], MEMBERS),
    "index": (lambda y: pt.inc_subtensor(pt.zeros(3)[CELL], y), MEMBERS),
    "two indices": (lambda y: pt.zeros((3, 1))[CELL, 0].inc(2 * y).ravel(), 2 * MEMBERS),
    "index of an axis": (lambda y: pt.zeros((1, 3))[:, CELL].inc(y)[0], MEMBERS),
    "stack": (lambda y: pt.stack([y[j == CELL].sum() for j in range(3)]), MEMBERS),
    "one by one": (
        lambda y: sum(pt.zeros(3)[j].inc(y[j == CELL].sum()) for j in range(3)),
        MEMBERS,
    ),
    "columns of a table": (lambda y: y.reshape((2, 3)).sum(axis=0), MEMBERS),
}


@pytest.mark.parametrize(("statistic", "weights"), BY_DESIGN.values(), ids=BY_DESIGN)
@pytest.mark.by_day("columns of a table")
def test_records_given_sums_by_a_design(statistic, weights, caplog):
    """By all 64 patterns of truth values; a proposal takes no pass over the records."""
    chance, noise = np.array([0.2, 0.5, 0.7, 0.4, 0.6, 0.3]), 0.7
    z = weights @ np.array([1, 0, 1, 1, 0, 0])
    with pm.Model() as model:
        y = pm.Bernoulli("y", chance, shape=6)
        dp.PrivateObservation("z", statistic(y), dp.LaplaceMechanism(noise), observed=z)
        step = dp.RecordMetropolis([y])
    [engine] = step.engines
    assert not engine.in_full
    assert "afresh" not in caplog.text
    patterns = np.array([*np.ndindex(*[2] * 6)])
    prior = np.where(patterns, chance, 1 - chance).prod(axis=1)
    given = np.exp(-abs(z - patterns @ weights.T).sum(axis=1) / noise)
    values_follow(run(model, tune=10, step=[step])["y"], patterns, prior * given, level=1e-4)


# --- Records that the point cannot hold -----------------------------------------------------------


@pytest.mark.parametrize("transform", ["ordered", "chained", "user's"])
def test_transforms_that_tie_records_together_are_refused(transform):
    class Reversed(pm.distributions.transforms.Transform):
        name = "reversed"

        def forward(self, value, *inputs):
            return value[::-1]

        def backward(self, value, *inputs):
            return value[::-1]

        def log_jac_det(self, value, *inputs):
            return pt.zeros(())

    ordered = pm.distributions.transforms.ordered
    chained = pm.distributions.transforms.Chain([pm.distributions.transforms.log, ordered])
    transform = {"ordered": ordered, "chained": chained, "user's": Reversed()}[transform]
    with pm.Model():
        x = pm.Normal("x", 0, 1, shape=3, transform=transform)
        dp.PrivateObservation("z", x.mean(), dp.LaplaceMechanism(1.0), observed=0.3)
        with pytest.raises(
            ValueError, match=r"update 'x': its transform \w+ ties .* transform= out"
        ):
            dp.RecordMetropolis([x])


@pytest.mark.parametrize(("lowest", "number"), [(0.05, 1), (1.0, 0)])
@pytest.mark.nightly
def test_mass_that_the_point_cannot_hold_is_reported_once(lowest, number, caplog):
    with pm.Model() as model:
        a = pm.Uniform("a", lowest, lowest + 0.45)
        x = pm.Beta("x", a, a, shape=1_000)
        dp.PrivateObservation("z", x.mean(), dp.LaplaceMechanism(5.0), observed=0.5)
        step = [dp.RecordMetropolis([x]), pm.Slice([a])]
    run(model, draws=300, tune=50, step=step)
    assert caplog.text.count("draws of 'x' were so close to an end") == number


# --- Rows whose law has no such parameters --------------------------------------------------------


@pytest.mark.parametrize("statistic", ["mean", "columns", "max"])
@pytest.mark.nightly
def test_rows_without_a_law_are_refused_one_by_one(statistic, caplog):
    """The scale of `y` is `x`, of which a third of the proposals is negative."""
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        x = pm.Normal("x", 0.5, 1, shape=100)
        if statistic == "columns":
            y = pm.Normal("y", mu, x[:, None] + [0.0, 0.1], shape=(100, 2))
        else:
            y = pm.Normal("y", mu, x, shape=100)
        s = [getattr(pt.tanh(v), "max" if statistic == "max" else "mean")() for v in (x, y)]
        dp.PrivateObservation("z", s, dp.LaplaceMechanism(1e3), observed=[0.5, 0.5])
        step = dp.RecordMetropolis([x, y])
    [engine] = step.engines
    assert bool(engine.in_full) == (statistic == "max")
    assert "numerical check" not in caplog.text
    drawn = run(model, draws=60, tune=10, step=[step])
    found = drawn["x"]
    assert np.all(found > 0)
    follows(found[::4], stats.truncnorm(-0.5, np.inf, loc=0.5))
    assert np.std(drawn["mu"]) > 0.01  # moves, which take along all of the rows
    _, [statistics] = step.step(last(drawn))
    share = stats.norm.sf(-0.5)
    assert statistics["dp_record_accept"] == pytest.approx(share, abs=0.06)


# --- Data that are no release ---------------------------------------------------------------------


# --- Points and chains ----------------------------------------------------------------------------


def test_the_state_is_all_there_is():
    """A step goes on from another's state and point as that one did, in the midst of tuning."""
    model = RECORD_MODELS["i_clamped_normal_mean_laplace"]()
    with model:
        one, other = (dp.RecordMetropolis([model["x"]]) for _ in range(2))
    for step in (one, other):
        step.setup_chain(np.random.default_rng(1), 100, 100)
    point = feasible_point(model)
    for _ in range(30):
        point, _ = one.step(point)
    state = one.sampling_state
    kept = deepcopy(state)

    def go_on(step):
        here, found = point, []
        for _ in range(90):
            here, [statistics] = step.step(here)
            found.append((here["mu"], here["x"].sum(), *statistics.values()))
        return np.array(found)

    expected = go_on(one)
    assert equal_dataclass_values(state, kept)
    other.sampling_state = state
    np.testing.assert_array_equal(go_on(other), expected)


def first_points(model):
    step = step_of(dp.RecordMetropolis, model, "x", interweave=False)
    for seed in (1, 2):
        yield begun(step, seed).step(model.initial_point())[0]


@pytest.mark.nightly
def test_every_chain_starts_afresh():
    with pm.Model() as model:
        mu, sigma = pm.Normal("mu", 30, 20), pm.HalfNormal("sigma", 20)
        x = pm.Normal("x", mu, sigma, shape=43)
        noise = dp.LaplaceMechanism([9.3, 900.0])
        dp.PrivateObservation("z", [x.mean(), x.var(ddof=1)], noise, observed=[34.3, 2224.8])
    step = step_of(dp.RecordMetropolis, model, "x", interweave=False)
    start = model.initial_point()
    collapsed = {**start, "sigma_log__": np.array(-8.0), "x": np.full(43, 30.0)}
    for seed in (1, 2):
        point, _ = begun(step, seed).step(collapsed)
        assert point["sigma_log__"] == start["sigma_log__"]
        assert point["x"].std() > 5
        again, _ = step.step({**point, "sigma_log__": np.array(2.0)})
        assert again["sigma_log__"] == 2.0  # only in the first call
    first_of_the_list = step_of(dp.RecordMetropolis, model, "x", interweave=False, restart=False)
    point, _ = first_of_the_list.step({**collapsed, "sigma_log__": np.array(2.5)})
    assert point["sigma_log__"] == 2.5


@pytest.mark.parametrize("initval", ["prior", "support_point"])
@pytest.mark.nightly
def test_chains_start_where_the_initial_values_allow(initval):
    with pm.Model() as model:
        mu, sd = pm.Normal("mu", 3, 1, initval=initval), pm.HalfNormal("sd", 1)
        x = pm.Normal("x", mu, sd, shape=10)
        dp.PrivateObservation("z", x.mean(), dp.LaplaceMechanism(1.0), observed=3.0)
    one, two = first_points(model)
    again, _ = first_points(model)
    assert (one["mu"] == two["mu"]) == (initval != "prior")
    assert one["mu"] == again["mu"]
    assert one["sd_log__"] == two["sd_log__"] == model.initial_point()["sd_log__"]
    assert not np.array_equal(one["x"], two["x"])


@pytest.fixture
def misread(monkeypatch):
    """Read a density that is one too large."""

    def wrong(density, records):
        reading = additive(density, records)
        return replace(reading, entries=np.array(ps.add(reading.outer, ps.constant(1.0))))

    monkeypatch.setattr(graphs, "additive", wrong)


@pytest.mark.usefixtures("misread")
def test_what_was_read_of_the_releases_is_checked_where_they_are_possible():
    """At the start the release is impossible, and any reading that knows this agrees there."""
    with pm.Model():
        mu = pm.Normal("mu", 0, 0.1)
        x = pm.Normal("x", mu, 0.1, shape=4)
        dp.PrivateObservation("z", x.mean(), UniformNoise(0.2), observed=1.0)
        step = dp.RecordMetropolis([x])
    assert "numerical check" in step.engines[0].in_full


@pytest.mark.usefixtures("misread")
def test_what_was_read_is_gone_where_the_check_failed():
    """Its sums may be infinite, of which nothing is to be seen in the density."""
    with pm.Model() as model:
        x = pm.Normal("x", 0, 1, shape=4)
        s = pt.clip(pt.exp(1_000 * x).sum(), 0, 1)
        dp.PrivateObservation("z", s, dp.LaplaceMechanism(1.0), observed=0.5)
        step = dp.RecordMetropolis([x])
    assert "numerical check" in step.engines[0].in_full
    assert np.std(run(model, draws=20, tune=5, step=[step])["x"]) > 0.1


def test_records_are_not_part_of_the_result():
    n, draws = 3_000, 60
    model = mean_model(n, 0.5, 0.7)
    tree = dp.sample(model, rung="records", draws=draws, tune=20, random_seed=1, **SHORT)
    assert set(tree.posterior.data_vars) == {"mu"}
    assert sum(node.to_dataset().nbytes for node in tree.subtree) < draws * n


# --- Moves of the parameters ----------------------------------------------------------------------


def in_domain_models():
    with pm.Model() as ends:
        low, high = pm.Normal("low", -1), pm.Normal("high", 1)
        x = pm.Uniform("x", low, high, shape=20, default_transform=None)
        dp.PrivateObservation("z", x.mean(), dp.LaplaceMechanism(1.0), observed=0.2)
    with pm.Model() as scale:
        x = pm.Normal("x", 0, pm.Normal("a", 1, 1), shape=20)
        dp.PrivateObservation("z", x.var(), dp.LaplaceMechanism(1.0), observed=0.5)
    with pm.Model() as prior:
        mu = pm.Normal("mu", 0, pm.Normal("a", 1, 1))
        x = pm.Normal("x", mu, 1, shape=10)
        dp.PrivateObservation("z", x.mean(), dp.LaplaceMechanism(1.0), observed=0.5)
    return {"ends": ends, "scale": scale, "prior": prior}


@pytest.mark.parametrize("name", ["ends", "scale", "prior"])
@pytest.mark.nightly
def test_moves_stay_where_the_model_has_a_density(name):
    model = in_domain_models()[name]
    with model:
        step = dp.RecordMetropolis([model["x"]])
    step.setup_chain(np.random.default_rng(1), tune=300, draws=0)
    log_density = model.compile_logp()
    point = model.initial_point()
    for _ in range(300):
        point, _ = step.step(point)
        assert np.isfinite(log_density(point))


@pytest.mark.nightly
def test_moves_see_what_depends_on_a_parameter_through_a_component():
    """Normal prior, an observed mixture with mu in one of its components, hardly any release."""
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        x = pm.Normal("x", mu, 1, shape=4)
        parts = [pm.Normal.dist(mu, 0.5), pm.Normal.dist(mu, 1.0)]
        pm.Mixture("y", [0.5, 0.5], parts, observed=2.0)
        dp.PrivateObservation("z", x.mean(), dp.GaussianMechanism(1e3), observed=0.0)
    grid = np.linspace(-4, 6, 2001)
    weight = stats.norm.pdf(grid) * (stats.norm.pdf(2, grid, 0.5) + stats.norm.pdf(2, grid, 1))
    found = run(model, draws=3_000, step=[dp.RecordMetropolis([x], model=model)])["mu"]
    has_moments(found, np.average(grid, weights=weight), least=500)


@pytest.mark.nightly
def test_variables_whose_support_depends_on_a_moved_parameter_move_along():
    with pm.Model() as model:
        top = pm.Gamma("top", 8, 2)
        x = pm.Uniform("x", 0, top, shape=1)
        dp.PrivateObservation("z", x.sum(), dp.LaplaceMechanism(1.0), observed=2.0)
        w = pm.Uniform("w", 0, top)
        pm.Normal("seen", w, 1.0, observed=4.0)
        idata = pm.sample(6000, tune=500, step=dp.steps(model), random_seed=1, **SHORT)
    rng = np.random.default_rng(0)
    tops = rng.gamma(8, 0.5, 1_000_000)
    xs, ws = tops * rng.random(tops.size), tops * rng.random(tops.size)
    weights = np.exp(-np.abs(2 - xs) - 0.5 * (4 - ws) ** 2)
    exact = np.average(tops, weights=weights)
    has_moments(idata["posterior"]["top"], exact, mean_se=0.00125, least=200)


@pytest.mark.nightly
def test_parameters_that_depend_on_records_are_left_to_another_step():
    """Here `s` is computed from `x` and is the scale of `y`: the release says nothing of it."""
    with pm.Model() as model:
        x = pm.Normal("x", 0, 1, shape=3)
        s = pm.HalfNormal("s", pt.exp(x.mean()))
        y = pm.Normal("y", x, s, shape=3)
        dp.PrivateObservation(
            "z", [pt.tanh(x).sum(), pt.tanh(y).sum()], dp.LaplaceMechanism(1e3), observed=[0.1, 0.3]
        )
        step = [dp.RecordMetropolis([x, y]), pm.Slice([s])]
    drawn = np.exp(run(model, draws=2_000, step=step)["s_log__"])[::4]
    rng = np.random.default_rng(2)
    exact = np.abs(rng.standard_normal(4_000)) * np.exp(rng.normal(0, 3**-0.5, 4_000))
    same_law(drawn, exact)


def test_many_parameters_take_no_square_of_memory():
    walk, rng = WalkAdaptation(20_000), np.random.default_rng(1)
    assert walk.axes.size == 0
    for _ in range(60):
        tried = np.zeros(20_000)
        tried[: walk.moves] = 1
        walk.update(rng.standard_normal(20_000), tried, np.zeros(20_000))
    assert walk.moves <= 12
    assert walk.scales[0] < 0.1
    assert walk.scales[-1] == 0.5
    assert not walk.draws


@pytest.mark.nightly
def test_many_parameters_move_along_their_coordinates():
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=120)
        x = pm.Normal("x", np.random.default_rng(1).standard_normal((20, 120)) @ beta, 1, shape=20)
        dp.PrivateObservation("z", x.mean(), dp.LaplaceMechanism(0.1), observed=0.5)
        step = dp.RecordMetropolis([x])
    assert step.walks[0].axes.shape == (120, 0)
    drawn = run(model, draws=20, tune=10, step=[step])["beta"]
    assert np.all(drawn.std(axis=0) > 0)


@pytest.mark.parametrize("name", ["i_clamped_normal_mean_laplace", "iv_regression_n20_laplace"])
@pytest.mark.by_day("i_clamped_normal_mean_laplace")
def test_sums_give_the_density_of_the_records_after_many_sweeps(name):
    """Records and centres as the chain left them, against the model's own density."""
    model = RECORD_MODELS[name]()
    chain = dp.steps(model)
    point = last(run(model, draws=1_500, tune=300, step=chain))
    [engine] = chain[0].engines
    theta, env = engine.theta(point), engine.env(point)
    x = engine.records(point)
    engine.check(x, theta, env)
    expected = model.compile_logp(vars=engine.block.factors)(point)
    assert engine.log_density(x, theta, env) == pytest.approx(float(expected), rel=1e-9)
    again, same, accepted, lowest, *_ = engine.sweep(
        np.random.default_rng(1), x, theta, env, np.eye(theta.size), np.zeros(theta.size), 0, 0, 0
    )
    assert accepted == lowest == 0
    for before, after in zip(x, again, strict=True):
        np.testing.assert_array_equal(before, after)
    np.testing.assert_array_equal(theta, same)


@pytest.mark.nightly
def test_sums_keep_their_digits_after_a_wild_start():
    with pm.Model() as model:
        x = pm.LogNormal("x", 0, pm.HalfNormal("s", 40), shape=200)
        dp.PrivateObservation("z", x.mean(), dp.LaplaceMechanism(5.0), observed=3.0)
        step = dp.RecordMetropolis([x])
    step.setup_chain(np.random.default_rng(1), tune=500, draws=0)
    point = model.initial_point()
    means = []
    for _ in range(500):
        point, _ = step.step(point)
        means.append(np.exp(point["x_log__"]).mean())
    assert max(means[200:]) < 100
