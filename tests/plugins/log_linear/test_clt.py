"""Tables of a log-linear model that are Normal by the central limit theorem, in models."""

import arviz_stats as az
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
import xarray as xr
from pytensor.graph.rewriting.utils import rewrite_graph
from scipy import stats

import pymc_dp as dp
from pymc_dp.graphs.values import plain_function
from pymc_dp.plugins.log_linear.clt import AgainstLargest, LogNormal

LEVELS = {"a": 2, "b": 3, "c": 2, "d": 1}
MARGINS = {"ab": ("b", "a"), "c": ("c",), "bc": ("b", "c")}


def margins_of(n, sigma, counts=None, **noises):
    """Return a model of two cliques with the margins of a table of rows, and its rows."""
    rng = np.random.default_rng(5)
    if counts is None:
        p = np.einsum("ab,bc->abc", [[0.2, 0.1, 0.25], [0.15, 0.2, 0.1]], [[0.3, 0.7]] * 3)
        counts = rng.multinomial(n, p.ravel()).reshape(2, 3, 2)
    with pm.Model() as model:
        rows = dp.LogLinear("rows", LEVELS, [("a", "b"), ("b", "c"), ("d",)], n, concentration=6.0)
        for name, columns in MARGINS.items():
            z = np.einsum(f"abc->{''.join(columns)}", counts) * 1.0
            noise = noises.get(name, dp.GaussianMechanism(sigma))
            z += rng.normal(0.0, sigma, z.shape).round(0 if noise.is_discrete else 9)
            dp.PrivateObservation(name, rows.margin(*columns), noise, observed=z)
    return model, rows


def test_density_is_the_prior_times_the_normal_law_of_all_margins_together():
    model, _ = margins_of(400, 5.0)
    marginal = dp.collapse(model, approximate="clt")
    assert [rv.name for rv in marginal.free_RVs] == ["rows_a_b", "rows_b_c"]
    point = marginal.initial_point()
    rng = np.random.default_rng(2)
    point = {k: rng.normal(0.0, 0.5, np.shape(v)) for k, v in point.items()}
    values = [marginal.rvs_to_values[rv] for rv in marginal.free_RVs]
    wanted = [*marginal.free_RVs, marginal["rows_probabilities"]]
    graphs = [*marginal.replace_rvs_by_values(wanted), marginal.logp(marginal.observed_RVs)]
    ab, bc, cells, released = plain_function(values, graphs)(*(point[v.name] for v in values))
    p = np.einsum("ab,bc->abc", ab.reshape(2, 3), bc)
    np.testing.assert_allclose(cells[1:7], p.sum(2).ravel())
    np.testing.assert_allclose(cells[7:], p.sum(0).ravel())
    which = np.indices(p.shape).reshape(3, -1)
    row = dict(zip("abc", which, strict=True))
    s = np.hstack([
        np.eye(np.prod([LEVELS[c] for c in columns]))[
            np.ravel_multi_index([row[c] for c in columns], [LEVELS[c] for c in columns])
        ]
        for columns in MARGINS.values()
    ])  # fmt: skip
    mean = p.ravel() @ s
    covariance = 400 * ((s * p.ravel()[:, None]).T @ s - np.outer(mean, mean)) + 25.0 * np.eye(14)
    z = [marginal.rvs_to_values[marginal[name]].eval().ravel() for name in MARGINS]
    exact = stats.multivariate_normal(400 * mean, covariance).logpdf(np.concatenate(z))
    np.testing.assert_allclose(released, exact, rtol=1e-9)


def test_a_gradient_takes_one_density():
    """Those of the releases before each cancel."""
    marginal = dp.collapse(margins_of(400, 5.0)[0], approximate="clt")
    values = [marginal.rvs_to_values[rv] for rv in marginal.free_RVs]
    logp = rewrite_graph(marginal.logp(), include=("canonicalize", "stabilize"))  # as samplers do
    function = pytensor.function(values, [logp, *pt.grad(logp, values)], mode="NUMBA")
    ops = [type(node.op) for node in function.maker.fgraph.toposort()]
    assert ops.count(LogNormal) == 1


def test_transform_is_that_of_logs_of_ratios():
    """Its Jacobian is that of numeric derivatives; the largest is what others are compared to."""
    p = np.array([[0.5, 0.2, 0.3], [0.1, 0.2, 0.7]])
    transform = AgainstLargest(np.argsort(p, axis=-1))
    y = transform.forward(pt.as_tensor(p)).eval()
    np.testing.assert_allclose(y[1], np.log([0.1 / 0.7, 0.2 / 0.7]))
    np.testing.assert_allclose(transform.backward(pt.as_tensor(y)).eval(), p)

    def first_two(row, at):
        at = np.where(np.arange(2)[:, None] == row, at, y)
        return transform.backward(pt.as_tensor(at)).eval()[row, :2]

    for row in range(2):
        slopes = [(first_two(row, y[row] + h) - first_two(row, y[row] - h)) / 2e-6
                  for h in 1e-6 * np.eye(2)]  # fmt: skip
        log_det = transform.log_jac_det(pt.as_tensor(y)).eval()[row]
        np.testing.assert_allclose(log_det, np.log(abs(np.linalg.det(slopes))), rtol=1e-6)


def test_prior_draws_of_releases_are_joint():
    """Two margins of one column agree but for their noise; so do their sums with n."""
    marginal = dp.collapse(margins_of(400, 5.0)[0], approximate="clt")
    ab, c, bc = pm.draw([marginal[name] for name in MARGINS], 400, random_seed=1)
    for gap, cells in ((ab.sum(2) - bc.sum(2), 4), (c - bc.sum(1), 4)):
        assert 0.9 < gap.std() / (5.0 * np.sqrt(cells)) < 1.1
    assert ab.sum(2).std() > 20.0


@pytest.mark.nightly
@pytest.mark.parametrize("noise", [dp.GaussianMechanism(20.0), dp.LaplaceMechanism(15.0)])
def test_posterior_is_the_exact_one_where_cells_are_large(noise):
    model, rows = margins_of(5_000, 20.0, ab=noise)
    few = {"chains": 2, "random_seed": 1, "quiet": True, "progressbar": False}
    normal = dp.sample(model, draws=1_000, tune=500, approximate="clt", **few)
    exact = dp.sample(model, draws=2_000, tune=200, **few)
    for columns in (("a", "b"), ("b", "c"), ("d",)):
        p, q = (rows.probabilities(x, *columns, random_seed=3) for x in (normal, exact))
        error = [x.std(("chain", "draw")) / np.sqrt(ess(x)) for x in (p, q)]
        gap = p.mean(("chain", "draw")) - q.mean(("chain", "draw"))
        assert (abs(gap) <= 4.5 * np.hypot(*error) + 1e-12).all()
        spread = p.std(("chain", "draw")) - q.std(("chain", "draw"))
        assert (abs(spread) <= 4.5 * np.hypot(*error) + 1e-12).all()


@pytest.mark.nightly
def test_posterior_is_another_where_a_category_has_few_people():
    """A count of 0 or 1 with little noise is no Normal one."""
    counts = np.full((2, 3, 2), 30.0)
    counts[:, 0] = 0.0
    counts[0, 0, 0] = 1.0
    model, rows = margins_of(int(counts.sum()), 0.3, counts)
    few = {"chains": 2, "random_seed": 1, "quiet": True, "progressbar": False}
    normal = dp.sample(model, draws=1_000, tune=1_000, approximate="clt", **few)
    exact = dp.sample(model, draws=2_000, tune=500, **few)
    p, q = (rows.probabilities(x, "b", random_seed=3)[..., 0] for x in (normal, exact))
    gap = float(p.mean() - q.mean())
    assert abs(gap) > 5 * float(np.hypot(p.std() / np.sqrt(ess(p)), q.std() / np.sqrt(ess(q))))


def test_probabilities_of_a_result_are_those_that_were_drawn():
    _, rows = margins_of(400, 5.0)
    p = np.arange(1.0, 14.0)  # of d, then of a and b, then of b and c
    drawn = xr.Dataset({"rows_probabilities": (("chain", "draw", "k"), np.tile(p, (2, 3, 1)))})
    found = rows.probabilities(xr.DataTree.from_dict({"posterior": drawn}), "b", "a")
    assert found.dims == ("chain", "draw", "b", "a")
    np.testing.assert_allclose(found[1, 2], p[1:7].reshape(2, 3).T)


def ess(x):
    return az.ess(x.to_dataset(name="x"))["x"]


def test_refusals():
    model, _ = margins_of(400, 5.0)
    for options, match in (
        ({"to": "statistics"}, "to='statistics' is for rows of several columns, .* 'rows'"),
        ({"moments": [0.0, 1.0, 0.0, 3.0]}, "moments= is for rows of several columns, .* 'rows'"),
    ):
        with pytest.raises(NotImplementedError, match=match):
            dp.collapse(model, approximate="clt", **options)
    with pytest.raises(ValueError, match=r"rung='records' and records in var_names="):
        dp.sample(model, approximate="clt", var_names=["rows"])
    model, _ = margins_of(400, 5.0, c=dp.GeometricMechanism(0.5))
    with pytest.raises(NotImplementedError, match="'c' is not Normal under GeometricMechanism"):
        dp.collapse(model, approximate="clt")
    with pm.Model() as wide:
        rows = dp.LogLinear("rows", {"a": 40, "b": 40}, [("a", "b")], 9_000, concentration=40.0)
        z = np.zeros((40, 40))
        dp.PrivateObservation("z", rows.margin("a", "b"), dp.GaussianMechanism(3.0), observed=z)
    with pytest.raises(NotImplementedError, match=r"'rows' has 1,600 cells .* more than 1,500"):
        dp.collapse(wide, approximate="clt")
