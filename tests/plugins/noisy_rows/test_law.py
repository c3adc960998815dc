"""Normal rows that are released one by one, with noise of their own."""

import arviz_base as az
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from scipy import stats

import pymc_dp as dp
from pymc_dp.graphs.values import PLAIN_MODE
from pymc_dp.reading.model import releases

N, G = 7, np.array([0, 1, 2, 0, 1, 2, 1])
RNG = np.random.default_rng(0)
SD, Z = RNG.uniform(0.3, 1.5, (N, 3)), RNG.normal(size=(N, 3))
X, COV = RNG.normal(size=(N, 2)), np.array([[1.0, 0.4], [0.4, 0.8]])
A, B, S = np.array([0.3, 0.6, -0.8]), 0.7, 0.6
MX, ONE = np.full(N, 0.4), np.ones(N)
MY = A[G] + B * MX


def released(*of, sd=SD, law=dp.GaussianMechanism):
    """Release each of some vectors."""
    for k, graph in enumerate(of):
        dp.PrivateObservation(f"z{k}", graph, law(sd[:, k]), observed=pm.Data(f"d{k}", Z[:, k]))


def columns():
    a, b, s = pm.Normal("a", shape=3), pm.Normal("b"), pm.HalfNormal("s")
    x = pm.Normal("x", 0.4, 1.3, shape=N)
    return x, pm.Normal("y", a[G] + b * x, s, shape=N)


def three():
    x, y = columns()
    return x, y, pm.Normal("w", y - 0.5 * x + X @ [0.2, 0.3], 0.1 + S * G, shape=N)


def vectors():
    a, b = pm.Normal("a", shape=3), pm.Normal("b")
    r = pm.MvNormal("r", pt.stack([a[G], 2 * a[G]], axis=1), COV, shape=(N, 2))
    return r, pm.Normal("y", b * (r @ [1.0, 2.0]), 0.5, shape=N)


def several():
    r, y = vectors()
    z = pm.Data("d0", Z[:, :2])
    dp.PrivateObservation("z0", r, dp.GaussianMechanism(SD[:, :2]), observed=z)
    dp.PrivateObservation("z1", y + 1, dp.GaussianMechanism(SD[:, 2]), observed=Z[:, 2])


def matrix():
    x, y = columns()
    z = pt.stack([2 * x - y + 1, y], axis=1)
    dp.PrivateObservation("z", z, dp.GaussianMechanism([0.5, 0.7]), observed=Z[:, :2])


def unseen():
    u, x = pm.Normal("u", 0.3, 1.1, shape=N), pm.Normal("x", 0.4, 1.3, shape=N)
    released(x, pm.Normal("y", x + pm.Normal("b") * u, S, shape=N))


def loadings(b=B, s=S):
    """Return x and y by errors of unit variance, row by row."""
    return np.array([[1.3, 0.0], [b * 1.3, s]])


TWO = np.stack([MX, MY], axis=1), loadings()
OF_R = np.array([[1.0, 0.0], [0.0, 1.0], [B, 2 * B]]) @ np.linalg.cholesky(COV)
W = np.array([[1.3, 0.0], [B * 1.3, S], [(B - 0.5) * 1.3, S]])
CASES = {  # what writes the releases, the mean of what is released, its factor, and the noise
    "two": (lambda: released(*columns()), *TWO, SD),
    "children first": (lambda: released(*columns()[::-1], sd=SD[:, 1::-1]),
                       TWO[0][:, ::-1], TWO[1][::-1], SD[:, 1::-1]),
    "matrix": (matrix, np.stack([2 * MX - MY + 1, MY], 1),
               np.array([[2, -1], [0, 1]]) @ TWO[1], np.tile([0.5, 0.7], (N, 1))),
    "three, spreads by row": (
        lambda: released(*three()), np.stack([MX, MY, MY - 0.5 * MX + X @ [0.2, 0.3]], 1),
        [np.column_stack([W, [0, 0, 0.1 + S * g]]) for g in G], SD,
    ),
    "vectors": (several, np.stack([A[G], 2 * A[G], 5 * B * A[G] + 1], 1),
                np.column_stack([OF_R, [0, 0, 0.5]]), SD),
    "twice": (lambda: released(*[pm.Normal("x", pm.Normal("b"), 1.3, shape=N)] * 3),
              np.full((N, 3), B), np.full((3, 1), 1.3), SD),
    "a column unseen": (unseen, np.stack([MX, MX + 0.3 * B], 1),
                        np.array([[1.3, 0, 0], [1.3, S, 1.1 * B]]), SD),
}  # fmt: skip


def exactly(mean, factor, sd):
    factors = np.broadcast_to(factor, (N, *np.shape(factor)[-2:]))
    return [
        stats.multivariate_normal(m, f @ f.T + np.diag(w[: len(m)] ** 2))
        for m, f, w in zip(mean, factors, sd, strict=True)
    ]


def written(write):
    with pm.Model() as model:
        write()
    return model


@pytest.mark.parametrize("name", CASES)
def test_rows_are_integrated_out_together(name):
    write, mean, factor, sd = CASES[name]
    model = written(write)
    on = dp.collapse(model, "marginal")
    given = pm.do(on, {k: v for k, v in {"a": A, "b": B, "s": S}.items() if k in on.named_vars})
    assert {rv.name for rv in given.basic_RVs} == {rv.name for rv in releases(model)}
    found = pytensor.function([], given.logp(), mode=PLAIN_MODE)()
    z = Z[:, : mean.shape[1]]
    expected = sum(law.logpdf(v) for law, v in zip(exactly(mean, factor, sd), z, strict=True))
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_releases_are_drawn_together_and_rows_given_all_of_them():
    model = written(CASES["two"][0])
    on = dp.collapse(model, "marginal")
    given = pm.do(on, {"a": A, "b": B, "s": S})
    with pm.Model():
        drawn = pm.draw([given["z0"][0], given["z1"][0]], 4_000, random_seed=1, mode=PLAIN_MODE)
    first = exactly(*CASES["two"][1:])[0]
    np.testing.assert_allclose(np.cov(drawn), first.cov_object.covariance, rtol=0.15)
    theta = {"a": A[None, None], "b": [[B]], "s": [[S]]}
    many = {k: np.repeat(np.asarray(v), 1_500, axis=1) for k, v in theta.items()}
    factor = loadings() @ loadings().T
    gain = np.array([factor @ np.linalg.inv(factor + np.diag(w[:2] ** 2)) for w in SD])
    mean = TWO[0] + np.einsum("nij,nj->ni", gain, Z[:, :2] - TWO[0])
    cov = factor - gain @ factor
    for of in (model, on):
        found = dp.recover(of, az.from_dict({"posterior": many}), random_seed=2)["posterior"]
        rows = np.stack([found["x"][0], found["y"][0]], axis=-1)
        np.testing.assert_allclose(rows.mean(axis=0), mean, atol=0.1)
        np.testing.assert_allclose([np.cov(rows[:, i].T) for i in range(N)], cov, atol=0.12)


def of_pair(of):
    def write():
        x, y = columns()
        released(of(x, y), y)

    return write


@pytest.mark.parametrize(
    ("write", "says"),
    [
        (lambda: released(*columns(), law=dp.LaplaceMechanism), "'z0' .* LaplaceMechanism"),
        (of_pair(lambda x, y: x * y), "'z0' multiplies columns"),
        (of_pair(lambda x, y: abs(x)), "'z0': `abs`"),
    ],
)
def test_what_has_no_marginal_is_refused_by_name(write, says):
    model = written(write)
    with pytest.raises(NotImplementedError, match=says):
        dp.collapse(model, "marginal")
