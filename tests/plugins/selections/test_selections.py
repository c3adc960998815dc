"""Releases made of all entries of a statistic together, against enumeration and quadrature."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import stats
from scipy.special import log_softmax, logsumexp

import pymc_dp as dp
from tests.agreement import counts_follow, follows

UTILITIES = {
    "one": [3.0],
    "ties": [2.0, 5.0, 5.0, 1.5],
    "equal": [1.0] * 7,
    "spread": [0.0, 15.0, 14.0, 40.0],
    "far": [-1e9, 1e9, 1e9 - 3.0, 0.0],
}


def softmax(rate):
    return lambda u: log_softmax(rate * (np.asarray(u) - np.max(u)))


def quadrature(noise, scale):
    """Log probability of each index by SciPy's quadrature between the kinks."""

    def reference(u):
        u = (np.asarray(u) - np.max(u)) / scale
        law = stats.laplace if noise == "laplace" else stats.expon
        points = np.unique(u[u > -700][:, None] + np.arange(-60, 61.0, 3.0))
        x, w = np.polynomial.legendre.leggauss(20)
        v = (points[:-1, None] + np.diff(points)[:, None] * (x + 1) / 2).ravel()
        weight = (np.diff(points)[:, None] * w / 2).ravel()
        below = np.array([law.logcdf(v - w) for w in u])
        found = [below.sum(0, where=np.arange(len(u))[:, None] != i) for i in range(len(u))]
        found = [f + law.logpdf(v - own) for f, own in zip(found, u, strict=True)]
        return logsumexp(found, b=weight, axis=1)

    return reference


INDEX = {
    **{
        f"exponential {rate:g}": (dp.ExponentialMechanism(rate), softmax(rate))
        for rate in (1e-6, 0.7, 1e6)
    },
    "gumbel": (dp.NoisyMax("gumbel", 0.4), softmax(2.5)),
    "laplace": (dp.NoisyMax(dp.LaplaceMechanism(0.4)), quadrature("laplace", 0.4)),
    "laplace wide": (dp.NoisyMax(dp.LaplaceMechanism(1e6)), quadrature("laplace", 1e6)),
    "exponential": (dp.NoisyMax("exponential", 0.4), quadrature("exponential", 0.4)),
}


@pytest.mark.parametrize("utilities", UTILITIES.values(), ids=UTILITIES)
@pytest.mark.parametrize(("mechanism", "reference"), INDEX.values(), ids=INDEX)
def test_masses(mechanism, reference, utilities):
    k = len(utilities)
    found = mechanism.logp(np.arange(-1, k + 1), np.tile(utilities, (k + 2, 1))).eval()
    assert found[0] == found[-1] == -np.inf
    expected = reference(utilities)
    never = expected < -600  # where SciPy's logs end
    np.testing.assert_array_less(found[1:-1][never], -600)
    np.testing.assert_allclose(found[1:-1][~never], expected[~never], rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(logsumexp(found), 0.0, atol=1e-10)


@pytest.mark.parametrize(("mechanism", "reference"), INDEX.values(), ids=INDEX)
def test_draws_have_the_mass(mechanism, reference):
    scale = float(mechanism.parameters[0].eval())
    u = np.array([0.0, 1.0, 2.5, 2.5]) / (scale if "rate" in mechanism.parameter_names else 1)
    drawn = pm.draw(mechanism.dist(np.tile(u, (20_000, 1))), random_seed=1)
    counts_follow(np.bincount(drawn.astype(int), minlength=4), np.exp(reference(u)))


def small_model(kind, mechanism, observed=1):
    """A model of few records, and its posterior mean of p by going through all counts."""
    n = 6
    with pm.Model() as model:
        if kind == "binary":
            p = pm.Beta("p", 1, 1)
            x = pm.Bernoulli("x", p, shape=n)
            u, cells = [2 * x.sum(), n - x.sum(), 3], 2
        elif kind == "cut":
            p = pm.Beta("p", 1, 1)
            x = pm.Normal("x", -pt.erfinv(2 * p - 1) * np.sqrt(2), 1, shape=n)
            low = (x[:, None] < np.array([0.0])).sum(axis=0)[0]
            u, cells = [2 * low, n - (x <= 0).sum(), 3], 2
        else:
            p = pm.Dirichlet("p", np.ones(3))
            x = pm.Categorical("x", p=p, shape=n)
            u, cells = [-abs(pt.ge(x, k).sum() - 3) for k in range(3)], 3
            if kind == "linear":  # of more candidates than a step has to look at one by one
                u = [m * pt.eq(x, k).sum() for m in (1, 2, 3, 4) for k in range(3)]
        dp.PrivateObservation("z", u, mechanism, observed=observed)
    counts = [c for c in np.ndindex(*[n + 1] * cells) if sum(c) == n]  # equally likely
    counts = np.array(counts, dtype=float)
    if kind == "linear":
        u = np.concatenate([m * counts for m in (1, 2, 3, 4)], axis=-1)
    elif kind != "categorical":
        u = np.stack([2 * counts[:, 1], counts[:, 0], np.full(n + 1, 3.0)], axis=-1)
    else:
        u = -np.abs(np.cumsum(counts[:, ::-1], axis=1)[:, ::-1] - 3)
    weight = np.exp(mechanism.logp(observed, u).eval())
    mean = weight @ (counts + 1) / weight.sum() / (n + cells)
    return model, mean if cells == 3 else mean[1]


RUNGS = [
    ("binary", "records"), ("binary", "statistics"), ("binary", "marginal"),
    ("categorical", "records"), ("categorical", "statistics"), ("linear", "statistics"),
    ("cut", "records"), ("cut", "statistics"), ("cut", "marginal"),
]  # fmt: skip


@pytest.mark.nightly
@pytest.mark.parametrize(("kind", "rung"), RUNGS)
def test_posterior_of_a_small_model(kind, rung):
    model, mean = small_model(kind, dp.ExponentialMechanism(0.9))
    drawn = dp.sample(
        model, rung=rung, draws=2000, tune=300, chains=2, random_seed=1, progressbar=False
    ).posterior["p"]
    np.testing.assert_allclose(drawn.mean(("chain", "draw")), mean, atol=0.012)


def test_marginal_is_the_sum_over_counts():
    model, _ = small_model("binary", mechanism := dp.ExponentialMechanism(0.9))
    on = dp.collapse(model)
    c = np.arange(7)
    law = pm.logp(pm.Binomial.dist(6, 0.3), c).eval()
    u = np.stack([2.0 * c, 6.0 - c, np.full(7, 3.0)], axis=-1)
    expected = logsumexp(law + mechanism.logp(1, u).eval())
    found = on.compile_logp(vars=[on["z"]])({"p_logodds__": np.log(0.3 / 0.7)})
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_records_between_candidates():
    cuts = np.array([-1.0, 0.5, 1.0])
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        x = pm.Normal("x", mu, 1.5, shape=10)
        below = (x[:, None] < cuts).sum(axis=0)
        dp.PrivateObservation(
            "z", -abs(below - 5), mechanism := dp.ExponentialMechanism(1.0), observed=2
        )
        dp.PrivateObservation("y", [below[0] ** 2, 10 - (x < 3).sum()], mechanism, observed=0)
    on = dp.collapse(model, "statistics")
    found = on.compile_logp(vars=[on["x_counts"], on["z"], on["y"]])
    counts = np.array([3, 1, 0, 4, 2])
    p = np.diff(stats.norm.cdf([-np.inf, *cuts, 3.0, np.inf], 0.4, 1.5))
    u = -np.abs(np.cumsum(counts)[:3] - 5.0)
    expected = pm.logp(pm.Multinomial.dist(10, p), counts).eval()
    expected += log_softmax(u)[2] + log_softmax([9.0, 2.0])[0]
    np.testing.assert_allclose(found({"mu": 0.4, "x_counts": counts}), expected, rtol=1e-10)


def test_marginal_of_records_between_candidates():
    cut, binary = (
        dp.collapse(small_model(kind, dp.NoisyMax("exponential", 0.9))[0])
        for kind in ("cut", "binary")
    )
    a, b = (
        on.compile_logp(vars=[on["z"]])({"p_logodds__": np.log(0.3 / 0.7)}) for on in (cut, binary)
    )
    np.testing.assert_allclose(a, b, rtol=1e-9)  # erfinv


def test_rows_and_json():
    mechanism = dp.ExponentialMechanism.from_epsilon([1.0, 4.0], sensitivity=2)
    assert np.allclose(mechanism.epsilon(2), [1.0, 4.0])
    assert np.allclose(mechanism.epsilon(2, monotone=True), [0.5, 2.0])
    u = [[0.0, 1.0, 2.0], [5.0, 3.0, 0.0]]
    expected = [
        log_softmax(np.array(v) * r)[i] for v, r, i in zip(u, (0.25, 1.0), (2, 1), strict=True)
    ]
    np.testing.assert_allclose(mechanism.logp([2, 1], u).eval(), expected)
    release = dp.Release([2, 1], mechanism)
    again = dp.Release.from_json(release.to_json())
    assert again == release
    with pm.Model() as model:
        x = pm.Poisson("x", 3.0, shape=(2, 3))
        dp.PrivateObservation("z", x, again)
        assert pm.sample_prior_predictive(4, random_seed=1).prior_predictive["z"].shape == (1, 4, 2)
    assert model["z"].type.shape == (2,)


REFUSED = {
    "out of range": (lambda x: [x.sum(), 1 - x.sum()], {"observed": 2}, "there are 2 candidates"),
    "not whole": (lambda x: [x.sum(), 1], {"observed": 0.5}, "counted from 0"),
    "a number": (lambda x: x.sum(), {"observed": 0}, "write a list, or a vector"),
    "rows": (lambda x: [x.sum(), 1], {"observed": [0, 1]}, "observed has shape"),
    "bounds": (lambda x: [x.sum(), 1], {"observed": 0, "bounds": (0, 1)}, "leave it out"),
    "a law": (lambda x: pm.Poisson.dist(3, shape=2), {"observed": 0}, "register it with the model"),
}


@pytest.mark.parametrize(("statistic", "options", "said"), REFUSED.values(), ids=REFUSED)
def test_refused(statistic, options, said):
    with pm.Model():
        x = pm.Bernoulli("x", 0.3, shape=5)
        with pytest.raises(ValueError, match=f"'z': .*{said}"):
            dp.PrivateObservation("z", statistic(x), dp.ExponentialMechanism(1.0), **options)


AFTERWARDS = {
    "clipped": (0, 1), "rounded": (), "truncated": (), "floored": (), "ceiled": (),
    "suppressed": (0,), "thresholded": (1,),
}  # fmt: skip


@pytest.mark.parametrize(("how", "arguments"), AFTERWARDS.items(), ids=AFTERWARDS)
def test_nothing_is_done_to_it_afterwards(how, arguments):
    for mechanism in (
        dp.ExponentialMechanism(1.0),
        dp.NoisyMax("gumbel", 1.0),
        dp.PrivateQuantile(0.5, 1.0, 0, 1),
    ):
        said = rf"(?i){how}Mechanism: {type(mechanism).__name__}.* leave this step out"
        with pytest.raises(TypeError, match=said):
            getattr(mechanism, how)(*arguments)
        with pytest.raises(TypeError, match=r"SuppressedMechanism: .* leave this step out"):
            dp.LaplaceMechanism(1.0).suppressed(below=0, by=mechanism)


@pytest.mark.parametrize(
    "mechanism",
    [
        dp.ExponentialMechanism(1.0), dp.NoisyMax(dp.LaplaceMechanism(3.0)),
        dp.NoisyMax("exponential", 3.0), dp.NoisyMax("gumbel", 3.0, value=True),
    ],
    ids=repr,
)  # fmt: skip
def test_masses_are_log_concave_in_the_utilities(mechanism):
    """Counts are drawn by that; all of the values of a pair of cells would be slow."""
    assert mechanism.log_concave
    value = [1, 20.0] if mechanism.release_ndim else 1
    u = np.random.default_rng(0).normal(0, 9, (2, 50, 4))
    ends = mechanism.logp(value, np.stack([*u, u.mean(axis=0)])).eval()
    assert np.all(ends[2] >= ends[:2].mean(axis=0) - 1e-9)


# Statistics that noise for each entry would have a law or a step for: none may read them so.
READ_ELSEWHERE = {
    "sums": lambda: [x := pm.Normal("x", 0, 1, shape=4), [x.sum(), (2 * x).sum()]][1],
    "each": lambda: pm.Normal("x", 0, 1, shape=4),
    "counts": lambda: pm.Poisson("x", 3, shape=4),
    "table": lambda: pm.Multinomial("x", n=9, p=[0.2, 0.3, 0.5]).astype("float64"),
    "latents": lambda: [pm.Gamma("x", 2, 1), pm.Gamma("y", 2, 1)],
    "multiples": lambda: [x := pm.Bernoulli("x", 0.3, shape=4), 2.0 * x][1],
    "clipped": lambda: [x := pm.Exponential("x", 1, shape=4), [x.clip(0, 2).sum(), 4]][1],
}


@pytest.mark.parametrize("statistic", READ_ELSEWHERE.values(), ids=READ_ELSEWHERE)
def test_nothing_reads_it_entry_by_entry(statistic):
    with pm.Model() as model:
        dp.PrivateObservation("z", statistic(), dp.ExponentialMechanism(1.0), observed=0)
    for rung in ("statistics", "marginal"):
        with pytest.raises((ValueError, NotImplementedError), match=r"'[zx]'|there|still has one"):
            dp.collapse(model, rung)
    names = {type(step).__name__ for step in dp.steps(model)} if "x" in model.named_vars else ()
    assert names <= {"RecordMetropolis", "CountGibbs"}


PAIRS = [dp.LaplaceMechanism(0.7), "gumbel", "exponential"]


@pytest.mark.parametrize("noise", PAIRS, ids=str)
def test_index_with_value(noise):
    scale = None if isinstance(noise, dp.LaplaceMechanism) else 0.7
    pair, alone = (dp.NoisyMax(noise, scale, value=value) for value in (True, False))
    u = np.array([0.0, 1.0, 2.0])
    ends = np.concatenate([u - 30, u, u + 30])
    points = np.unique(np.concatenate([np.linspace(u[0] - 30, u[-1] + 30, 100), ends]))
    x, w = np.polynomial.legendre.leggauss(12)
    v = (points[:-1, None] + np.diff(points)[:, None] * (x + 1) / 2).ravel()
    weight = (np.diff(points)[:, None] * w / 2).ravel()
    z = np.stack([np.repeat(np.arange(3), v.size), np.tile(v, 3)], axis=-1)
    density = np.exp(pair.logp(z, np.tile(u, (len(z), 1))).eval()).reshape(3, -1)
    mass = np.exp(alone.logp(np.arange(3), np.tile(u, (3, 1))).eval())
    np.testing.assert_allclose(density @ weight, mass, rtol=1e-9)
    drawn = pm.draw(pair.dist(np.tile(u, (5000, 1))), random_seed=1)
    counts_follow(np.bincount(drawn[:, 0].astype(int), minlength=3), mass)
    order = np.argsort(v)
    follows(drawn[:, 1], (v[order], density.sum(axis=0)[order]))
    again = dp.Release.from_json(dp.Release([1, 2.5], pair).to_json())
    with pm.Model() as model:
        n = pm.Poisson("n", [1.0, 2.0, 3.0])
        dp.PrivateObservation("z", n, again)
        model.initial_point()
        with pytest.raises(ValueError, match=r"give .*\[position, noisy value\]"):
            dp.PrivateObservation("y", n, pair, observed=1.0)
    with pytest.raises(ValueError, match=r"write \[position, noisy value\]"):
        dp.Release(1.0, pair)
    assert model["z"].type.shape == (2,)


@pytest.mark.parametrize("noise", PAIRS, ids=str)
@pytest.mark.parametrize("u", [[0.0, 1.0, 2.0, 2.0], [9.0, 5.0, 2.0, 100.0]], ids=str)
def test_gradient(noise, u):
    mechanism = dp.NoisyMax(noise, None if isinstance(noise, dp.LaplaceMechanism) else 0.7)
    x = pt.vector()
    logp = mechanism.logp(2, x)
    slope = pt.grad(logp, x).eval({x: u})
    e = 1e-5 * np.eye(4)
    f = [mechanism.logp(np.full(4, 2), np.array(u) + s * e).eval() for s in (1, -1)]
    np.testing.assert_allclose(slope, (f[0] - f[1]) / 2e-5, atol=1e-4)


def test_noise_of_noisy_max_is_one_that_is_known():
    with pytest.raises(ValueError, match=r"write dp.LaplaceMechanism"):
        dp.NoisyMax(dp.GaussianMechanism(1.0))


# --- Quantiles on the intervals between records ---------------------------------------------------

ENDS = {
    "plain": [30.0, 60.0, 40.0],
    "ties": [30.0, 150.0, 30.0],
    "at ends": [-5.0, 0.0, 200.0, 7.0],
}


def of_quantile(q, rate, records):
    """Weights and ends of the intervals of records from 0 to 100, as they are defined."""
    points = np.sort(np.clip([0.0, 100.0, *records], 0, 100))
    weight = np.exp(-rate * np.abs(np.arange(len(records) + 1) - q * len(records)))
    return weight, points


@pytest.mark.parametrize("records", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize(("q", "rate"), [(0.5, 0.5), (0.0, 1e-6), (0.9, 3.0), (1.0, 1e6)])
def test_density_and_draws_of_a_quantile(records, q, rate):
    mechanism = dp.PrivateQuantile(q, rate, 0.0, 100.0)
    _, points = of_quantile(q, rate, records)
    z = np.array([-1e-9, 0.0, 3.0, 30.0, 50.0, 99.0, 100.0, 101.0])
    found = mechanism.logp(z, np.tile(records, (len(z), 1))).eval()
    at = np.minimum(np.searchsorted(points, z, "right") - 1, len(records))
    while np.any(empty := np.diff(points)[at] == 0):  # where records are clipped to the end
        at = at - empty
    rank = np.abs(np.arange(len(records) + 1) - q * len(records))
    least = rank[np.diff(points) > 0].min()
    total = np.diff(points) @ np.exp(-rate * np.maximum(rank - least, 0))
    expected = -rate * (rank[at] - least) - np.log(total)
    assert found[0] == found[-1] == -np.inf
    np.testing.assert_allclose(found[1:-1], expected[1:-1], rtol=1e-12, atol=1e-12)
    drawn = pm.draw(mechanism.dist(np.tile(records, (20_000, 1))), random_seed=1)
    edges = np.unique(np.concatenate([points, [45.0]]))
    share = np.exp(
        mechanism.logp((edges[1:] + edges[:-1]) / 2, [records] * (len(edges) - 1)).eval()
    )
    counts_follow(np.histogram(drawn, edges)[0], share * np.diff(edges))


def test_quantiles_are_those_of_diffprivlib():
    """20,000 results of its 0.6.6: `quantile` once, and two of `percentile` at once."""
    records, at = [-5.0, 1.0, 2.0, 2.0, 7.5, 30.0], [0.5, 1, 1.5, 2, 4, 7, 7.5, 9]
    share = [0.0927, 0.18395, 0.3139, 0.4471, 0.60695, 0.8481, 0.89005, 0.95555]
    later = [0.005666666666666667, 0.013, 0.026, 0.04, 0.252, 0.5676666666666667, 0.619, 0.854]
    said = {"epsilon": 1.2, "bounds": (0, 10)}
    one = dp.Release.from_diffprivlib("quantile", 3.0, quant=0.3, **said).mechanism
    said["epsilon"] = 2.4
    two = dp.Release.from_diffprivlib("percentile", [3.0, 8.0], percent=[30, 80], **said).mechanism
    for mechanism, row, found, n in ((one, None, share, 20_000), (two, 1, later, 3000)):
        z = (np.arange(10_000) + 0.5) / 1000
        if row is not None:
            mechanism = mechanism.with_parameters(
                *(p[row] if p.type.ndim else p for p in mechanism.parameters)
            )
        density = np.exp(mechanism.logp(z, np.tile(records, (z.size, 1))).eval())
        cdf = np.cumsum(density)[(np.array(at) * 1000).astype(int) - 1] / 1000
        assert np.all(np.abs(cdf - found) < 4.5 * np.sqrt(cdf * (1 - cdf) / n))


@pytest.mark.nightly
def test_posterior_given_a_quantile():
    with pm.Model() as model:
        mu = pm.Normal("mu", 40, 20)
        x = pm.Normal("x", mu, 15, shape=4)
        dp.PrivateObservation("z", x, dp.PrivateQuantile(0.5, 1.0, 0, 100), observed=66.0)
    rng = np.random.default_rng(0)
    mean = rng.normal(40, 20, 200_000)
    records = np.sort(rng.normal(mean[:, None], 15, (200_000, 4)).clip(0, 100))
    weight, _ = of_quantile(0.5, 1.0, [1.0] * 4)
    lengths = np.diff(np.pad(records, ((0, 0), (1, 1)), constant_values=(0, 100)), axis=1)
    likely = weight[(records <= 66).sum(axis=1)] / (lengths @ weight)
    expected = likely @ mean / likely.sum()
    drawn = dp.sample(model, draws=1000, tune=200, chains=2, random_seed=1, progressbar=False)
    np.testing.assert_allclose(drawn.posterior["mu"].mean(), expected, atol=1.5)


def test_parameters_of_a_quantile():
    for arguments, said in (
        ((1.5, 1.0, 0, 1), "quantile must be from 0 to 1"),
        ((0.5, 0.0, 0, 1), "rate must be finite and > 0"),
        ((0.5, 1.0, 1, 0), "lower=1.0 is not below upper=0.0. Write both"),
        ((0.5, 1.0, 0, np.inf), "upper must be finite"),
    ):
        with pytest.raises(ValueError, match=f"PrivateQuantile: {said}"):
            dp.PrivateQuantile(*arguments)
    mechanism = dp.PrivateQuantile.from_epsilon([0.25, 0.5], 1.0, 0, 10)
    release = dp.Release([1, 2], mechanism)
    assert dp.Release.from_json(release.to_json()) == release
    with pm.Model():
        x = pm.Normal("x", 0, 1, shape=9)
        with pytest.raises(ValueError, match=r"'z': .* a number from lower to upper"):
            dp.PrivateObservation("z", x, dp.PrivateQuantile(0.5, 1.0, 0, 10), observed=11.0)
        dp.PrivateObservation("y", [x, x], release)
        with pytest.raises(NotImplementedError, match=r"'y' is not computed from how many of 'x'"):
            dp.collapse()
