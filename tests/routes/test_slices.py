"""Slices on the marginal against quadrature; what it covers and how its variables are moved."""

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pytensor.graph.traversal import ancestors
from scipy import special, stats

import pymc_dp as dp
from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.interrupts import Pieces
from pymc_dp.reading.frozen import read
from pymc_dp.routes import slices
from pymc_dp.routes.slice_layout import layout
from pymc_dp.routes.starts import NotFinite
from tests.chains import QUIET
from tests.models import GROUP_MEANS, GROUPS, group_means

SIZES = np.bincount(GROUPS)
LONG = {"draws": 5_000, "tune": 1_000, "chains": 2, "random_seed": 1} | QUIET


def laplace_normal(z, mean, variance, scale):
    """Log density of a Normal variable plus Laplace noise."""
    sd = np.sqrt(variance)
    sides = [
        special.log_ndtr(sign * (z - mean) / sd - sd / scale) - sign * (z - mean) / scale
        for sign in (1.0, -1.0)
    ]
    return variance / (2 * scale**2) + np.logaddexp(*sides) - np.log(2 * scale)


def normal_normal(z, mean, variance, scale):
    return stats.norm.logpdf(z, mean, np.sqrt(variance + scale**2))


def normalised(log_density):
    weight = np.exp(log_density - log_density.max())
    return weight / weight.sum()


def agrees(idata, weight, wide=4.0, **grids):
    """Compare means and spreads of parameters with those of weights on a grid of their values."""
    assert idata["posterior"].attrs["route"] == "slices on the marginal"
    for name, x in grids.items():
        draws = idata["posterior"][name].to_numpy()
        effective, mean = az.ess(draws), (weight * x).sum()
        spread = np.sqrt((weight * (x - mean) ** 2).sum())
        assert effective > 0.1 * draws.size
        assert abs(draws.mean() - mean) < 4.0 * spread / np.sqrt(effective)
        assert abs(draws.std() / spread - 1.0) < wide / np.sqrt(effective)


def check(model, density, scale, pull=0.0):
    """By quadrature over mu, tau and s; exp(-pull theta^2 / 2) is in the density, too."""
    mu = np.linspace(-9.0, 9.0, 73)[:, None, None]
    tau = (np.arange(121)[:, None] + 0.5) * 8.0 / 121
    s = (np.arange(121) + 0.5) * 8.0 / 121
    log = stats.norm.logpdf(mu, 0, 3) - tau**2 / 8 - s**2 / 8
    share = 1.0 / (1.0 + pull * tau**2)  # theta is N(mu share, tau^2 share), times a factor
    for n, z in zip(SIZES, GROUP_MEANS, strict=True):
        log = log + density(z, mu * share, tau**2 * share + s**2 / n, scale)
        log += 0.5 * np.log(share) - 0.5 * pull * share * mu**2
    agrees(dp.sample(model, **LONG), normalised(log), 6.0, mu=mu, tau=tau, s=s)


def scaled(mu, tau):
    return pm.Deterministic("theta", mu + tau * pm.Normal("raw", shape=SIZES.size))


@pytest.mark.parametrize(
    ("noise", "density", "latent"),
    [
        (dp.LaplaceMechanism(0.5), laplace_normal, None),
        (dp.LaplaceMechanism(2.0), laplace_normal, scaled),
        (dp.GaussianMechanism(0.5), normal_normal, scaled),
    ],
    ids=["Laplace", "much Laplace, by raw", "Gaussian, by raw"],
)
def test_quadrature(noise, density, latent):
    check(group_means(noise, latent), density, float(noise.parameters[0].eval()))


@pytest.mark.parametrize("tune", [0, 200])
def test_a_density_without_values_is_told(monkeypatch, tune):
    """At a start, or around the draws of the warm-up; it would cut the posterior off in silence."""
    chain = slices.SliceChain(layout(read(group_means(), "")), ["mu"])
    rng = np.random.default_rng(1)
    assert np.isfinite(chain.begin(rng, tune, pieces=Pieces()).q).all()
    known, calls = slices.call, []

    def call(address, q, out):
        calls.append(q.copy())
        return known(address, q, out) if len(calls) < 15 else np.nan

    monkeypatch.setattr(slices, "call", call)
    with pytest.raises(NotFinite, match="its log density has no value"):
        chain.begin(rng, tune, pieces=Pieces())
    if tune:
        assert np.ptp(calls[3:], axis=0)[: chain.layout.ends[-1]].all()


def test_potential():
    model = group_means()
    with model:
        pm.Potential("pull", -0.25 * model["theta"] ** 2)
    assert not layout(read(model, "")).entries  # theta is moved as it is, as parameters
    check(model, laplace_normal, 0.5, pull=0.5)


def test_a_mean_that_is_not_linear():
    """Coordinates that depended on the variances of the noise would move theta with them."""
    z, n, b = np.array([1.0, 2.0, 0.2, 5.0, -1.0, 3.0]), 4, 1.0
    with pm.Model() as model:
        tau = pm.HalfNormal("tau", 1.0)
        theta = pm.Normal("theta", 0, tau, shape=6)
        x = pm.Normal("x", pt.exp(theta)[:, None], 0.6, shape=(6, n))
        dp.PrivateObservation("z", x.mean(axis=1), dp.LaplaceMechanism(b), observed=z)
    taus = (np.arange(200) + 0.5) * 5.0 / 200
    xi = np.linspace(-8.0, 8.0, 801)
    log = -(taus**2) / 2
    for own in z:
        inner = laplace_normal(own, np.exp(taus[:, None] * xi), 0.6**2 / n, b)
        log = log + special.logsumexp(inner - xi**2 / 2, axis=1)
    agrees(dp.sample(model, **LONG | {"draws": 20_000}), normalised(log), tau=taus)


@pytest.mark.nightly  # a minute, most of it compiling; by day the chain is tested by itself
def test_a_surrogate(caplog):
    """Clipped means: against the exact density of each group on a grid of theta and s."""
    with pm.Model() as model:
        mu, tau, s = pm.Normal("mu", 0, 3), pm.HalfNormal("tau", 2), pm.Uniform("s", 1, 2)
        theta = pm.Normal("theta", mu, tau, shape=SIZES.size)
        x = pm.Normal("x", theta[:, None], s, shape=(SIZES.size, 12))
        clipped = pt.clip(x, -1.0, 3.0).mean(axis=1)
        dp.PrivateObservation("z", clipped, dp.LaplaceMechanism(0.3), observed=GROUP_MEANS / 2)
    idata = dp.sample(model, **LONG | {"draws": 500, "tune": 300})
    assert "by inversion" not in caplog.text
    marginal = dp.collapse(model)
    density = marginal.compile_fn(marginal.logp(marginal["z"], sum=False)[0])
    grid, spreads = np.linspace(-9.0, 9.0, 73), np.linspace(1.0, 2.0, 11)[1::2]
    log = np.empty((spreads.size, grid.size, SIZES.size))
    for i, spread in enumerate(spreads):
        within = np.log((spread - 1.0) / (2.0 - spread))
        for j, center in enumerate(grid):
            log[i, j] = density({"s_interval__": within, "theta": np.full(SIZES.size, center)})
    centers, taus = np.linspace(-6.0, 6.0, 49), (np.arange(61) + 0.5) * 8.0 / 61
    law = stats.norm.logpdf(grid, centers[:, None, None], taus[:, None])
    law -= special.logsumexp(law, axis=-1, keepdims=True)  # on the grid
    posterior = stats.norm.logpdf(centers, 0, 3)[:, None, None] - taus[:, None] ** 2 / 8
    posterior = posterior + sum(
        special.logsumexp(law[:, :, None, :] + log[..., k], axis=-1) for k in range(SIZES.size)
    )
    axes = {"mu": centers[:, None, None], "tau": taus[:, None], "s": spreads}
    agrees(idata, normalised(posterior), 6.0, **axes)


def of_unknown_number():
    """Two groups of unknown number; their noisy sums are released in another order."""
    with pm.Model() as model:
        n = pm.Poisson("n", [14.0, 30.0], shape=2)
        m, s = pm.Normal("m", 2.0, 1.5), pm.Uniform("s", 1.0, 3.0)
        total = dp.RecordSums("x", pm.Normal.dist(m, s), n, of=lambda x: x.clip(0, 5), shape=2)
        dp.PrivateObservation("number", n, dp.GeometricMechanism(3.0), observed=[19, 24])
        z = pt.stack([total[1], total[0]])
        dp.PrivateObservation("z", z, dp.LaplaceMechanism(6.0), observed=[70.0, 38.0])
    return model


def test_numbers_that_are_unknown_have_a_coarse_surrogate():
    places = layout(read(of_unknown_number(), ""))
    assert places.inverted == 2
    assert [v.name for v in places.corrections] == ["number_correction", "z_correction"]


@pytest.mark.nightly  # half a minute, most of it compiling
def test_records_of_unknown_number():
    """Against the exact density on a grid."""
    model = of_unknown_number()
    idata = dp.sample(model, **LONG | {"draws": 3_000})
    density = dp.collapse(model).compile_logp(jacobian=False)
    m, s = np.linspace(-1.0, 6.0, 43)[:, None], np.linspace(1.0, 3.0, 23)[1:-1]
    within = np.log((s - 1.0) / (3.0 - s))
    log = [[density({"m": a[0], "s_interval__": b}) for b in within] for a in m]
    agrees(idata, normalised(np.array(log)), 6.0, m=m, s=s)


X = np.array([[1.0, 0.2], [1.0, -1.0], [1.0, 0.7], [1.0, 2.0], [1.0, -0.4], [1.0, 1.1]])


def test_a_joint_law():
    """X'y under Laplace noise: against the noise integrated on a grid for each coefficient."""
    z, scale = np.array([2.0, 6.4]), 1.5
    with pm.Model() as model:
        b, s = pm.Normal("b", 0, 2), pm.Uniform("s", 0.5, 3.0)
        y = pm.Normal("y", X[:, 0] + X[:, 1] * b, s)
        dp.PrivateObservation("z", X.T @ y, dp.LaplaceMechanism(scale), observed=z)
    grid = np.linspace(-40.0, 40.0, 201)
    noise = -(abs(grid[:, None] - z[0]) + abs(grid - z[1])) / scale
    b, s = np.linspace(-8.0, 8.0, 41), np.linspace(0.5, 3.0, 41)[1::2]
    log = np.empty((b.size, s.size))
    places = np.stack(np.meshgrid(grid, grid, indexing="ij"), axis=-1)
    for j, sd in enumerate(s):
        law = stats.multivariate_normal(np.zeros(2), sd**2 * X.T @ X)
        for i, slope in enumerate(b):
            own = law.logpdf(places - X.T @ (X @ [1.0, slope]))
            log[i, j] = special.logsumexp(own + noise)
    log += stats.norm.logpdf(b, 0, 2)[:, None]
    agrees(dp.sample(model, **LONG), normalised(log), 6.0, b=b[:, None], s=s)


VALUES = ["mu", "tau_log__", "s_log__", "theta_standardised__", "z_noise_variance_log__"]


def nested(mu, tau):
    region = pm.Normal("region", mu, pm.HalfNormal("tau_region", 1), shape=2)
    return pm.Normal("theta", region[np.array([0, 1, 1, 0, 0, 1])], tau)


def test_what_is_standard_normal_given_the_rest_is_drawn_anew():
    found = layout(read(group_means(), ""))
    assert [v.name for v in found.values] == VALUES
    assert (found.ends.tolist(), found.anew, found.size) == ([3], 6, 15)
    assert found.moved == ["theta"]
    found = layout(read(group_means(latent=nested), ""))
    assert (found.ends.tolist(), found.anew, found.entries) == ([4], 8, [])


def test_an_empty_group_is_like_the_others():
    group = np.array([0, 0, 1, 1, 3, 3, 3])
    with pm.Model() as model:
        theta = pm.Normal("theta", pm.Normal("mu"), pm.HalfNormal("tau"), shape=4)
        x = pm.Normal("x", theta[group], 1.0, shape=7)
        sums = pt.zeros(4)[group].inc(x)
        dp.PrivateObservation("z", sums, dp.GaussianMechanism(1.0), observed=np.arange(4.0))
    found = layout(read(model, ""))
    assert (found.ends.tolist(), found.anew) == ([2], 4)


def curved(mu, tau):
    return pm.Deterministic("means", pt.exp(pm.Normal("theta", mu, tau, shape=6)))


def crossed(mu, tau):
    rows, columns = np.divmod(np.arange(6), 3)
    a = pm.Normal("a", mu, tau, shape=2)
    return a[rows] + pm.Normal("b", 0.0, pm.HalfNormal("tau_b", 1), shape=3)[columns]


def test_levels():
    found = layout(read(group_means(latent=curved), ""))
    assert [v.name for v in found.values] == VALUES
    assert (found.ends.tolist(), found.anew) == ([3, 9], 0)
    # Drawing these variances must leave theta where it is.
    theta = found.model.replace_rvs_by_values([found.model["theta"]])
    assert found.values[-1] not in ancestors(theta)

    found = layout(read(group_means(latent=crossed), ""))
    a, b = found.entries
    np.testing.assert_array_equal(a[-1], [0, 0, 0, 1, 1, 1])
    np.testing.assert_array_equal(b[-1], [0, 1, 2, 0, 1, 2])


def test_ordered_entries_are_no_level():
    def ordered(mu, tau):
        parent = pm.Normal("parent", mu, tau, shape=6)
        start = {"transform": pm.distributions.transforms.ordered}
        return pm.Normal("theta", parent + np.arange(6), 0.3, **start)

    with pytest.raises(Declined, match="up to 10 parameters"):
        layout(read(group_means(dp.GaussianMechanism(0.5), ordered), ""))


def tied(mu, tau):
    theta = pm.Normal("theta", mu, tau, shape=SIZES.size)
    pm.Potential("tie", -(theta.sum() ** 2))
    return theta


def heavy(mu, tau):
    return pm.StudentT("more", nu=5, mu=mu, sigma=tau, shape=20)[:6]


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (lambda: group_means(dp.GeometricMechanism(1.0), z=GROUP_MEANS.round()), "z"),
        (lambda: group_means(latent=heavy), "up to 10 parameters.* of 'more' alone 20"),
    ],
)
def test_what_is_not_covered(build, why):
    with pytest.raises((Declined, ValueError), match=why):
        layout(read(build(), ""))


def test_entries_that_are_tied_are_parameters():
    assert not layout(read(group_means(latent=tied), "")).entries


def test_seeds_and_starts():
    model = group_means()
    few = {"draws": 5, "tune": 20, "chains": 2} | QUIET
    first, same = (dp.sample(model, random_seed=3, **few, cores=c)["posterior"] for c in (1, 2))
    for name in first:
        np.testing.assert_array_equal(first[name], same[name])
    other = dp.sample(model, random_seed=4, **few)["posterior"]
    assert not np.any(first["mu"] == other["mu"])


def test_data_are_read_when_it_starts():
    model = group_means()
    with model:
        shift = pm.Data("shift", 0.0)
        pm.Potential("pull", -50.0 * (model["mu"] - shift) ** 2)
    model.set_data("shift", 40.0)
    idata = dp.sample(model, draws=50, tune=100, chains=1, random_seed=1, **QUIET)
    assert idata["posterior"]["mu"].mean() > 35.0


def test_a_list_of_clinics_is_moved_as_their_sums_are():
    """Sizes and means of ten clinics; written as a list, each density took .2 s of NUTS."""
    found = {}
    for form in "list", "sums":
        with pm.Model() as model:
            theta = pm.Normal("theta", pm.Normal("mu", 12, 5), pm.HalfNormal("tau", 4), shape=3)
            s, n = pm.HalfNormal("s", 8), pm.Poisson("n", 55, shape=3)
            dp.PrivateObservation("size", n, dp.LaplaceMechanism(4.0), observed=np.full(3, 50.0))
            if form == "list":
                x = [pm.Normal(f"x{j}", theta[j], s, shape=n[j]) for j in range(3)]
                means = pt.stack([v.clip(0, 30).mean() for v in x])
            else:
                law = pm.Normal.dist(theta, s)
                means = dp.RecordSums("x", law, n, of=lambda v: v.clip(0, 30)) / n
            noise = dp.LaplaceMechanism(1.0)
            dp.PrivateObservation("mean", means, noise, observed=np.full(3, 12.0))
        places = layout(read(model, ""))
        found[form] = places.moved, [value.name for value in places.values], list(places.ends)
    assert found["list"] == found["sums"]
