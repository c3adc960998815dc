import logging
from functools import cache

import arviz_stats
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pymc.blocking import DictToArrayBijection, RaveledVars

import pymc_dp as dp
from pymc_dp.ladder.collapse import collapsed
from pymc_dp.reading.frozen import read
from pymc_dp.routes.coordinates import standardised

J, G = 4, np.array([0, 0, 1, 2, 2, 2, 3])
MEANS = (np.arange(J)[:, None] == G) / np.bincount(G)[:, None]
Z = np.array([1.0, -0.4, 2.2, 5.0])


def _hierarchy(form, noise, spread=1.5):
    """Group means of Normal records, whose own means are latent."""
    with pm.Model() as model:
        m0, tau = pm.Normal("m0", 0, 3), pm.HalfNormal("tau", 2)
        s = pm.HalfNormal("s", 2) if spread is None else spread
        theta = form(m0, tau)
        x = pm.Normal("x", theta[G], s, shape=G.size)
        dp.PrivateObservation("z", pt.as_tensor(MEANS) @ x, noise, observed=Z)
    return model


def centred(m0, tau):
    return pm.Normal("theta", m0, tau, shape=J)


def scaled(m0, tau):
    return m0 + tau * pm.Normal("raw", shape=J)


def scaled_otherwise(m0, tau):
    return pm.Deterministic("theta", (pm.Normal("raw", 1.0, 2.0, shape=J) - 0.5) * tau / 3.0 - m0)


def scaled_behind_an_index(m0, tau):
    return m0 - tau * pm.Normal("raw", shape=J)[np.array([1, 0, 3, 2])]


def nested(m0, tau):
    regions = pm.Normal("region", m0, pm.HalfNormal("tau_region", 1), shape=2)
    return pm.Normal("theta", regions[np.array([0, 1, 1, 0])], tau, shape=J)


def of_data(m0, tau):
    """A scale that is data, and frozen, since it decides the length of what is released."""
    scale = pm.Data("scale", np.full(J, 2.0))
    theta = nested(m0, tau)
    pm.modelcontext(None).add_coord("group", range(J))
    y = pm.Normal("y", theta, 1.0, dims="group")
    dp.PrivateObservation("z_y", y, dp.GaussianMechanism(scale), observed=Z)
    return theta


def walk(m0, tau):
    return pm.GaussianRandomWalk("w", mu=0.1, sigma=tau, init_dist=pm.Normal.dist(m0, 2.0), shape=J)


def running(m0, tau):
    return pm.Deterministic("theta", m0 + tau * pt.cumsum(pm.Normal("raw", 0.3, 2.0, shape=J)))


def running_from_a_start(m0, tau):
    raw = pm.Normal("raw", shape=J - 1)
    return pm.Deterministic("theta", pt.concatenate([[m0], m0 - pt.cumsum(tau * raw) / 2.0]))


def running_with_its_start(m0, tau):
    steps = pm.Normal("steps", 0, tau, shape=J - 1)
    return pt.exp(0.1) * pt.cumsum(pt.concatenate([[m0], steps]))


def of_a_slope(m0, tau):
    slope = pt.cumsum(tau * pm.Normal("raw", shape=J))
    return m0 + pt.cumsum(slope)


def autoregression(m0, tau):
    rho = pm.Normal("rho", 0.7, 0.2)
    return m0 + pm.AR("a", rho[None], sigma=tau, init_dist=pm.Normal.dist(0.5, 2.0), steps=J - 1)


def autoregression_of_two(m0, tau):
    rho = pm.Normal("rho", [1.0, 0.5, -0.3], 0.2, shape=3)
    start = pm.Normal.dist([m0, 1.0], 2.0)
    return pm.AR("a", rho, sigma=tau, init_dist=start, constant=True, steps=J - 2)


def process(m0, tau):
    covariance = tau**2 * np.exp(-0.5 * np.subtract.outer(range(J), range(J)) ** 2)
    return pm.MvNormal("f", m0 * np.ones(J), covariance + 0.1 * np.eye(J), shape=J)


def by_dims(m0, tau):
    pm.modelcontext(None).add_coord("group", range(J))
    return pm.Deterministic("theta", m0 + tau * pm.Normal("raw", dims="group"), dims="group")


FORMS = {
    by_dims: ["raw"],
    centred: ["theta"],
    scaled: ["raw"],
    scaled_otherwise: ["raw"],
    scaled_behind_an_index: ["raw"],
    nested: ["region", "theta"],
    of_data: ["region", "theta"],
    walk: ["w"],
    running: ["raw"],
    running_from_a_start: ["raw"],
    running_with_its_start: ["steps"],
    of_a_slope: ["raw"],
    autoregression: ["a"],
    autoregression_of_two: ["a"],
    process: ["f"],
}


def _moved(model, to="marginal"):
    reading = read(model, "")
    on = collapsed(reading, to)
    return on.model, *standardised(reading, on)


@cache
def _under_gaussian_noise(form):
    return _moved(_hierarchy(form, dp.GaussianMechanism(0.7)))


def _parameters(new):
    """Return a function from a point of the coordinates to the values of the free variables."""
    function = new.compile_fn(new.replace_rvs_by_values(new.free_RVs))
    return lambda point: dict(zip([rv.name for rv in new.free_RVs], function(point), strict=True))


def _somewhere(new):
    rng = np.random.default_rng(1)
    return {k: v + rng.normal(size=np.shape(v)) for k, v in new.initial_point().items()}


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
@pytest.mark.parametrize("noise", [dp.LaplaceMechanism(0.7), dp.GaussianMechanism(0.7)], ids=repr)
def test_the_density_stays(form, noise):
    old, new, moved = _moved(_hierarchy(form, noise, None))
    assert moved == FORMS[form]
    point = _somewhere(new)
    own = {}
    for name, value in _parameters(new)(point).items():
        transform = old.rvs_to_transforms[old[name]]
        own[old.rvs_to_values[old[name]].name] = value if transform is None else np.log(value)
    density = new.compile_logp(jacobian=False)(point)
    assert density == pytest.approx(old.compile_logp(jacobian=False)(own), abs=1e-8)


def test_the_start_of_a_mean_may_be_computed_from_itself():
    def form(m0, tau):
        mean = pm.ZeroSumNormal("mean", 2.0, shape=2)
        return pm.Normal("theta", m0 + mean[np.array([0, 1, 1, 0])], tau, shape=J)

    assert _moved(_hierarchy(form, dp.GaussianMechanism(0.7)))[2] == ["theta"]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_the_jacobian(form):
    _, new, _ = _under_gaussian_noise(form)
    point, of_point = _somewhere(new), _parameters(new)
    flat = DictToArrayBijection.map(point)

    def parameters(x):
        values = of_point(DictToArrayBijection.rmap(RaveledVars(x, flat.point_map_info)))
        return np.concatenate([np.ravel(v) for v in values.values()])

    steps = 1e-5 * np.eye(flat.data.size)
    columns = [(parameters(flat.data + e) - parameters(flat.data - e)) / 2e-5 for e in steps]
    with_it, without = (new.compile_logp(jacobian=j)(point) for j in (True, False))
    assert with_it - without == pytest.approx(np.linalg.slogdet(columns)[1], abs=1e-7)
    compiled = new.compile_logp()

    def density(x):
        return compiled(DictToArrayBijection.rmap(RaveledVars(x, flat.point_map_info)))

    slopes = [(density(flat.data + e) - density(flat.data - e)) / 2e-5 for e in steps]
    np.testing.assert_allclose(new.compile_dlogp()(point), slopes, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_what_is_all_normal_is_standard_normal_given_the_parameters(form):
    _, new, moved = _under_gaussian_noise(form)
    point, logp = _somewhere(new), new.compile_logp()
    own = [f"{name}_standardised__" for name in moved]
    center = {k: 0.0 * v if k in own else v for k, v in point.items()}
    squares = sum((point[name] ** 2).sum() for name in own)
    assert logp(point) - logp(center) == pytest.approx(-squares / 2, abs=1e-9)
    # Of running sums it is not seen.
    seen = form not in (running, running_from_a_start, running_with_its_start, of_a_slope)
    assert all(new.rvs_to_transforms[new[name]].is_exact == seen for name in moved)


def _survey(mean, sd, size=J):
    pm.Normal("survey", mean, sd, observed=np.zeros(size))


def _crossed(m0, tau):
    rows, columns = np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1])
    a = pm.Normal("a", m0, tau, shape=2)
    return a[rows] + pm.Normal("b", 0.0, pm.HalfNormal("tau_b", 1), shape=2)[columns]


def _curved(m0, tau):
    return pt.exp(pm.Normal("theta", m0, tau, shape=J))


def _with_its_own_spread(m0, tau):
    theta = centred(m0, tau)
    y = pm.Normal("y", theta, pt.exp(theta), shape=J)
    dp.PrivateObservation("z_y", y, dp.GaussianMechanism(1.0), observed=Z)
    return theta


def _only_in_a_spread(m0, tau):
    theta = centred(m0, tau)
    _survey(0.0, pt.exp(theta))
    return theta


def _spread_of_a_child(m0, tau):
    parent = pm.Normal("parent", 0.0, pm.HalfNormal("tau_parent", 1), shape=J)
    _survey(parent, 0.5)
    return pm.Normal("theta", m0, pt.exp(parent), shape=J)


def _spills_over(m0, tau):
    """But not where PyMC starts b, at 0."""
    theta = centred(m0, tau)
    return theta + pm.Normal("b", 0, 0.3) * pt.roll(theta, 1)


def _jumps(m0, tau):
    theta = centred(m0, tau)
    _survey(pt.switch(theta > 1, theta + 2, theta), 0.3)
    return theta


def _chosen_by(m0, tau):
    theta = centred(m0, tau)
    _survey(pm.Normal("e", 0, 2, shape=2)[pt.gt(theta, 1).astype("int64")], 0.3)
    return theta


def _second_differences(m0, tau):
    theta = centred(m0, tau)
    _survey(theta[:-2] - 2 * theta[1:-1] + theta[2:], 0.2, J - 2)
    return theta


def _potential_of_a_child(m0, tau):
    region = pm.Normal("region", m0, pm.HalfNormal("tau_region", 1), shape=2)
    _survey(region, 1.0, 2)
    theta = pm.Normal("theta", region[np.array([0, 1, 1, 0])], tau, shape=J)
    pm.Potential("total", -(theta.sum() ** 2))
    return theta


def _mean_of_a_vector(m0, tau):
    region = pm.Normal("region", m0, pm.HalfNormal("tau_region", 1), shape=J)
    return pm.MvNormal("theta", region, tau**2 * (np.eye(J) + 0.5), shape=J)


NOT_EXACT = [
    _crossed,
    _curved,
    _with_its_own_spread,
    _only_in_a_spread,
    _spread_of_a_child,
    _spills_over,
    _jumps,
    _chosen_by,
    _second_differences,
    _potential_of_a_child,
    _mean_of_a_vector,
]


@pytest.mark.parametrize("form", NOT_EXACT, ids=lambda form: form.__name__)
def test_what_is_not_standard_normal_given_the_rest(form):
    _, new, moved = _moved(_hierarchy(form, dp.GaussianMechanism(0.7)))
    assert not any(new.rvs_to_transforms[new[name]].is_exact for name in moved)


def test_the_parabola_of_counts_is_that_of_their_likelihood():
    """Where the mode is, given parameters, the slope is 0 and the curvature about -1."""
    with pm.Model() as model:
        tau = pm.HalfNormal("tau", 1)
        theta = pm.Normal("theta", 2.0, tau, shape=3)
        y = pm.Poisson("y", pt.exp(theta), shape=3)
        dp.PrivateObservation("z", y, dp.GeometricMechanism(1.5), observed=np.array([0, 9, 400]))
    _, new, moved = _moved(model)
    assert moved == ["theta"]
    point = new.initial_point()
    assert np.all(point["theta_standardised__"] == 0.0)
    own = "theta_standardised__"
    slope = new.compile_dlogp(vars=[new["theta"]])
    beside = slope({**point, own: point[own] + 1e-4})
    np.testing.assert_allclose(slope(point), 0.0, atol=0.3)
    np.testing.assert_allclose((beside - slope(point)) / 1e-4, -1.0, atol=0.3)


def _with_potential(m0, tau):
    theta = centred(m0, tau)
    pm.Potential("more", -pt.abs(theta).sum())
    return theta


def _with_other_counts(m0, tau):
    theta = centred(m0, tau)
    pm.Poisson("more", pt.exp(theta), shape=J)
    return theta


def _of_fixed_spread(m0, tau):
    return pm.Normal("theta", m0, 2.0, shape=J)


def _in_each_others_sum(m0, tau):
    return tau * pm.Normal("raw", shape=J) + m0 * pm.Normal("also", shape=J)


@pytest.mark.parametrize(
    "form", [_with_potential, _with_other_counts, _of_fixed_spread, _in_each_others_sum]
)
def test_what_stays_as_it_is_written(form):
    model = _hierarchy(form, dp.LaplaceMechanism(0.7))
    reading = read(model, "")
    on = collapsed(reading, "marginal")
    assert standardised(reading, on) == (on.model, [])


@pytest.mark.compiled
def test_a_walk_of_noisy_counts_mixes():
    """200 days, near 3: half of the noise-free information is gone; ESS was 8 to 55 of 2,000."""
    rng, days = np.random.default_rng(2), 200
    counts = rng.poisson(3.0 * np.exp(np.cumsum(rng.normal(0, 0.08, days))))
    z = counts + rng.geometric(0.4, days) - rng.geometric(0.4, days)
    noise = dp.GeometricMechanism.from_epsilon(0.5)
    withheld = noise.suppressed(below=2)
    fits = []
    # What is withheld tells nothing in the coordinates, so that they suit it less.
    for mechanism, released, least in (noise, z, 700), (withheld, np.where(z < 2, np.nan, z), 250):
        with pm.Model() as model:
            s = pm.HalfNormal("s", 0.2)
            first = pm.Normal.dist(1, 1)
            w = pm.GaussianRandomWalk("w", sigma=s, init_dist=first, steps=days - 1)
            dp.PrivateObservation("z", pm.Poisson.dist(pt.exp(w)), mechanism, observed=released)
        fits.append(dp.sample(model, chains=2, random_seed=1, progressbar=False))
        assert arviz_stats.ess(fits[-1], var_names=["s"])["s"] > least
        assert not fits[-1].sample_stats["diverging"].any()
    apart = fits[0].posterior["w"].mean() - fits[1].posterior["w"].mean()
    assert abs(float(apart)) < 0.1


def test_records_of_unknown_number_are_no_latents_and_the_moments_of_their_sum_are_known():
    with pm.Model() as model:
        theta = pm.Normal("theta", pm.Normal("m0"), pm.HalfNormal("tau"))
        x = pm.Normal("x", theta, 1.0, shape=pm.Poisson("n", 7.0))
        dp.PrivateObservation("z", x.sum(), dp.LaplaceMechanism(1.0), observed=4.0)
    assert _moved(model)[2] == ["theta"]
    assert dp.explain(model, details=True).tables


def test_sums_that_mix_the_entries_say_nothing_of_one():
    with pm.Model() as model:
        theta = centred(pm.Normal("m0"), pm.HalfNormal("tau"))
        x = pm.Normal("x", theta[G], 1.0, shape=G.size)
        total = x.sum()
        dp.PrivateObservation("z", total, dp.GaussianMechanism(0.7), observed=4.0)
    old, new, moved = _moved(model)
    assert new is old
    assert moved == []


def test_sample_says_which_and_names_in_results_stay(caplog):
    model = _hierarchy(scaled, dp.LaplaceMechanism(0.7))
    with caplog.at_level(logging.INFO, "pymc.dp"):
        tree = dp.sample(model, draws=20, tune=20, chains=1, progressbar=False, random_seed=1)
    assert "coordinates that suit the data" in caplog.text
    assert set(tree.posterior.data_vars) == {"m0", "tau", "raw"}
    assert any("coordinates" in note for note in dp.explain(model, details=True).notes)
