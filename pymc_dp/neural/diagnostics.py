r"""How good a neural posterior is: calibration, predictions, distances between posteriors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import arviz_base
import numpy as np
import pymc as pm
import xarray as xr
from numpy.typing import ArrayLike
from pymc.util import get_random_generator
from scipy import stats
from xarray import DataTree

from pymc_dp.graphs.draws import dims_of, per_draw
from pymc_dp.mechanisms.base import Mechanism
from pymc_dp.neural.fit import check_installed, read_problem
from pymc_dp.neural.noise import Noise, spans
from pymc_dp.neural.run import check_counts
from pymc_dp.neural.simulator import Simulator

if TYPE_CHECKING:
    from pymc_dp.neural.amortised import AmortisedPosterior


def calibration(
    posterior: AmortisedPosterior,
    *,
    epsilon: ArrayLike | None = None,
    simulations: int = 500,
    draws: int = 200,
    random_seed=None,
) -> DataTree:
    r"""Check the posterior of simulated releases: simulation-based calibration.

    The share of posterior draws below the true parameter is uniform if the posterior is right
    (Talts et al., 2018); so is the share of draws with a higher density than the truth has, which
    is the least probability of a highest-density region that holds it.

    Parameters
    ----------
    posterior : AmortisedPosterior
        What `amortise` returned.
    epsilon : float, optional
        The level of all releases; log-uniform on the range of the network if None.
    simulations, draws : int
        Parameters from the prior, each with one release; posterior draws for each.
    random_seed : optional
        Seed.

    Returns
    -------
    xarray.DataTree
        Group ``prior_sbc``: the shares below the truth, by parameter, for
        `arviz_plots.plot_ecdf_pit`. Group ``coverage``: ``density_rank``, the shares of draws with
        a higher density, and ``expected_coverage``, how many of them are below each ``prob``. Group
        ``checks``: by parameter, the p-value of a Kolmogorov-Smirnov test (``ks_pvalue``) and the
        accuracy of a classifier (``c2st``, 0.5 is best) of the shares against uniform ones, by sbi;
        ``negative_log_density``, the mean of :math:`-\log q(\theta \mid z)` of the
        truth on the unconstrained scale.

    Raises
    ------
    TypeError
        Another result than that of `amortise`.
    ValueError
        A level outside the range.

    References
    ----------
    .. [1] S. Talts, M. Betancourt, D. Simpson, A. Vehtari, A. Gelman (2018). Validating Bayesian
       inference algorithms with simulation-based calibration.

    Examples
    --------
    >>> import pymc as pm, pymc_dp as dp
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu", 0, 1)
    ...     x = pm.Normal("x", mu, 1, shape=20)
    ...     z = dp.PrivateObservation("z", x.mean(), dp.LaplaceMechanism(0.3), observed=0.4)
    >>> fast = dp.neural.Training(hidden_features=8, epoch_steps=5, max_epochs=2, last_epochs=4)
    >>> few = {"simulations": 100, "training": fast, "random_seed": 1, "progressbar": False}
    >>> def mechanism(epsilon):
    ...     return dp.LaplaceMechanism.from_epsilon(epsilon, 0.3)
    >>> levels = (0.5, 20.0)
    >>> posterior = dp.neural.amortise(model, mechanism=mechanism, epsilon=levels, **few)
    >>> checks = dp.neural.calibration(posterior, simulations=50, draws=50, random_seed=2)
    >>> sorted(checks.children)
    ['checks', 'coverage', 'prior_sbc']
    """
    if not hasattr(posterior, "noise"):
        raise TypeError(
            f"calibration takes the result of dp.neural.amortise, which knows the posterior of "
            f"every release, not a {type(posterior).__name__}"
        )
    check_installed()
    import torch
    from sbi.diagnostics.sbc import check_uniformity_c2st, check_uniformity_frequentist

    check_counts(simulations=simulations, draws=draws)
    rng = get_random_generator(random_seed)
    low, high = np.log(posterior.noise.levels)
    level = np.exp(rng.uniform(low, high, simulations)) if epsilon is None else epsilon
    level = np.broadcast_to(np.asarray(level, "float64"), simulations)
    theta, released = posterior.simulate(simulations, level, rng)
    drawn = posterior.draw(released, level, draws, rng)
    values, truth = posterior.entries(drawn), posterior.entries(theta)
    ranks = (values < truth[:, None]).sum(axis=1)

    at_truth = posterior.log_density(theta, released, level)
    flat = drawn.reshape(-1, drawn.shape[-1])
    repeated = np.repeat(released, draws, axis=0), np.repeat(level, draws)
    density = posterior.log_density(flat, *repeated).reshape(simulations, draws)
    density_rank = (density > at_truth[:, None]).mean(axis=1)
    prob = np.linspace(0.05, 0.95, 19)

    labels = posterior.labels
    # Uniform between the neighbouring draws: a classifier would tell whole numbers from others.
    uniform = (ranks + rng.random(ranks.shape)) / (draws + 1)
    with torch.random.fork_rng():
        torch.manual_seed(int(rng.integers(2**31)))
        spread = torch.as_tensor(uniform * draws, dtype=torch.float32)
        pvalue, accuracy = (
            check(spread, draws).numpy()
            for check in (check_uniformity_frequentist, check_uniformity_c2st)
        )
    checks = xr.Dataset(
        {
            "ks_pvalue": ("parameter", pvalue),
            "c2st": ("parameter", accuracy),
            "negative_log_density": -at_truth.mean(),
        },
        coords={"parameter": labels},
    )
    # One chain is the layout that ArviZ's plots of simulation-based calibration read.
    shares = {name: uniform[None, :, j] for j, name in enumerate(labels)}
    tree = arviz_base.from_dict({"prior_sbc": shares})
    coverage = (density_rank[:, None] <= prob).mean(axis=0)
    tree["coverage"] = DataTree(
        xr.Dataset(
            {
                "density_rank": ("simulation", density_rank),
                "expected_coverage": ("prob", coverage),
            },
            coords={"prob": prob},
        )
    )
    tree["checks"] = DataTree(checks)
    return tree


def predict(
    tree: DataTree,
    model: pm.Model | None = None,
    *,
    simulator: Simulator | None = None,
    prior: pm.Model | Mapping[str, Any] | None = None,
    mechanism: Mechanism | None = None,
    observed: Any = None,
    var_names: Sequence[str] | None = None,
    draws: int = 500,
    random_seed=None,
) -> DataTree:
    """Add releases of new data, simulated at posterior draws, to a result.

    Parameters
    ----------
    tree : DataTree
        A result of `sppe` or `sple`, or any with the same parameters.
    model, simulator, prior, mechanism, observed, var_names
        As they were given to `sppe`.
    draws : int
        How many of the posterior draws, chosen at random; all of them at most.
    random_seed : optional
        Seed.

    Returns
    -------
    xarray.DataTree
        A copy with the group ``posterior_predictive``, its attribute ``log_median_distance`` the
        logarithm of the median Euclidean distance to what was observed: less is better. It is in
        the units of the releases, so that those with the largest spread count the most.

    Raises
    ------
    ImportError, TypeError, ValueError, NotImplementedError
        As `sppe`.

    Examples
    --------
    >>> from xarray import DataTree, Dataset
    >>> import numpy as np
    >>> import pymc as pm, pymc_dp as dp
    >>> draws = np.random.default_rng(1).normal(size=(4, 500))
    >>> tree = DataTree.from_dict({"posterior": Dataset({"mu": (("chain", "draw"), draws)})})
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu", 0, 1)
    ...     x = pm.Normal("x", mu, 1, shape=20)
    ...     z = dp.PrivateObservation("z", x.mean(), dp.LaplaceMechanism(0.3), observed=0.4)
    >>> new = dp.neural.predict(tree, model, draws=100, random_seed=2)
    >>> new["posterior_predictive"]["z"].shape
    (1, 100)
    """
    check_counts(draws=draws)
    problem = read_problem(model, simulator, prior, mechanism, observed, var_names)
    rng = get_random_generator(random_seed)
    theta = per_draw(tree["posterior"].to_dataset(), problem.prior.flat())
    count = min(draws, len(theta))
    theta = theta[rng.choice(len(theta), count, replace=False)]
    released = Noise(problem.channels, 1, rng, qmc=False).draw(problem.simulate(theta, rng))[:, 0]
    distance = np.linalg.norm(released - problem.observed, axis=1)
    values = {
        c.name: released[:, place].reshape(1, count, *c.shape)
        for c, place in spans(problem.channels)
    }
    attributes = {"log_median_distance": float(np.log(np.median(distance)))}
    dims, coords = dims_of(problem.model, values)
    predictions = arviz_base.from_dict(
        {"posterior_predictive": values},
        dims=dims,
        coords=coords,
        attrs={"posterior_predictive": attributes},
    )
    result = tree.copy()
    result["posterior_predictive"] = predictions["posterior_predictive"]
    return result


def compare(
    first: DataTree, second: DataTree, *, draws: int = 1000, random_seed=None
) -> dict[str, float]:
    r"""Return how far apart the posteriors of two results are, by sbi's measures.

    Parameters
    ----------
    first, second : DataTree
        Results with the same parameters. Others are left out.
    draws : int
        Draws of each, chosen at random; as many as the shorter one has, at most.
    random_seed : optional
        Seed.

    Returns
    -------
    dict
        ``c2st``: cross-validated accuracy of a classifier that tells their draws apart, from 0.5
        (none can) to 1; half a standard deviation between the means gives 0.6. ``mmd``: the square
        of the maximum mean discrepancy of the standardised draws, without bias: it may be negative.
        Entries of which all draws of both are equal, such as a fixed parameter, are left out.

    Raises
    ------
    ImportError
        torch or sbi are not installed.
    ValueError
        No parameter in common, shapes that differ, or draws that are all equal.

    Examples
    --------
    >>> from xarray import DataTree, Dataset
    >>> import numpy as np
    >>> import pymc_dp as dp
    >>> draws = np.random.default_rng(1).normal(size=(2, 4, 100))
    >>> found = (Dataset({"mu": (("chain", "draw"), x)}) for x in draws)
    >>> first, second = (DataTree.from_dict({"posterior": x}) for x in found)
    >>> sorted(dp.neural.compare(first, second, random_seed=2))
    ['c2st', 'mmd']
    """
    check_installed()
    import torch
    from sbi.utils.metrics import c2st, unbiased_mmd_squared

    check_counts(draws=draws)
    rng = get_random_generator(random_seed)
    names = [str(n) for n in first["posterior"].data_vars if n in second["posterior"].data_vars]
    if not names:
        raise ValueError("the two results have no parameter in common")
    both = [_flat(tree, names) for tree in (first, second)]
    # With classes of unequal size, a classifier would be better than chance by guessing.
    count = min(draws, *map(len, both))
    both = [flat[rng.choice(len(flat), count, replace=False)] for flat in both]
    if both[0].shape[1] != both[1].shape[1]:
        raise ValueError(f"the parameters {', '.join(names)} have different shapes")
    joined = np.concatenate(both)
    moving = np.ptp(joined, axis=0) > 0
    if not moving.any():
        raise ValueError(f"all draws of {', '.join(names)} are equal: there is nothing to compare")
    center, scale = joined[:, moving].mean(axis=0), joined[:, moving].std(axis=0)
    a, b = (torch.as_tensor((x[:, moving] - center) / scale, dtype=torch.float32) for x in both)
    seed = int(rng.integers(2**31))
    return {"c2st": float(c2st(a, b, seed=seed)), "mmd": float(unbiased_mmd_squared(a, b))}


def negative_log_density(tree: DataTree, truth: Mapping[str, ArrayLike]) -> float:
    r"""Return :math:`-\log` of the posterior density at the true parameters: less is better.

    The density is a Gaussian kernel estimate of the draws, so that results of all methods compare.

    Parameters
    ----------
    tree : DataTree
        A result with the parameters in its posterior.
    truth : dict
        Values of the parameters by name; parameters that are left out are integrated out.

    Returns
    -------
    float
        Minus the log density, in nats; it depends on the units of the parameters.

    Raises
    ------
    ValueError
        A parameter that the posterior has not, of another shape, or draws that lie on a line or a
        plane.

    Examples
    --------
    >>> from xarray import DataTree, Dataset
    >>> import numpy as np
    >>> import pymc as pm, pymc_dp as dp
    >>> draws = np.random.default_rng(1).normal(size=(4, 500))
    >>> tree = DataTree.from_dict({"posterior": Dataset({"mu": (("chain", "draw"), draws)})})
    >>> near, far = (dp.neural.negative_log_density(tree, {"mu": at}) for at in (0.0, 2.0))
    >>> round(near, 1), near < far
    (0.9, True)
    """
    posterior = tree["posterior"].to_dataset()
    unknown = [name for name in truth if name not in posterior]
    if unknown or not truth:
        raise ValueError(
            f"truth: {unknown[0]!r} is not in the posterior, which has "
            f"{', '.join(map(repr, posterior.data_vars))}"
            if unknown
            else "truth: write the values of one parameter at least"
        )
    point = [
        np.broadcast_to(np.asarray(value, "float64"), posterior[name].shape[2:]).ravel()
        for name, value in truth.items()
    ]
    try:
        density = stats.gaussian_kde(_flat(tree, truth).T)
    except np.linalg.LinAlgError:
        raise ValueError(
            f"truth: the draws of {', '.join(map(repr, truth))} lie on a line or a plane, as "
            f"probabilities do that sum to one: leave an entry out, by a pm.Deterministic of the "
            f"others"
        ) from None
    return -float(density.logpdf(np.concatenate(point))[0])


def _flat(tree: DataTree, names: Iterable[str]) -> np.ndarray:
    """Return the draws of some parameters, entries side by side; (count, entries)."""
    parts = [tree["posterior"][name].to_numpy() for name in names]
    return np.concatenate([p.reshape(p.shape[0] * p.shape[1], -1) for p in parts], axis=1)
