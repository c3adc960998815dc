"""Geweke's test of every compiled chain; see tests/geweke.py. Priors are drawn by NumPy."""

from functools import partial

import numpy as np
import pymc as pm
import pytest
from scipy import special, stats

import pymc_dp as dp
from pymc_dp import step_methods
from pymc_dp.kernels.moments import gaussian_chain as gaussian
from pymc_dp.kernels.records.chains import make_chain
from pymc_dp.kernels.slices import Tuned, advance
from pymc_dp.plugins.regression.kernels import chain as exact
from pymc_dp.plugins.regression.kernels.density import RegressionModel
from pymc_dp.plugins.regression.kernels.walk import turn
from pymc_dp.reading.model import Reading
from pymc_dp.routes import ROUTES, steps_chain
from pymc_dp.routes.gamma_poisson import marginalized
from tests import slices as hierarchy
from tests.binary_records import ONE_GROUP, SCALE, TWO_GROUPS
from tests.conformance import test_geweke as steps
from tests.geweke import check_invariance, normal_records


def named(**arrays):
    """Columns of arrays with one row for each replicate."""
    found = {}
    for name, values in arrays.items():
        flat = np.asarray(values).reshape(len(values), -1)
        found |= {f"{name}[{j}]": column for j, column in enumerate(flat.T)}
    return found


def noise(rng, statistics, laplace, normal):
    """Release statistics: with Laplace noise, or Normal noise, where these scales are positive."""
    z = statistics + laplace * rng.laplace(size=statistics.shape)
    return z + normal * rng.standard_normal(statistics.shape)


# --- Mean and variance of Normal records ----------------------------------------------------------

MU0 = 0.4


def fused(*, laplace=(0.1, 0.05), normal=(0.0, 0.0), has=(True, True), size=10_000, **options):
    rng = np.random.default_rng(1)
    options = {"n": 5, "a0": 3.0, "b0": 0.1, "c0": 0.0, "kappa0": 0.0, "tau0": 0.0} | options
    drawn = 50 * size if options.get("bounded") else size
    before = normal_records(rng, drawn, mu0=MU0, **options)[:size]
    z = noise(rng, before[:, 2:], np.array(laplace), np.array(normal))
    lam, tau = ([1 / x if x else 0.0 for x in scales] for scales in (laplace, normal))
    model = gaussian.GaussianModel(
        n=float(options["n"]),
        mu0=MU0,
        kappa0=options["kappa0"],
        tau0=options["tau0"],
        a0=options["a0"],
        b0=options["b0"],
        c0=options["c0"],
        has_mean=float(has[0]),
        lam_mean=lam[0] * has[0],
        tau_mean=tau[0] ** 2 * has[0],
        z_mean=0.0,
        has_var=float(has[1]),
        lam_var=lam[1] * has[1],
        tau_var=tau[1] ** 2 * has[1],
        z_var=0.0,
        bounded=options.get("bounded", False),
        lo=0.0,
        hi=1.0,
    )
    after, nothing = np.empty_like(before), np.empty((1, 2))
    for t, (z_mean, z_var) in enumerate(z.tolist()):
        given = model._replace(z_mean=z_mean, z_var=z_var)
        after[t] = gaussian.run_sweeps(rng, tuple(before[t].tolist()), given, 1, nothing)
    kept = [True, True, *has]  # a statistic that was not released is no part of the chain
    check_invariance(named(x=before[:, kept]), named(x=after[:, kept]), named(z=z[:, has]))


# --- Regression -----------------------------------------------------------------------------------


def coefficients(rng, size, mean, precision, shape, rate):
    """Draw from a normal-inverse-gamma prior with a diagonal precision."""
    sigma2 = rate / rng.gamma(shape, size=size)
    scale = np.sqrt(sigma2[:, None] / precision)
    return mean + scale * rng.standard_normal((size, len(mean))), sigma2


def covariates(rng, size, mean, cov, hierarchical, kappa, nu):
    """Moments of x: given ones, or normal-inverse-Wishart with `cov` in the place of psi."""
    p = len(mean)
    if not hierarchical:
        return np.tile(mean, (size, 1)), np.tile(cov, (size, 1, 1))
    covs = stats.invwishart(nu, cov).rvs(size, random_state=rng).reshape(size, p, p)
    shift = np.linalg.cholesky(covs) @ rng.standard_normal((size, p, 1)) / np.sqrt(kappa)
    return mean + shift[..., 0], covs


def in_box(sx, sxx, sy, sxy, syy, n, box):
    """Whether sums can come from rows in a box: products of distances from its sides, summed."""
    ax, bx, ay, by = box
    inside = (sx >= n * ax) & (sx <= n * bx) & (sy >= n * ay) & (sy <= n * by)
    inside &= ((ax + bx) * sx - sxx >= n * ax * bx) & ((ay + by) * sy - syy >= n * ay * by)
    for cx, one in ((ax, 1), (bx, -1)):
        for cy, two in ((ay, 1), (by, -1)):
            inside &= one * two * (sxy - cx * sy - cy * sx + n * cx * cy) >= 0
    cxx, cyy, cxy = sxx - sx**2 / n, syy - sy**2 / n, sxy - sx * sy / n
    return inside & (cxx > 0) & (cxx * cyy > cxy**2)


def line_in_box(theta, sigma2, box):
    ax, bx, ay, by = box
    ends = theta[:, :1] + theta[:, 1:] * np.array([ax, bx])
    return (ends.max(1) >= ay) & (ends.min(1) <= by) & (sigma2 <= (by - ay) ** 2 / 4)


MEAN_X, COV_X = np.resize([0.3, -0.5], 9), 0.4 * np.eye(9)
COV_X[:2, :2] = [[0.5, 0.2], [0.2, 0.4]]
MEAN_THETA, PRECISION = np.resize([0.4, 0.8, -0.6], 10), np.resize([2.0, 1.0, 1.5], 10)
BOX = (-0.8, 1.4, -1.0, 1.9)


def exact_regression(
    *, p=1, hierarchical=False, bounded=False, steps=2, repeats=2, size=4_000, intercept=True
):
    """The last released sum has Normal noise; `steps` trajectories beside the ridges.

    The ridges alone hardly move what is known well: they are repeated.
    """
    n = 8 if p < 3 else p + 6
    rng, shape, rate, kappa, nu = np.random.default_rng(1), 4.0, 2.0, 2.0, p + 6.0
    mean_x, cov_x = MEAN_X[:p], COV_X[:p, :p]
    prior = MEAN_THETA[: p + 1], PRECISION[: p + 1], shape, rate
    theta, sigma2 = coefficients(rng, size, *prior)
    if not intercept:
        theta[:, 0] = prior[0][0]
    means, covs = covariates(rng, size, mean_x, cov_x, hierarchical, kappa, nu)
    x = rng.standard_normal((size, n, p)) @ np.linalg.cholesky(covs).transpose(0, 2, 1)
    x += means[:, None]
    y = theta[:, :1] + np.einsum("tnp,tp->tn", x, theta[:, 1:])
    y += np.sqrt(sigma2)[:, None] * rng.standard_normal((size, n))

    rows = np.concatenate([x, y[..., None]], axis=2)
    i, j = np.triu_indices(p + 1)
    products = np.einsum("tni,tnj->tij", rows, rows)[:, i, j]
    sums = np.concatenate([rows.sum(1), products], axis=1)
    apart = rows - rows.mean(1, keepdims=True)
    lower = np.linalg.cholesky(np.einsum("tni,tnj->tij", apart, apart))
    # Of (x, y) together: its last row is that of the slopes, and of the residuals.
    inner, last = lower[:, :p, :p], lower[:, p, :p, None]
    slopes = np.linalg.solve(inner.transpose(0, 2, 1), last)[..., 0]
    factor = inner.copy()
    factor[:, range(p), range(p)] = np.log(factor[:, range(p), range(p)])
    k, m = np.tril_indices(p)
    parts = [x.mean(1), factor[:, k, m], y.mean(1)[:, None], slopes, 2 * np.log(lower[:, p, p:])]
    c = np.concatenate(parts, axis=1)
    if bounded:
        ordered = sums[:, [0, 2, 1, 3, 4]].T
        inside = in_box(*ordered, n, BOX) & line_in_box(theta, sigma2, BOX)
        assert 0.2 < inside.mean() < 0.9
        theta, sigma2, c, sums = (v[inside] for v in (theta, sigma2, c, sums))

    q = sums.shape[1]
    laplace = np.full(q, 2.0)
    normal = np.zeros(q)
    laplace[-1], normal[-1] = 0.0, 3.0
    z = 0.5 + noise(rng, sums, laplace, normal)
    model = RegressionModel(
        n=float(n),
        z=z[0],
        lam=np.divide(1, laplace, where=laplace > 0, out=np.zeros(q)),
        tau=np.divide(1, normal**2, where=normal > 0, out=np.zeros(q)),
        offset=np.full(q, 0.5),
        terms=np.arange(q)[:, None],
        weights=np.ones((q, 1)),
        mean_x=mean_x,
        precision_x=np.linalg.inv(cov_x),
        hierarchical=hierarchical,
        kappa=kappa,
        psi=cov_x.copy(),
        nu=nu,
        mean_theta=prior[0],
        basis=np.ascontiguousarray(np.eye(p + 1)[:, 1 - intercept :]),
        precision=np.diag(prior[1][1 - intercept :]),
        shape=shape,
        rate=rate,
        bounded=bounded,
        box=np.array(BOX),
    )
    width = c.shape[1]
    walk = 0.3 * np.eye(width) + 0.05 * np.tri(width)
    if p > 2:
        walk /= np.sqrt(p)
    shear = 0.02 * rng.standard_normal((p + 1, (p + 1) * (p + 2) // 2))
    proposal, out = (
        exact.Proposal(walk, shear, 2.0, 0.5),
        np.empty((len(c), repeats, p + 2 + width)),
    )
    for t in range(len(c)):
        given, start = model._replace(z=z[t]), (c[t], theta[t], sigma2[t])
        exact.run_sweeps(rng, *start, given, proposal, steps, out[t])
    first, out, last = (
        1 - intercept,
        out[:, -1],
        slice(-15, None),
    )  # of many covariates, some entries
    check_invariance(
        named(theta=theta[:, first:], sigma2=sigma2, c=c[:, last]),
        named(theta=out[:, first : p + 1], sigma2=out[:, p + 1], c=out[:, p + 2 :][:, last]),
        named(z=z[:, last]),
    )


# --- Slices ---------------------------------------------------------------------------------------


def slices(*, columns=hierarchy.EACH, inner=0, anew=0):
    """A hierarchy under Laplace noise, whose statistics are independent or joint."""
    rng = np.random.default_rng(1)
    functions, mixed = (hierarchy.density, hierarchy.noise), hierarchy.MIXED[columns]
    if columns:
        functions = hierarchy.joint_density, hierarchy.joint_noise
    if inner:  # the variances of the noise stay as they are
        functions, mixed = (hierarchy.surrogate, hierarchy.noise), hierarchy.KNOWN
    ends = hierarchy.ENDS[columns]
    if anew:  # theta is integrated out for the parameters
        functions, ends = (hierarchy.standard_density, hierarchy.standard_noise), np.array([3])
    before = hierarchy.prior(rng, 10_000, columns)
    if anew:
        for q in before:
            rest = [hierarchy.given_the_rest(q, j) for j in range(3, 3 + anew)]
            q[3 : 3 + anew] = [
                (x - mean) / np.sqrt(variance)
                for x, (mean, variance) in zip(q[3:], rest, strict=False)
            ]
    after, out = before.copy(), np.empty((1, hierarchy.SIZE))
    directions = np.array([[0.7, 0.3, 0.0], [1.0, 0.0, 0.0], [0.0, 0.6, 0.0], [0.2, 0.0, 2.0]])
    spreads = np.full(hierarchy.SIZE, 0.8)
    bends = np.zeros((4, 3, 3))  # orthogonal to the first direction
    bends[0] = [[0.3, -0.7, -0.1], [-0.15, 0.35, 0.2], [0.03, -0.07, 0.1]]
    tuned = Tuned(directions, bends, np.full(4, 1.5), 0.25 * spreads, spreads)
    kept = [hierarchy.pointer(function) for function in (*functions, hierarchy.correction)]
    moved = [own.function for own in kept]
    for q in after:
        advance(rng, *moved, q, ends, anew, mixed, tuned, 0.0, 1, inner, out)
    names = {"q": slice(3), "theta": slice(3, 6), "w": slice(6, 9)}
    if columns:
        del names["theta"]  # has no part
    if not mixed.first.size:
        del names["w"]
    parts = [named(**{k: x[:, at] for k, at in names.items()}) for x in (before, after)]
    given = {"z": before[:, 9:]} | ({} if mixed.first.size else {"w": before[:, 6:9]})
    check_invariance(*parts, named(**given))


# --- Records --------------------------------------------------------------------------------------


def record_chain(*, groups=1, direct=False, moves=(1, 1), size=10_000):
    """Binary records of a probability whose log odds are Normal; `direct` computes more anew."""
    rng = np.random.default_rng(1)
    run = make_chain(ONE_GROUP if groups == 1 else TWO_GROUPS, direct)
    before, after = np.empty((2, size, 1 + 4 * groups))
    before[:, 0] = rng.standard_normal(size)
    before[:, 1:] = rng.random((size, 4 * groups)) < special.expit(before[:, :1])
    sums = before[:, 1:].reshape(size, groups, 4).sum(axis=2)
    z = sums + SCALE * rng.laplace(size=sums.shape)
    axes, scales, turns = np.eye(1), np.full((2, 1), 1.2), np.zeros(2, np.int64)
    seen, counts, out = np.zeros((groups, 3)), np.array([1, *moves]), np.empty((1, 1 + groups))
    for t in range(size):
        records = tuple((x,) for x in before[t, 1:].astype(np.int64).reshape(groups, 4))
        env = tuple((x,) for x in z[t, :, None])
        if groups == 1:
            [records], [env] = records, env
        how = axes, scales, counts, turns, seen, out
        records, theta, *_ = run(rng, records, before[t, :1].copy(), env, *how)
        after[t] = [*theta, *np.ravel(records)]
    check_invariance(named(q=before), named(q=after), named(z=z))


# --- Steps ----------------------------------------------------------------------------------------


def without_rates(rng, size):
    natural, given = steps.draw_levels(rng, size)
    del natural["rate"]
    return natural, given


def steps_in_a_loop(*, build, prior=None, size=4_000, chosen=None):  # a step, its variables
    """All that steps draw and move, once; the release is a pm.Data, so that it is one loop."""
    with pm.Model() as model:
        build()
    if prior is without_rates:
        model = marginalized(Reading(model))[0].model
    if prior is steps.draw_bounded_statistics:
        model = dp.collapse(model, "statistics")
    rng = np.random.default_rng(2)
    if prior is None:
        before, given = steps.draw_all(model, size)
    else:
        before, given = prior(rng, size)
        before = steps.values_of(model, before)
    with pytest.MonkeyPatch.context() as patch:
        if chosen is not None:
            claimed = [(chosen[0], [model[name] for name in chosen[1]])]
            for module in (step_methods, steps_chain):
                patch.setattr(module, "claimed_steps", lambda reading: claimed)
        chain = steps_chain.StepsChain(Reading(model))
    loop, state = chain.loop, chain.begun(rng)
    after = {name: [] for name in before}
    data = dict(zip(given, model.data_vars, strict=True))  # one for each release, in their order
    for t in range(len(next(iter(before.values())))):
        for name, shared in data.items():
            shared.set_value(given[name][t].astype(shared.dtype), borrow=True)
        state.q = loop.theta({name: values[t] for name, values in before.items()})
        state.data = loop.read_data()
        chain.run(rng, state, 1)
        for name, value in loop.moved(state.q).items():
            after[name].append(value)
    after = {name: np.array(values) for name, values in after.items()}
    steps.compare(before, after, list(before), given)


def looped(build, prior=None, **options):
    return steps_in_a_loop, {"build": build, "prior": prior} | options


NOISE = dp.LaplaceMechanism(1.0)
# By the name of the route.
CHAINS = {
    "steps in one loop": {
        "not conjugate": looped(steps.logit_count, steps.draw_logit_count),
        "binomial": looped(
            partial(steps.binomial_count, dp.GeometricMechanism(2.0)), steps.draw_binomial_count
        ),
        "multinomial": looped(
            partial(steps.multinomial_count, NOISE, lambda k: [k[0] + 2 * k[1], k[2]]),
            steps.draw_multinomial_count,
        ),
        "multinomial, marginals": looped(
            partial(steps.multinomial_count, NOISE, lambda k: [k[0] + k[1], k[1] + k[2]])
        ),
        "table": looped(steps.softmax_table, size=3_000, chosen=(dp.TableGibbs, "y")),
        "Poisson tables": looped(partial(steps.poisson_tables, 2)),
        "negative binomial tables": looped(partial(steps.negative_binomial_tables, 2)),
        "mean of Poisson counts": looped(
            steps.mean_of_poisson_counts, steps.draw_mean_of_poisson_counts
        ),
    },
    "steps in one loop, on the counts": {"levels": looped(steps.levels, steps.draw_levels)},
    "steps in one loop, rates integrated out": {"levels": looped(steps.levels, without_rates)},
    "steps in one loop, on the statistics": {
        "bounded": looped(steps.bounded_moments, steps.draw_bounded_statistics)
    },
    "records in one loop": {
        "both moves": (record_chain, {}),
        "with the records": (record_chain, {"moves": (2, 0)}),
        "given the records": (record_chain, {"moves": (0, 2), "direct": True}),
        "two groups": (record_chain, {"groups": 2}),
        "two groups, with the records": (record_chain, {"groups": 2, "moves": (2, 0)}),
        "two groups, given the records": (
            record_chain, {"groups": 2, "moves": (0, 2), "direct": True}
        ),
    },
    "fused Gibbs": {
        "Laplace": (fused, {"tau0": 11.0}),
        "Gaussian": (fused, {"tau0": 11.0, "laplace": (0, 0), "normal": (0.1, 0.05)}),
        "normal-inverse-gamma": (fused, {"kappa0": 0.7}),
        "bounded": (fused, {"tau0": 11.0, "b0": 0.5, "bounded": True}),
        "bounded, normal-inverse-gamma": (fused, {"kappa0": 0.7, "b0": 0.5, "bounded": True}),
        "half-normal": (
            fused, {"tau0": 2.0, "a0": -0.5, "b0": 0.0, "c0": 3.0, "laplace": (0.3, 0.3)}
        ),
        "only a mean": (fused, {"tau0": 11.0, "has": (True, False)}),
        "only a variance": (fused, {"kappa0": 0.7, "has": (False, True)}),
    },
    "slices on the marginal": {
        "levels": (slices, {}),
        "joint": (slices, {"columns": hierarchy.JOINT}),
        "anew": (slices, {"anew": hierarchy.J}),
        "surrogate": (slices, {"inner": 2}),
    },
    "exact regression": {
        "walk": (exact_regression, {}),
        "ridges": (exact_regression, {"steps": 0, "repeats": 20}),
        "bounded": (exact_regression, {"bounded": True}),
        "hierarchical": (exact_regression, {"hierarchical": True}),
        "two covariates": (exact_regression, {"p": 2, "hierarchical": True}),
        "four covariates": (exact_regression, {"p": 4, "repeats": 10}),
        "nine covariates": (exact_regression, {"p": 9, "hierarchical": True, "repeats": 10}),
        "no intercept": (exact_regression, {"p": 2, "intercept": False}),
        "two covariates, ridges": (exact_regression, {"p": 2, "steps": 0, "repeats": 20}),
    },
}  # fmt: skip
CASES = {f"{route}: {case}": run for route, of in CHAINS.items() for case, run in of.items()}


def test_every_chain_has_a_case():
    """A route that takes arguments of its own runs chains of a kernel; the others, of steps."""
    assert {route.name for route in ROUTES if route.arguments} == set(CHAINS)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.by_day(
    "steps in one loop, on the counts: levels",
    "steps in one loop, rates integrated out: levels",
    "steps in one loop: not conjugate",
    "steps in one loop: binomial",
    "steps in one loop: multinomial",
    "steps in one loop: multinomial, marginals",
    "steps in one loop: table",
    "steps in one loop, on the statistics: bounded",
    "records in one loop: both moves",
    "records in one loop: with the records",
    "records in one loop: given the records",
    "records in one loop: two groups",
    "slices on the marginal: levels",
    "slices on the marginal: joint",
    "slices on the marginal: anew",
    "slices on the marginal: surrogate",
    "fused Gibbs: Laplace",
    "fused Gibbs: bounded, normal-inverse-gamma",
    "fused Gibbs: half-normal",
    "exact regression: walk",
    "exact regression: ridges",
    "exact regression: two covariates, ridges",
)
def test_chains_leave_the_joint_law_alone(case):
    run, options = CASES[case]
    run(**options)


def test_turns_are_as_probable_back_as_forth():
    rng = np.random.default_rng(1)
    before = rng.standard_normal((20_000, 3))
    before[:, -1] = abs(before[:, -1])
    after = before.copy()
    for row in after:
        turn(rng, row)
    there, back = named(old=before, new=after), named(old=after, new=before)
    check_invariance(there, back, {})
