"""Sums over records whose law is made of others, and over records that are never built."""

import arviz_base as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import integrate, special, stats

import pymc_dp as dp
from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.values import plain_function

MEAN, PSI = 0.4, 0.35
GAUSSIAN, LAPLACE = dp.GaussianMechanism(1.5), dp.LaplaceMechanism(2.0)
Z = np.array([7.3, 2.1])
U = np.linspace(0.0, 6.0, 801)
GRID = np.linspace(-30.0, 60.0, 1_801)


def uncut(law, low, high):
    """Characteristic function of a clamped record."""
    inner = GRID[(low < GRID) & (high > GRID)]
    edges = np.unique(np.r_[low, inner, high].clip(GRID[0], GRID[-1]))
    x, w = np.polynomial.legendre.leggauss(4)
    at = edges[:-1, None] + np.diff(edges)[:, None] * (x + 1) / 2
    mass = (law.pdf(at) * w / 2 * np.diff(edges)[:, None]).ravel()
    found = np.exp(1j * np.outer(U, at.ravel())) @ mass
    for end, own in ((low, law.cdf(low)), (high, law.sf(high))):
        found += own * np.exp(1j * U * end) if np.isfinite(end) else 0.0
    return found


def density(phi, n, z):
    """Of a sum of n records under the Gaussian noise."""
    value = (phi**n * np.exp(-0.5 * (1.5 * U) ** 2 - 1j * U * z)).real
    return np.log(max(integrate.simpson(value, dx=U[1]) / np.pi, 1e-300))


GAMMA, FIRST, SECOND = stats.gamma(2.0), stats.norm(MEAN, 1.0), stats.norm(3.0, 0.5)
# The law of a record, and the characteristic function of one that is clamped to an interval.
LAWS = {
    "hurdle": (
        lambda m: pm.HurdleGamma.dist(PSI, 2.0, 1.0 + 0 * m),
        lambda *ends: 1 - PSI + PSI * uncut(GAMMA, *ends),
    ),
    "mixture": (
        lambda m: pm.Mixture.dist([PSI, 1 - PSI], [pm.Gamma.dist(2.0, 1.0), pm.Normal.dist(m, 1)]),
        lambda *ends: PSI * uncut(GAMMA, *ends) + (1 - PSI) * uncut(FIRST, *ends),
    ),
    "normal mixture": (
        lambda m: pm.NormalMixture.dist([PSI, 1 - PSI], [m, 3.0], sigma=[1.0, 0.5]),
        lambda *ends: PSI * uncut(FIRST, *ends) + (1 - PSI) * uncut(SECOND, *ends),
    ),
    "censored": (
        lambda m: pm.Censored.dist(pm.Normal.dist(m, 1), 0.0, None),
        lambda low, high: uncut(FIRST, max(low, 0.0), high),
    ),
}
ENDS = {"clamped": (0.0, 4.0), "as they are": (-np.inf, np.inf)}
N = np.arange(80)


def marginal(model):
    collapsed = dp.collapse(model, "marginal")
    logp = collapsed.logp(collapsed.observed_RVs)
    return float(plain_function(collapsed.value_vars, logp)(MEAN))


@pytest.mark.filterwarnings("ignore:No safe default transform")
@pytest.mark.parametrize("ends", ENDS)
@pytest.mark.parametrize("law", LAWS)
def test_laws_made_of_others(law, ends):
    """By groups of known size; of unknown size with a count beside."""
    record, phi = LAWS[law]
    low, high = ENDS[ends]
    phi = phi(low, high)
    of = (lambda x: x.clip(low, high)) if ends == "clamped" else None
    sizes = np.array([9, 14])
    with pm.Model() as known:
        sums = dp.RecordSums("s", record(pm.Normal("m")), sizes, of=of)
        dp.PrivateObservation("z", sums, GAUSSIAN, observed=Z)
    each = [density(phi, n, z) for n, z in zip(sizes, Z, strict=True)]
    assert marginal(known) == pytest.approx(sum(each), abs=1e-8)
    with pm.Model() as unknown:
        n = pm.Poisson("n", [11.0, 6.0])
        sums = dp.RecordSums("s", record(pm.Normal("m")), n, of=of)
        dp.PrivateObservation("count", n, LAPLACE, observed=[8.2, 7.7])
        dp.PrivateObservation("z", sums - 0.5 * n, GAUSSIAN, observed=Z)
    total = 0.0
    for rate, count, z in zip([11.0, 6.0], [8.2, 7.7], Z, strict=True):
        weight = stats.poisson.logpmf(N, rate) + stats.laplace.logpdf(count, N, 2.0)
        of_each = [density(phi * np.exp(-0.5j * U), n, z) for n in N]
        total += special.logsumexp(weight + of_each)
    assert marginal(unknown) == pytest.approx(total, abs=1e-8)


def test_lists_and_sums_that_are_never_built_are_the_same():
    found = []
    for as_list in (True, False):
        with pm.Model() as model:
            theta, n = pm.Normal("theta", shape=2), pm.Poisson("n", [9.0, 4.0])
            if as_list:
                x = [pm.Normal(f"x{j}", theta[j], 2.0, shape=n[j]) for j in range(2)]
                mean = pm.math.stack([v.mean() for v in x])
            else:
                mean = dp.RecordSums("s", pm.Normal.dist(theta, 2.0), n) / n
            dp.PrivateObservation("c", n, LAPLACE, observed=[8.2, 7.7])
            dp.PrivateObservation("z", mean, LAPLACE, observed=[0.3, -0.1])
        collapsed = dp.collapse(model, "marginal")
        logp = plain_function(collapsed.value_vars, collapsed.logp())
        found.append(logp(np.array([0.4, 0.1])))
    np.testing.assert_allclose(*found, rtol=1e-12)


def test_vectors_of_some_numbers_in_any_order():
    """Each has the parameters, and the name in results, of its own number."""
    law = lambda name, mu, n: pm.Censored(name, pm.Normal.dist(mu, 1.0), 0.0, None, shape=n)  # noqa: E731
    with pm.Model() as model:
        mu, n = pm.Normal("mu", [0.0, 5.0, 50.0], 0.1), pm.Poisson("n", [9.0, 30.0, 90.0])
        last, middle = law("last", mu[2], n[2]), law("middle", mu[1], n[1])
        dp.PrivateObservation("c", n, LAPLACE, observed=[9.0, 30.0, 90.0])
        total = pt.stack([middle.sum(), last.sum()])
        dp.PrivateObservation("z", total, LAPLACE, observed=[150.0, 4500.0])
    at = np.array([0.0, 5.0, 50.0])
    draws = {"mu": np.broadcast_to(at, (1, 50, 3))}
    found = dp.recover(model, az.from_dict({"posterior": draws}), random_seed=1)["posterior"]
    np.testing.assert_allclose(found["n"].mean(("chain", "draw")), [9, 30, 90], atol=2.0)
    for name, value in (("middle_sum", 150.0), ("last_sum", 4500.0)):
        assert float(found[name].mean()) == pytest.approx(value, abs=4.0)


@pytest.mark.parametrize("mechanism", [LAPLACE, GAUSSIAN], ids=["laplace", "gaussian"])
def test_none_few_and_many_records(mechanism):
    """By inversion as in closed form, of known numbers and of others."""
    found = []
    for of in (None, lambda x: x.clip(-1.0, 60.0)):
        with pm.Model() as model:
            rate = pm.LogNormal("rate", shape=5)
            record = pm.Exponential.dist(rate)
            known = dp.RecordSums("known", record, [0, 1, 3, 8, 10**9], of=of)
            value = [0.3, 2.1, -1.2, 30.0, 1.6e9]
            dp.PrivateObservation("z", known, mechanism, observed=value)
            record = pm.Exponential.dist(rate[:2])
            few = dp.RecordSums("few", record, pm.DiscreteUniform("n", 0, 6, shape=2), of=of)
            dp.PrivateObservation("w", few, mechanism, observed=[0.0, 7.7])
        collapsed = dp.collapse(model, "marginal")
        logp = collapsed.logp()
        both = plain_function(collapsed.value_vars, [logp, *pt.grad(logp, collapsed.value_vars)])
        found.append(np.hstack(both(np.array([0.1, -0.4, 0.3, -0.2, -0.5]))))
    np.testing.assert_allclose(*found, rtol=1e-7)


def of_two_laws(n):
    laws = pm.Normal.dist(0, 1), pm.Gumbel.dist(0, 1)
    pair = [pm.Censored(f"x{j}", law, 0, 5, shape=n[j]) for j, law in enumerate(laws)]
    return pt.stack([x.sum() for x in pair])


BAD = {  # what is written, and what is said
    "no law": (lambda n: dp.RecordSums("s", 3.0, n), TypeError, "no univariate distribution"),
    "a law of vectors": (
        lambda n: dp.RecordSums("s", pm.Dirichlet.dist([1, 1]), n), TypeError, "no univariate",
    ),
    "half a record": (
        lambda n: dp.RecordSums("s", pm.Normal.dist(), 2.5), TypeError, "whole numbers",
    ),
    "fewer than none": (lambda n: dp.RecordSums("s", pm.Normal.dist(), -1), ValueError, ">= 0"),
    "sums of sums": (
        lambda n: dp.RecordSums("s", pm.Normal.dist(shape=2), n, of=lambda x: x.sum()),
        TypeError, "one value from each record",
    ),
    "another variable": (
        lambda n: dp.RecordSums("s", pm.Normal.dist(), n, of=lambda x: x.clip(0, pm.Normal.dist())),
        TypeError, "of= may use its argument and numbers only",
    ),
    "twice as many": (
        lambda n: dp.RecordSums("s", pm.Normal.dist(), 2 * n), Declined, "are computed from 'n'",
    ),
    "several laws": (of_two_laws, Declined, "'x0' and 'x1' follow several laws"),
    "sums of all groups": (
        lambda n: dp.RecordSums("s", pm.Normal.dist(), n).sum(), Declined, "several groups",
    ),
    "ranks": (
        lambda n: dp.RecordSums("s", pm.Normal.dist(), n, of=lambda x: x[::-1] + x),
        TypeError, "one value from each record",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_what_is_miswritten_is_told_by_name(case):
    written, error, match = BAD[case]

    def build():
        with pm.Model() as model:
            n = pm.Poisson("n", [9.0, 4.0])
            released = written(n)
            observed = np.ones(released.type.shape)
            dp.PrivateObservation("z", released, GAUSSIAN, observed=observed)
        dp.collapse(model, "marginal")

    with pytest.raises(error, match=match):
        build()


def beside(of):
    """A Bernoulli record beside, which the free variable gives its probability."""

    def write(psi, n):
        b, x = pm.Bernoulli("b", psi, shape=n), pm.Gamma("x", 2.0, 1.0, shape=n)
        return of(b, x).sum()

    return write


def of_three(psi, n):
    c = pm.Categorical("c", [0.5 - psi, 0.5, psi], shape=n)
    return pt.switch(pt.eq(c, 2), pm.Gamma("x", 2.0, 1.0, shape=n), 1.5).clip(0, 4).sum()


def part_of(of):
    def write(psi, n):
        return of(pm.Gamma("x", 2.0, 1.0, shape=pm.Binomial("k", n, psi)))

    return write


# What is summed, to which what counts is clamped, and what others add.
SELECTED = {
    "times": (beside(lambda b, x: (b * x).clip(0, 4)), 0.0, 0.0),
    "times, the other way": (beside(lambda b, x: pt.minimum(x * b, 4)), 0.0, 0.0),
    "switch": (beside(lambda b, x: pt.switch(b, x, 0).clip(0, 4)), 0.0, 0.0),
    "more than nothing": (beside(lambda b, x: b * x.clip(1, 4)), 1.0, 0.0),
    "a class of three": (of_three, 0.0, 1.5),
    "a Binomial part": (part_of(lambda x: x.clip(0, 4).sum()), 0.0, 0.0),
    "one that adds something": (part_of(lambda x: x.clip(1, 4).sum()), 1.0, 0.0),
}


def selected(write, n, mechanism, value=7.3):
    with pm.Model() as model:
        if n is None:
            n = pm.Poisson("n", 11.0)
            dp.PrivateObservation("count", n, LAPLACE, observed=8.2)
        dp.PrivateObservation("z", write(pm.Normal("psi"), n), mechanism, observed=value)
    return model


@pytest.mark.parametrize("case", SELECTED)
def test_records_that_others_select(case):
    write, low, other = SELECTED[case]
    phi = (1 - MEAN) * np.exp(1j * U * other) + MEAN * uncut(GAMMA, low, 4.0)
    assert marginal(selected(write, 9, GAUSSIAN)) == pytest.approx(density(phi, 9, 7.3), abs=1e-8)
    weight = stats.poisson.logpmf(N, 11.0) + stats.laplace.logpdf(8.2, N, 2.0)
    total = special.logsumexp(weight + [density(phi, n, 7.3) for n in N])
    assert marginal(selected(write, None, GAUSSIAN)) == pytest.approx(total, abs=1e-8)


@pytest.mark.filterwarnings("ignore:No safe default transform")
def test_selected_records_may_have_atoms():
    """Wherever these are."""

    def moved(by):
        def write(psi, n):
            x = pm.Censored("x", pm.Normal.dist(by, 1.0), by - 1.0, by + 4.0, shape=n)
            return pt.switch(pm.Bernoulli("b", psi, shape=n), x - by + 3.0, 0.5).sum()

        return marginal(selected(write, 9, GAUSSIAN, 14.0))

    assert moved(0.0) == pytest.approx(moved(10.0), abs=1e-9)


@pytest.mark.filterwarnings("ignore:No safe default transform")
def test_selected_records_are_those_of_a_hurdle():
    """By groups of unknown numbers, of many records, and drawn."""

    def hurdle(psi, n):
        return pm.HurdleGamma("x", psi, 2.0, 1.0, shape=n).clip(0, 4).sum()

    times, part = SELECTED["times"][0], SELECTED["a Binomial part"][0]
    many = [marginal(selected(w, 30_000, LAPLACE, 22e3)) for w in (hurdle, times, part)]
    np.testing.assert_allclose(many, many[0], rtol=1e-10)
    found = []
    for kind in ("hurdle", "beside", "part"):
        with pm.Model() as model:
            psi, n, sums = pm.Normal("psi"), pm.Poisson("n", [9.0, 30.0]), []
            k = pm.Binomial("k", n, psi) if kind == "part" else n
            for j in range(2):
                if kind == "hurdle":
                    x = pm.HurdleGamma(f"x{j}", psi, 2.0, 1.0 + j, shape=n[j])
                else:
                    x = pm.Gamma(f"x{j}", 2.0, 1.0 + j, shape=k[j])
                b = pm.Bernoulli(f"b{j}", psi, shape=n[j]) if kind == "beside" else 1
                sums.append((b * x).clip(0, 4).sum())
            dp.PrivateObservation("c", n, LAPLACE, observed=[9.0, 31.0])
            dp.PrivateObservation("z", pt.stack(sums), LAPLACE, observed=[7.7, 20.3])
        found.append(marginal(model))
    np.testing.assert_allclose(found, found[0], rtol=1e-10)


@pytest.mark.nightly
@pytest.mark.parametrize("case", ["times", "a Binomial part"])
def test_selected_records_are_recovered(case):
    """Their number, and their sum; not how many there are of which kind."""
    draws = az.from_dict({"posterior": {"psi": np.full((1, 2_000), MEAN)}})
    model = selected(SELECTED[case][0], None, GAUSSIAN)
    found = dp.recover(model, draws, random_seed=1)["posterior"]
    assert {*found.data_vars} == {"psi", "n", "z_confidential"}
    weight = stats.poisson.logpmf(N, 11.0) + stats.laplace.logpdf(8.2, N, 2.0)
    phi = 1 - MEAN + MEAN * uncut(GAMMA, 0.0, 4.0)
    chance = special.softmax(weight + [density(phi, n, 7.3) for n in N])
    assert float(found["n"].mean()) == pytest.approx(chance @ N, abs=0.3)


NOT_SELECTED = {
    "two functions": (beside(lambda b, x: pt.switch(b, x, 2 * x)), "several functions of 'x'"),
    "those that do not count": (
        beside(lambda b, x: b * x + x), "'z' depends on 'x' beside the sum over records that count",
    ),
    "how many": (beside(lambda b, x: (b * x).sum() + b), "'z' depends on 'b' beside the sum"),
    "a mean of some": (part_of(lambda x: x.mean()), "'z' depends on 'x' beside the sum"),
}  # fmt: skip


@pytest.mark.parametrize("case", NOT_SELECTED)
def test_what_is_not_selected_is_told_by_name(case):
    write, match = NOT_SELECTED[case]
    with pytest.raises(Declined, match=match):
        dp.collapse(selected(write, None, LAPLACE))
