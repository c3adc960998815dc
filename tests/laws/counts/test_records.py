"""Records with finitely many values: their counts and what is left without them."""

import tracemalloc

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode
from pytensor.graph.replace import clone_replace
from scipy import special, stats

import pymc_dp as dp
from pymc_dp.graphs.declined import Declined
from pymc_dp.laws.counts.marginal import OnesAmongRecords
from pymc_dp.laws.integrated import integrated_release
from pymc_dp.laws.one_value import Pieces
from pymc_dp.plugins.inversion import law as rule
from pymc_dp.reading.counts import is_concave, probes, read_counts
from tests.agreement import counts_follow, has_moments
from tests.models import (
    TwoSidedGeometric,
    as_model,
    posterior,
    refuses,
    route_table,
)

LAPLACE, GAUSS, GEOMETRIC = dp.LaplaceMechanism, dp.GaussianMechanism, dp.GeometricMechanism
PLAIN = Mode(linker="py", optimizer="fast_compile")  # evaluated a few times: not worth compiling


@as_model
def bernoulli(n, statistic, mechanism, z, prior=lambda: pm.Beta("p", 1, 1)):
    x = pm.Bernoulli("x", prior(), shape=n)
    dp.PrivateObservation("z", statistic(x), mechanism, observed=z)


@as_model
def categorical(n, statistic, mechanism, z, cells=4):
    x = pm.Categorical("x", pm.Dirichlet("pi", np.ones(cells)), shape=n)
    dp.PrivateObservation("z", statistic(x), mechanism, observed=z)


def marginal_density(model, mode=PLAIN):
    """Log density of the release on the marginal rung, and its slope, as a function of p."""
    collapsed = dp.collapse(model, "marginal")
    [release] = collapsed.observed_RVs
    logp = pm.logp(release, collapsed.rvs_to_values[release]).sum()
    p = collapsed["p"]
    return pm.compile([p], [logp, pt.grad(logp, p)], mode=mode)


# --- Reading --------------------------------------------------------------------------------------


def histogram(x):
    return [pt.eq(x, k).sum() for k in range(4)]


STATISTICS = {
    "sum": (lambda x: x.sum(), True),
    "mean": (lambda x: x.mean(), True),
    "list": (lambda x: [x.sum(), 3 - 2 * x.mean()], True),
    "histogram": (histogram, True),
    "one-hot": (lambda x: pt.eq(x[:, None], np.arange(4)).sum(0), True),
    "bincount": (lambda x: pt.bincount(x, minlength=4), True),
    "table": (lambda x: pt.eq(x[:, None], np.arange(4)).sum(0).reshape((2, 2)), True),
    "two cells": (lambda x: pt.stack([(x > 1).sum(), (x < 3).sum()]), True),
    "moment": (lambda x: (x**3 - pt.exp(x)).mean(), True),
    "variance": (lambda x: x.var(ddof=1), False),
    "log": (lambda x: pt.log(1 + x.sum()), False),
    "ratio": (lambda x: pt.eq(x, 1).sum() / pt.maximum(pt.eq(x, 2).sum(), 1), False),
    "threshold": (lambda x: pt.switch(x.mean() > 1.2, 1.0, 0.0), False),
    "squares": (lambda x: [x.sum() ** 2, x.sum()], False),
}


@pytest.mark.parametrize("law", ["bernoulli", "categorical"])
@pytest.mark.parametrize("case", STATISTICS)
def test_statistics_are_read_as_functions_of_counts(case, law):
    make, is_affine = STATISTICS[case]
    n, cells = 9, 2 if law == "bernoulli" else 4
    if cells == 2:
        x = pm.Bernoulli.dist(0.4, shape=n)
    else:
        x = pm.Categorical.dist(np.full(4, 0.25), shape=n)
    statistic = make(x)
    statistic = pt.stack(statistic) if isinstance(statistic, list) else statistic
    read = read_counts(statistic, x, n, cells)
    assert (read.affine is not None) == is_affine or cells == 2
    records = np.random.default_rng(5).integers(0, cells, (2, n))
    counts = np.array([np.bincount(r, minlength=cells) for r in records], dtype=float)
    direct = np.array(
        [
            clone_replace(statistic, {x: pt.constant(r)}, rebuild_strict=False).eval(mode=PLAIN)
            for r in records
        ]
    )
    several = read.of(pt.constant(counts)).eval(mode=PLAIN)
    np.testing.assert_allclose(several, direct, rtol=1e-13, atol=1e-13)
    single = read.of(pt.constant(counts[1])).eval(mode=PLAIN)
    assert single.shape == direct[1].shape
    np.testing.assert_allclose(single, direct[1], rtol=1e-13, atol=1e-13)
    if cells == 2:
        binary = read.of_binary(pt.constant(counts[:, 1]), n).eval(mode=PLAIN)
        np.testing.assert_allclose(binary, direct, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize(
    ("statistic", "match"),
    [
        (lambda x: x.max(), "`Max` makes it something else than a function of sums"),
        (lambda x: x[0] ** 2 + x[1], "some of the records by their position"),
        (lambda x: pt.exp(x[:3].sum()), "some of the records by their position"),
        (lambda x: pt.log(x).sum(), "not finite for (records of )?some value"),
        (lambda x: (x > pm.Data("t", 0.5)).sum(), "is computed from 't', .* write numbers"),
        (lambda x: x.sum() + pm.Normal("other"), "mixes the records 'x' with 'other'"),
    ],
)
def test_refuses_what_is_no_function_of_counts(statistic, match):
    with pm.Model() as model:
        x = pm.Bernoulli("x", pm.Beta("p", 1, 1), shape=4)
        s = statistic(x)
        dp.PrivateObservation("z", s, LAPLACE(1.0), observed=np.ones(s.type.shape))
    for to in ("statistics", "marginal"):
        with pytest.raises(NotImplementedError, match=match) as error:
            dp.collapse(model, to)
        assert "'z'" in str(error.value)
        assert "'x'" in str(error.value)


def test_refuses_other_records():
    with pm.Model() as model:
        x = pm.Categorical("x", [[0.5, 0.5], [0.5, 0.5], [0.4, 0.6]], shape=3)
        dp.PrivateObservation("z", x.sum(), LAPLACE(1.0), observed=1.0)
    match = "'x' are not identically distributed|records of 'x' with different parameters"
    refuses(model, match, "marginal", error=Declined)
    model = bernoulli(5, lambda x: x.sum(), LAPLACE(1.0), 2.0)
    with model:
        pm.Normal("x_count")
    match = "already has a variable 'x_count': rename it"
    refuses(model, match, "statistics", error=ValueError)


def test_two_releases_are_for_the_statistics_rung():
    model = bernoulli(5, lambda x: x.sum(), LAPLACE(1.0), 2.0)
    with model:
        dp.PrivateObservation("z2", model["x"].mean(), GAUSS(0.1), observed=0.7)
    refuses(model, r"'x' are released more than once \(in 'z', 'z2'", "marginal")
    collapsed = dp.collapse(model, "statistics")
    point = {"p_logodds__": np.array(0.0), "x_count": np.array(3)}
    logps = collapsed.point_logps(point, round_vals=9)
    assert logps["z"] == pytest.approx(stats.laplace.logpdf(2, 3, 1))
    assert logps["z2"] == pytest.approx(stats.norm.logpdf(0.7, 0.6, 0.1))


def test_table_has_no_marginal():
    model = categorical(20, histogram, LAPLACE(1.0), [3.0, 4, 5, 6])
    refuses(model, "'x' are Categorical: .* Use to='statistics'", "marginal")
    collapsed = dp.collapse(model, "statistics")
    assert collapsed["x_counts"].owner.op.name == "multinomial"
    point = {"pi_simplex__": np.zeros(3), "x_counts": np.array([2, 4, 5, 9])}
    assert collapsed.point_logps(point, round_vals=9)["z"] == pytest.approx(
        stats.laplace.logpdf([3, 4, 5, 6], [2, 4, 5, 9], 1).sum()
    )


@pytest.mark.parametrize("to", ["statistics", "marginal"])
@pytest.mark.by_day("statistics")
def test_nothing_of_size_n_is_allocated(to):
    n = 10**9
    models = [bernoulli(n, lambda x: x.mean(), LAPLACE(1e-8), 0.3)]
    if to == "statistics":
        models.append(bernoulli(n, lambda x: [x.sum(), x.mean()], LAPLACE([3.0, 1e-8]), [3e8, 0.3]))
        models.append(categorical(n, histogram, LAPLACE(3.0), [1e8, 2e8, 3e8, 4e8]))
    for model in models:
        tracemalloc.start()
        collapsed = dp.collapse(model, to)
        logp = collapsed.compile_logp(mode=PLAIN)(collapsed.initial_point())
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert np.isfinite(logp)
        assert peak < 1e8


# --- The rungs agree ------------------------------------------------------------------------------

NOISY = {
    "sum, Laplace": (12, lambda x: x.sum(), LAPLACE(2.0), 9.3),
    "sum, far above": (1, lambda x: x.sum(), LAPLACE(2.0), 500.0),
    "sum, far below": (12, lambda x: x.sum(), GAUSS(2.0), -60.0),
    "sum, tiny noise": (12, lambda x: x.sum(), LAPLACE(1e-3), 9.0),
    "sum, huge noise": (1, lambda x: x.sum(), LAPLACE(1e9), 9.0),
    "geometric": (2, lambda x: x.sum(), TwoSidedGeometric(0.5), 7),
    "zeros, geometric": (2, lambda x: (1 - x).sum() + 1, GEOMETRIC(2.0), 7),
    "multiple, geometric": (2, lambda x: 3 * x.sum() - 5, GEOMETRIC(2.0), 7),
    "multiple, clipped": (12, lambda x: 3 * x.sum() - 5, LAPLACE(2.0).clipped(0, 12), 12.0),
    "clipped": (12, lambda x: x.sum(), LAPLACE(2.0).clipped(0, 12), 12.0),
    "rounded": (12, lambda x: x.sum(), LAPLACE(2.0).rounded(), 8.0),
    "reported": (12, lambda x: x.sum(), dp.RandomizedResponse(0.8).counted(12), 8.0),
    "variance": (12, lambda x: x.var(), LAPLACE(0.05), 0.2),
    "list": (
        12,
        lambda x: [x.sum(), 12 - x.sum(), x.std()],
        LAPLACE([2.0, 1.0, 0.1]),
        [7.0, 5, 0.4],
    ),
    "matrix": (
        12,
        lambda x: pt.stack([x.sum(), 12 - x.sum(), x.mean(), 5 * x.mean()]).reshape((2, 2)),
        GAUSS([2.0, 0.3]),
        [[7.0, 5.0], [0.6, 2.9]],
    ),
}


@pytest.mark.parametrize("case", NOISY)
def test_rungs_agree(case):
    n, statistic, mechanism, z = NOISY[case]
    model = bernoulli(n, statistic, mechanism, z)
    density = marginal_density(model)
    collapsed = dp.collapse(model, "statistics")
    [release] = collapsed.observed_RVs
    terms = pm.logp(release, collapsed.rvs_to_values[release]).sum()
    term = pm.compile([collapsed["x_count"]], terms, mode=PLAIN)
    eta = np.array([term(c) for c in range(n + 1)])
    for p in (1e-6, 0.2, 0.75):
        log_terms = stats.binom.logpmf(np.arange(n + 1), n, p) + eta
        expected = special.logsumexp(log_terms)
        logp, slope = density(p)
        assert logp == pytest.approx(expected, rel=1e-12, abs=1e-12)
        mean = np.exp(log_terms - expected) @ np.arange(n + 1)
        assert slope == pytest.approx((mean - n * p) / (p * (1 - p)), rel=1e-9, abs=1e-6)


def one_count(n, mechanism, p):
    """The release of the sum of n binary records with probability p."""
    model = bernoulli(n, lambda x: x.sum(), mechanism, 0.0)
    release = dp.collapse(model, "marginal")["z"]
    assert isinstance(release.owner.op.law, Pieces)
    own = release.owner.op.split(release.owner.inputs)[1][1]
    return clone_replace(release, {own: p})


@pytest.mark.parametrize("mechanism", [LAPLACE(0.5), LAPLACE(300.0), GAUSS(20.0)], ids=repr)
def test_window_leaves_nothing_out(mechanism):
    n = 4000
    x = pm.Bernoulli.dist(0.3, shape=n)
    statistic = read_counts(x.sum(), x, n, 2)
    p, z = pt.dscalar("p"), pt.dscalar("z")
    listed = integrated_release(OnesAmongRecords(statistic, n, ("c",)), mechanism, p)
    both = [pm.logp(release, z) for release in (listed, one_count(n, mechanism, p))]
    function = pytensor.function([p, z], [*both, *(pt.grad(b, p) for b in both)])
    for p_ in (1e-5, 0.3, 0.9):
        for z_ in (-1e5, 0.0, 1234.4, 3300.0, 1e7):
            whole, part, whole_slope, part_slope = function(p_, z_)
            assert part == pytest.approx(whole, rel=1e-12, abs=1e-11)
            assert part_slope == pytest.approx(whole_slope, rel=1e-8, abs=1e-6)


@pytest.mark.parametrize("n", [10**5, 10**9])
@pytest.mark.by_day("100000")
def test_beyond_the_range_it_is_the_generating_function(n):
    """For z > n, Laplace noise tilts: p(z) = rate / 2 e^(-rate z) (1 - p + p e^rate)^n."""
    p, z, scale = (pt.dscalar(name) for name in ("p", "z", "scale"))
    logp = pm.logp(one_count(n, LAPLACE(1.0).with_parameters(scale), p), z)
    density = pytensor.function([p, z, scale], [logp, pt.grad(logp, p)])
    for rate in (1e-4, 0.5, 2.0):
        for z_ in (n + 3.0, 40.0 * n, -7.0):
            side = 1.0 if z_ > 0 else -1.0
            for p_ in (0.001, 0.4):
                grown = p_ * np.expm1(side * rate)
                expected = np.log(rate / 2) - side * rate * z_ + n * np.log1p(grown)
                found, slope = density(p_, z_, 1 / rate)
                assert found == pytest.approx(expected, rel=1e-13, abs=1e-9)
                assert slope == pytest.approx(n * np.expm1(side * rate) / (1 + grown), rel=1e-9)


def test_log_concavity_is_checked():
    def probe(log_density, n=10**6):
        return is_concave(*probes(n, log_density))

    assert probe(lambda c: -abs(c - 3e5) / 7)
    assert probe(lambda c: -((c - 3e9) ** 2))
    assert probe(lambda c: np.where(c > 17, 0.0, -np.inf))
    assert not probe(lambda c: -np.log1p(((c - 3e5) / 7) ** 2))
    assert not probe(lambda c: -abs(c * (1e6 - c) - 1e11))
    assert not probe(lambda c: np.full(c.shape, np.nan))


def test_long_sums_need_log_concavity():
    for model in (
        bernoulli(10**6, lambda x: x.var(), LAPLACE(0.01), 0.2),
        bernoulli(10**6, lambda x: x.sum(), TwoSidedGeometric(0.1), 3.0),  # does not say so
        bernoulli(10**6, lambda x: [x.sum(), x.mean()], LAPLACE([3.0, 1e-8]), [3e8, 0.3]),
    ):
        refuses(model, "'z' is a sum over 1000001 numbers .* 'x'.* to='statistics'", "marginal")
    for statistic, mechanism in (
        (lambda x: x.sum(), LAPLACE(3.0).clipped(0, 10**6)),
        (lambda x: (1 - x).sum() + 2, GEOMETRIC(3.0)),
        (lambda x: 3 - 2 * x.mean(), LAPLACE(0.1)),
        (lambda x: x.mean(), LAPLACE(0.1).clipped(0, 1)),
    ):
        model = bernoulli(10**6, statistic, mechanism, 0.0)
        assert isinstance(dp.collapse(model, "marginal")["z"].owner.op.law, Pieces)


# --- Reports of single records --------------------------------------------------------------------


def test_reports_of_several_categories():
    mechanism, reports = dp.RandomizedResponse(0.6, 3), np.repeat([2, 0, 1], [5, 3, 4])
    collapsed = dp.collapse(categorical(12, lambda x: x, mechanism, reports, cells=3), "marginal")
    pi = np.array([0.5, 0.3, 0.2])
    q = 0.6 * pi + 0.2 * (1 - pi)
    logp = pm.logp(collapsed["z"], collapsed.rvs_to_values[collapsed["z"]])
    assert logp.eval({collapsed["pi"]: pi}) == pytest.approx(np.log(q[reports]).sum(), rel=1e-13)
    draws = pm.draw(
        clone_replace(collapsed["z"], {collapsed["pi"]: pt.constant(pi)}), 2000, random_seed=3
    )
    assert draws.shape == (2000, 12)
    counts_follow(np.bincount(draws.astype(int).ravel(), minlength=3), q)


@pytest.mark.parametrize("kind", ["constant", "data", "one noise each", "densities"])
def test_reports_are_counted_once_where_they_can_be(kind):
    reports, t = np.repeat([1.0, 0.0], [7, 4]), np.full(11, 0.8)
    with pm.Model() as model:
        x = pm.Bernoulli("x", pm.Beta("p", 1, 1), shape=11)
        if kind == "densities":
            dp.PrivateObservation("z", 2 * x + 1, GAUSS(0.7), observed=reports)
        else:
            dp.PrivateObservation(
                "z",
                x,
                dp.RandomizedResponse(t if kind == "one noise each" else 0.8),
                observed=pm.Data("reports", reports) if kind == "data" else reports,
            )
    logp, slope = marginal_density(model)(0.3)

    def density(p):
        if kind == "densities":
            q = p * stats.norm.pdf(reports, 3, 0.7) + (1 - p) * stats.norm.pdf(reports, 1, 0.7)
        else:
            q1 = p * 0.8 + (1 - p) * 0.2
            q = np.where(reports == 1, q1, 1 - q1)
        return np.log(q).sum()

    assert logp == pytest.approx(density(0.3), rel=1e-13)
    assert slope == pytest.approx((density(0.3 + 1e-6) - density(0.3 - 1e-6)) / 2e-6, rel=1e-7)


def test_reports_of_a_function_of_each_record():
    reports = np.r_[np.ones(100), np.zeros(200)]
    model = categorical(300, lambda x: pt.eq(x, 2), dp.RandomizedResponse(0.75), reports, cells=3)
    collapsed = dp.collapse(model, "marginal")
    q = 0.75 / 3 + 0.25 * 2 / 3
    found = collapsed.point_logps({"pi_simplex__": np.zeros(2)}, round_vals=9)["z"]
    assert found == pytest.approx(100 * np.log(q) + 200 * np.log(1 - q))


def test_reports_have_no_statistics_rung_and_no_second_release():
    reports = np.array([1, 0, 1])
    model = bernoulli(3, lambda x: x, dp.RandomizedResponse(0.8), reports)
    match = "'z' reports every one of the records 'x': .* Use to='marginal'"
    refuses(model, match, "statistics")
    with model:
        dp.PrivateObservation("z2", model["x"].sum(), LAPLACE(1.0), observed=1.0)
    refuses(model, "released more than once", "marginal")


# --- Recovering the counts ------------------------------------------------------------------------


def test_recover_the_counts_behind_reports():
    reports, t = np.repeat([0, 1, 2], [30, 50, 20]), 0.7
    model = categorical(100, lambda x: x, dp.RandomizedResponse(t, 3), reports, cells=3)
    pi = np.array([0.2, 0.5, 0.3])
    idata = posterior(6000, pi=pi)
    found = dp.recover(model, idata, random_seed=2)["posterior"]["x_counts"].values
    assert np.all(found.sum(axis=-1) == 100)
    joint = pi * np.where(np.eye(3), t, (1 - t) / 2)
    chance = joint / joint.sum(axis=1, keepdims=True)
    mean = np.array([30, 50, 20]) @ chance
    sd = np.sqrt(np.array([30, 50, 20]) @ (chance * (1 - chance)))
    has_moments(found, mean, sd)


# --- Routes and rules -----------------------------------------------------------------------------


def test_routes_and_explain():
    reports = bernoulli(5, lambda x: x, dp.RandomizedResponse(0.8), np.array([1, 0, 1, 1, 0]))
    latent = bernoulli(
        50, lambda x: x.sum(), LAPLACE(2.0), 30.0, lambda: pm.math.sigmoid(pm.Normal("b"))
    )
    table = categorical(300, histogram, GAUSS(5.0), [60.0, 80, 70, 90])
    for model, best in (
        (reports, "NUTS on the marginal"),
        (latent, "NUTS on the marginal"),
        (table, "Gibbs on the statistics"),
    ):
        assert max(route_table(model), key=lambda entry: entry[1])[0].name == best
    text = str(dp.explain(table, details=True))
    assert "linear in the counts of x (n = 300)" in text
    assert "CountGibbs" in text
    assert "every one of x (n = 5)" in str(dp.explain(reports, details=True))


def test_inversion_is_the_last_resort(monkeypatch):
    asked = []

    def sum_of_all(records, column, of, releases):
        asked.append((of, records.type.shape[0], [r.name for r in releases]))
        if refuse:
            raise Declined("too hard")
        return pm.Normal.dist(records.owner.inputs[-1].squeeze(), 1.0, shape=2)

    monkeypatch.setattr(rule, "sum_of_all", sum_of_all)
    monkeypatch.setattr(rule, "bulk_trials", lambda release, name: [])
    with pm.Model() as model:
        scale = pm.HalfNormal("scale")
        x = pm.Gamma("x", 2, scale, shape=9)
        sums = [x.clip(0, 3).mean(), (x**2).mean()]
        dp.PrivateObservation("z", sums, LAPLACE(1.0), observed=[0.4, 0.5])
    refuse = False
    collapsed = dp.collapse(model, "marginal")
    assert collapsed["z"].owner.op.name == "normal"
    assert [v.name for v in collapsed.free_RVs] == ["scale"]
    refuse = True
    refuses(model, "not linear in 'x'.*; nor by inversion: too hard", "marginal")
    assert asked == [("x", 9, ["z"])] * 2
    refuses(model, "not linear in 'x'", "statistics")
    table = categorical(20, histogram, LAPLACE(1.0), [3.0, 4, 5, 6])
    refuses(table, "are Categorical", "marginal")
    assert asked[2:] == [("x", 20, ["z"])]  # a sum of whole numbers may be one
