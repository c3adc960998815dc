"""Sums of groups of rows, against Normal and Wishart laws and integrals over the records."""

import itertools
import math

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.replace import vectorize_graph
from scipy import stats

import pymc_dp as dp
from pymc_dp.graphs.values import PLAIN_MODE as PLAIN
from pymc_dp.ladder.collapse import collapsible
from pymc_dp.laws.sum_law import notes
from pymc_dp.reading.model import Reading, release_statistic
from tests.agreement import has_moments
from tests.models import as_model, refuses, route_table

RNG = np.random.default_rng(5)
SIZES = np.array([5, 9])
G = RNG.permutation(np.repeat([0, 1], SIZES))
M = (np.arange(2)[:, None] == G).astype("float64")
Z = RNG.normal(size=(5, 2)) + 4.0
DATA = RNG.normal(0.5, 1.0, size=G.size), RNG.normal(1.0, 0.8, size=G.size)
SUMS = np.array([M @ p for p in (DATA[0], DATA[1], DATA[0] ** 2, DATA[0] * DATA[1], DATA[1] ** 2)])
NUTS = "NUTS on the statistics"


def rows(*, d=1, shared=False, groups=G, mean_of_x=None):
    """Return x and y, a regression in each group."""
    k, n = int(groups.max()) + 1, groups.size
    a, s = pm.Normal("a", shape=k), pm.HalfNormal("s", shape=k)
    b = pm.Normal("b", shape=(d,) if shared else (k, d))
    mx = pm.Normal("mx", shape=k)[groups] if mean_of_x is None else mean_of_x
    if d == 1:
        x = pm.Normal("x", mx, 0.7, shape=n)
        mean = a[groups] + (b[0] if shared else b[groups, 0]) * x
    else:
        x = pm.Normal("x", mx[:, None], [0.7, 1.2], shape=(n, d))
        mean = a[groups] + (x @ b if shared else (x * b[groups]).sum(axis=1))
    return x, pm.Normal("y", mean, s[groups], shape=n)


def products(x, y):
    return [x, y, x**2, x * y, y**2]


def released(name, statistic, value, scale=1.5):
    dp.PrivateObservation(name, statistic, dp.GaussianMechanism(scale), observed=value)


@as_model
def by_matrix(**options):
    for k, p in enumerate(products(*rows(**options))):
        released(f"z{k}", pt.dot(M, p), Z[k])


@as_model
def stacked(**options):
    released("z", pt.concatenate([pt.dot(M, p) for p in products(*rows(**options))]), Z.ravel())


@as_model
def by_index(**options):
    x, y = rows(**options)
    own = [[p.sum() for p in products(x[j == G], y[j == G])] for j in range(2)]
    released("z", pt.stack([pt.stack(row) for row in own], axis=1), Z)


@as_model
def apart(**options):
    x, y = rows(**options)
    for j, k in itertools.product(range(2), range(5)):
        released(f"z{j}{k}", products(x[j == G], y[j == G])[k].sum(), Z[k, j])


@as_model
def in_deviations(**options):
    """The same from means and central sums, which are no linear functions of sums."""
    x, y = rows(**options)
    for j in range(2):
        u, v, n = x[j == G], y[j == G], SIZES[j]
        du, dv, mu, mv = u - u.mean(), v - v.mean(), u.mean(), v.mean()
        second = [(du**2).sum() + n * mu**2, (du * dv).sum() + n * mu * mv]
        own = [u.sum(), v.sum(), *second, (dv**2).sum() + n * mv**2]
        released(f"z{j}", pt.stack(own), Z[:, j])


@as_model
def by_the_whole(**options):
    """With both groups together in an entry: of the latents all are one block."""
    for k, p in enumerate(products(*rows(**options))):
        released(f"z{k}", pt.stack([pt.dot(M, p)[0], p.sum()]), [Z[k, 0], Z[k].sum()])


@as_model
def one_variable():
    """Two columns of one variable, with a mean by group."""
    mean, root = pm.Normal("m", shape=(2, 2)), np.array([[0.9, 0.0], [0.5, 0.4]])
    x = pm.MvNormal("x", mean[G], chol=root, shape=(G.size, 2))
    for k, p in enumerate(products(x[:, 0], x[:, 1])):
        released(f"z{k}", pt.dot(M, p), Z[k])


@as_model
def three_columns(**options):
    x, y = rows(d=2, **options)
    columns = [x[:, 0], x[:, 1], y]
    pairs = [columns[i] * columns[j] for i, j in zip(*np.triu_indices(3), strict=True)]
    released("z", pt.stack([pt.dot(M, p) for p in (*columns, *pairs)]), np.full((9, 2), 2.0))


def evaluated(model, graphs, point):
    """Evaluate what is written in a model's variables at values of these."""
    values = model.value_vars
    graphs = model.replace_rvs_by_values(graphs)
    return pytensor.function(values, graphs, mode=PLAIN)(*(point[v.name] for v in values))


def a_point(model):
    return {k: v + RNG.normal(size=v.shape) * 0.3 for k, v in model.initial_point().items()}


def law_of_groups(point):
    """Return mean and covariance matrix of the rows of each group."""
    found = []
    for j in range(2):
        if "m" in point:
            root = np.array([[0.9, 0.0], [0.5, 0.4]])
            found.append((point["m"][j], root @ root.T))
            continue
        b = point["b"] if len(point["b"].shape) == 1 else point["b"][j]
        sd = np.array([0.7, 1.2])[: b.size]
        mean, cov = np.full(b.size, point["mx"][j]), np.diag(sd**2)
        variance = np.exp(2 * point["s_log__"][j]) + b @ cov @ b
        cov = np.block([[cov, (cov @ b)[:, None]], [cov @ b, variance]])
        found.append((np.append(mean, point["a"][j] + b @ mean), cov))
    return found


def statistics_of(model):
    """Return the variables of the groups' means, covariance matrices and latents."""
    return [
        next(v for v in model.named_vars.values() if v.name.endswith(end))
        for end in ("_mean", "_cov", "_sums_standard")
    ]


@pytest.mark.parametrize(
    ("build", "options"),
    [
        (by_matrix, {}),
        (by_matrix, {"shared": True}),
        (by_the_whole, {}),
        (one_variable, {}),
        (three_columns, {}),
        (three_columns, {"shared": True}),
    ],
)
def test_means_are_normal_and_scatter_matrices_wishart(build, options):
    """The density of the coordinates that are sampled, against that of the statistics."""
    model = dp.collapse(build(**options), "statistics")
    mean, cov, latents = statistics_of(model)
    value = model.rvs_to_values[latents]
    i, j = np.tril_indices(cov.type.shape[-1])
    entries = pt.concatenate([mean, cov[:, i, j]], axis=1).ravel()
    [entries] = model.replace_rvs_by_values([entries])
    rows = [pytensor.grad(entries[k], value).ravel() for k in range(entries.type.shape[0])]
    [density] = model.logp(vars=[latents], jacobian=True, sum=False)
    point = a_point(model)
    found, m, c, slopes = evaluated(model, [density.sum(), mean, cov, pt.stack(rows)], point)
    expected = np.linalg.slogdet(slopes)[1]
    for n, own, scatter, (mu, sigma) in zip(SIZES, m, c, law_of_groups(point), strict=True):
        expected += stats.multivariate_normal(mu, sigma / n).logpdf(own)
        expected += stats.wishart(n - 1, sigma / (n - 1)).logpdf(scatter)
    assert found == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize(
    "build", [by_matrix, stacked, by_index, apart, in_deviations, by_the_whole, three_columns]
)
def test_what_was_released_is_of_the_sums_of_each_group(build):
    model = dp.collapse(build(), "statistics")
    mean, cov, _ = statistics_of(model)
    names = sorted(rv.name for rv in model.observed_RVs)
    found = [release_statistic(model[name]) for name in names]
    m, c, *found = evaluated(model, [mean, cov, *found], a_point(model))
    i, j = np.triu_indices(m.shape[1])
    second = (SIZES - 1) * c[:, i, j].T + SIZES * m[:, i].T * m[:, j].T
    sums = np.concatenate([SIZES * m.T, second])
    match build:
        case by if by is in_deviations or by is apart:
            expected = sums.T
        case by if by is by_the_whole:
            expected = np.stack([sums[:, 0], sums.sum(axis=1)], axis=1)
        case _:
            expected = sums
    np.testing.assert_allclose(
        np.concatenate([f.ravel() for f in found]), expected.ravel(), rtol=1e-9
    )


@pytest.mark.parametrize("noise", [1e-4, 1.5, 1e4])
def test_latents_are_near_what_was_released(noise):
    """At every scale of the noise the start is where the release says, in standard coordinates."""

    @as_model
    def build():
        x, y = rows()
        for k, p in enumerate(products(x, y)):
            released(f"z{k}", pt.dot(M, p), SUMS[k], noise)

    model = dp.collapse(build(), "statistics")
    found = [release_statistic(model[f"z{k}"]) for k in range(5)]
    found = np.array(evaluated(model, found, model.initial_point()))
    if noise < 1:
        assert np.abs(found - SUMS).max() < 0.01
    [latents] = [rv for rv in model.free_RVs if rv.name.endswith("_standard")]
    _, _, root = latents.owner.inputs
    scale = np.linalg.norm(np.linalg.inv(root.eval()), axis=1)
    assert scale.shape == (2, 5)
    assert np.all(scale < 1e-3) if noise < 1 else np.all(scale <= 1.0)


# --- Integrals over the records -----------------------------------------------------------------

FEW = np.repeat([0, 1, 2, 3], [1, 2, 3, 8])
MEAN, COV = np.array([0.3, 0.1]), np.array([[0.49, 0.35], [0.35, 0.61]])
WHAT = {0: [0, 1, 2, 3, 4], 1: [0, 1, 2, 3, 4], 2: [0, 1, 3], 3: [0]}  # of three rows not all
NOISE = 8.0


def grid(*rules):
    """Return points and weights of the product of one-dimensional rules."""
    points, weights = zip(*rules, strict=True)
    points = np.stack([p.ravel() for p in np.meshgrid(*points, indexing="ij")], axis=-1)
    return points, math.prod(np.ix_(*weights)).ravel()


def gauss(k):
    x, w = np.polynomial.hermite_e.hermegauss(k)
    return x, w / np.sqrt(2 * np.pi)


def logarithms(alpha, k):
    """Return a rule for sqrt(alpha) log(g / alpha) with g of a Gamma law, by the root of 2 g."""
    x, w = np.polynomial.legendre.leggauss(k)
    r = 5.0 * (x + 1.0)
    return np.sqrt(alpha) * np.log(r**2 / (2 * alpha)), 5.0 * w * stats.chi(2 * alpha).pdf(r)


def likelihood(sums, j, weights):
    z = 1.0 + np.arange(len(WHAT[j]))
    return weights @ np.exp(stats.norm(sums, NOISE).logpdf(z).sum(axis=1))


@pytest.mark.parametrize("j", [0, 1, 2])
def test_groups_of_one_to_three_rows_against_integrals_over_the_records(j):
    """A group of few rows has a singular scatter matrix."""
    with pm.Model() as model:
        x = pm.Normal("x", MEAN[0], np.sqrt(COV[0, 0]), shape=FEW.size)
        b = np.array([0.5, COV[0, 1] / COV[0, 0], 0.2, 0.0])
        a = np.array([1.0, MEAN[1] - b[1] * MEAN[0], -0.4, 0.0])
        sd = np.array([1.0, np.sqrt(COV[1, 1] - b[1] * COV[0, 1]), 0.7, 1.0])
        y = pm.Normal("y", a[FEW] + b[FEW] * x, sd[FEW], shape=FEW.size)
        for g, what in WHAT.items():
            u, v = x[g == FEW], y[g == FEW]
            own = pt.stack([products(u, v)[k].sum() for k in what])
            released(f"z{g}", own, 1.0 + np.arange(len(what)), NOISE)
    n, k = j + 1, 24 if j < 2 else 11
    z, weights = grid(*[gauss(k)] * (2 * n))
    u = MEAN[0] + np.sqrt(COV[0, 0]) * z[:, :n]
    v = a[j] + b[j] * u + sd[j] * z[:, n:]
    sums = np.stack([products(u, v)[k].sum(axis=1) for k in WHAT[j]], axis=1)
    expected = likelihood(sums, j, weights)

    statistics = dp.collapse(model, "statistics")
    [latents] = statistics.free_RVs
    one = [[0.0], [1.0]]
    # e, what is below the diagonal of A, and the logarithms of its diagonal.
    below, first = (gauss(20), logarithms(j / 2, 40)) if j else (one, one)
    points, weights = grid(gauss(20), gauss(20), below, first, one)
    batch = pt.as_tensor(np.broadcast_to(points[:, None], (len(points), 4, 5)))
    sums = release_statistic(statistics[f"z{j}"])
    sums = vectorize_graph(sums, {latents: batch}).eval(mode=PLAIN)
    assert likelihood(sums, j, weights) == pytest.approx(expected, rel=1e-8)


# --- What is refused, said, sampled -------------------------------------------------------------


def test_refusals_name_what_is_wrong():
    def model(statistic, *, bounds=None, law=pm.Normal, **noise):
        with pm.Model() as model:
            x = law("x", 0.0, 1.0, shape=G.size)
            y = pm.Normal("y", pm.Normal("a") + x, 1.0, shape=G.size)
            dp.PrivateObservation(
                "z", statistic(x, y), dp.LaplaceMechanism(1.0), observed=[0.0, 0.0], bounds=bounds
            )
        return model

    refuses(model(lambda x, y: pt.dot(M, x**2 * y)), "'z' is of products of 3 columns")
    refuses(model(lambda x, y: pt.dot(M, x * y), law=pm.Laplace), "'x' follows Laplace")
    refuses(model(lambda x, y: pt.dot(M, x * y), bounds=([-1, -1], [1, 1])), "'z' states bounds=")
    refuses(model(lambda x, y: pt.dot(M, x * y)), "no marginal in closed form", "marginal")


def test_the_route_is_taken_and_described():
    model = by_matrix()
    assert max(route_table(model), key=lambda row: row[1])[0].name == NUTS
    [law] = collapsible(Reading(model))
    assert law.describe(model["z3"]) == "Σ x·y of each of 2 groups of 5 to 9 of the rows x, y"


def test_groups_that_are_no_shorter_than_their_rows_are_refused():
    with pm.Model() as model:
        x, y = rows(groups=np.repeat(np.arange(7), 2))
        released("z", pt.dot(np.repeat(np.eye(7), 2, axis=1), x * y), np.ones(7))
    refuses(model, "7 groups of 2 to 2 that are alike: there is no shorter", "statistics")


def test_means_of_independent_columns():
    """They are sums of single columns, however the columns lie, and integrated out as such."""
    found = []
    for axis in (0, 1):
        with pm.Model() as model:
            mu = pm.Normal("mu", shape=3)
            y = pm.Normal("y", mu if axis == 0 else mu[:, None], 0.8, shape=(6, 3)[:: 1 - 2 * axis])
            dp.PrivateObservation(
                "z", y.mean(axis=axis), dp.LaplaceMechanism(0.5), observed=[0.1, -0.4, 1.0]
            )
        point = {"mu": np.array([0.3, 0.2, -0.1])}
        for to in ("marginal", "statistics"):
            collapsed = dp.collapse(model, to)
            own = point | ({} if to == "marginal" else {"y_mean": np.array([0.2, 0.0, 0.5])})
            found.append(evaluated(collapsed, [collapsed.logp()], own)[0])
    assert found[0] == pytest.approx(found[2], rel=1e-12)
    assert found[1] == pytest.approx(found[3], rel=1e-12)


def test_impossible_sums_of_a_group_are_said():
    """Of the second group; a public number among the entries is of none."""

    @as_model
    def build():
        x, y = rows()
        sums = [pt.dot(M, p) for p in products(x, y)]
        # In the second group the squares of x add up to less than its sum allows.
        values = [*SUMS[:2].ravel(), SUMS[2, 0], -90.0, *SUMS[3:].ravel()]
        released("z", pt.concatenate([[7.0], *sums]), [900.0, *values])

    [note] = notes(Reading(build()))
    assert note.startswith("'z': no 9 rows have these sums: entry 6 is")


@pytest.mark.nightly
def test_with_next_to_no_noise_the_posterior_is_that_of_the_data():
    """Regressions in two groups with a common slope and known variances: conjugate."""
    u, v = DATA
    with pm.Model() as model:
        a, b = pm.Normal("a", 0, 3, shape=2), pm.Normal("b", 0, 3)
        x = pm.Normal("x", 0.5, 1.0, shape=G.size)
        y = pm.Normal("y", a[G] + b * x, 0.8, shape=G.size)
        for k, p in enumerate(products(x, y)):
            released(f"z{k}", pt.dot(M, p), SUMS[k], 1e-3)
    design = np.column_stack([M.T, u])
    precision = design.T @ design / 0.64 + np.eye(3) / 9
    cov = np.linalg.inv(precision)
    mean = cov @ design.T @ v / 0.64
    tree = dp.sample(model, draws=1000, chains=2, cores=1, random_seed=1, progressbar=False)
    draws = tree["posterior"]
    own = np.concatenate([draws["a"], draws["b"].to_numpy()[..., None]], axis=-1)
    has_moments(own, mean, np.sqrt(np.diag(cov)), sd_within=0.08)
