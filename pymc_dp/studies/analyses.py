"""Studies over simulated data and releases: `coverage`, `calibration`, `privacy_utility`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pymc as pm
import xarray as xr
from scipy import stats

from pymc_dp.studies.run import run_study
from pymc_dp.studies.settings import Cell, Settings, StudyPlan, Truth
from pymc_dp.studies.summaries import Interval

Point = Literal["mean", "median", "mode"]


def coverage(
    build: Callable[..., pm.Model],
    *,
    truth: Truth = None,
    grid: Mapping[str, Sequence[Any]] | None = None,
    simulate: Callable[[Cell, np.random.Generator], Any] | None = None,
    replicates: int = 200,
    prob: float = 0.95,
    interval: Interval = "hdi",
    point: Point = "mean",
    var_names: Sequence[str] | None = None,
    draws: int = 1000,
    tune: int = 500,
    chains: int = 2,
    thin: int | None = None,
    min_ess: float | None = None,
    compiled: bool | None = None,
    sampler: Mapping[str, Any] | None = None,
    random_seed: int | None = None,
    path: str | os.PathLike[str] | None = None,
    n_jobs: int | None = None,
    batch: int | None = None,
    progressbar: bool = True,
) -> xr.Dataset:
    r"""Find frequentist coverage, interval length and error over simulated data sets and releases.

    A replicate simulates confidential data at the true values and a release of them, samples the
    posterior given the release, and keeps a summary. Replicates run through joblib: with
    ``n_jobs=2``, or in the backend of a surrounding ``joblib.parallel_config(backend="dask")``, the
    same numbers come out, bit for bit.

    Parameters
    ----------
    build : callable
        ``build(**cell)`` returns a model whose releases have no observed value, the same one at
        every call.
    truth : dict or callable, optional
        True values of the parameters by name, or a function of the cell that returns them.
        Variables without one are drawn from their priors, anew in every replicate: coverage is then
        an average over the prior.
    grid : dict of sequences, optional
        Values of arguments of `build`, numbers or strings; all of their combinations are cells.
    simulate : callable, optional
        ``(cell, rng)`` to a release: an array, or a dict of arrays by release, for data that do not
        follow the model. The model itself is drawn from if None.
    replicates : int
        For each cell.
    prob, interval : float, {"hdi", "eti"}
        Probability and kind of the intervals: highest density, or equal tails.
    point : {"mean", "median", "mode"}
        The estimate whose error is reported. The mode is that of a kernel density.
    var_names : sequence of str, optional
        The variables of the result: all parameters by default, Deterministics by name.
    draws, tune, chains : int
        Size of a posterior sample.
    thin : int, optional
        Sweeps of a compiled Gibbs kernel to a draw, in the place of its own default.
    min_ess : float, optional
        For compiled Gibbs kernels: a replicate ends when every parameter has so many effective
        draws, at the latest after `draws`.
    compiled : bool, optional
        Sample without PyMC: by a Gibbs kernel that covers the whole model, or by NUTS on its
        marginal density, compiled once for all replicates of a cell. None does so where one is
        open and not slower, and logs why where it does not; True demands it.
    sampler : dict, optional
        Further arguments of `dp.sample` (rung=, approximate=, ...), which is then called.
    random_seed : int, optional
        Seed of the study; every replicate has its own, which the result holds.
    path : path, optional
        Folder of a checkpoint. A study that was killed goes on where it was when it is called again
        with the same arguments; it may then have more replicates. Replicates that failed stay
        failed, those of a cell that could not be built run again.
    n_jobs : int, optional
        Processes, as for `joblib.Parallel`.
    batch : int, optional
        Replicates of a task; a twentieth of `replicates` by default.
    progressbar : bool, default True
        Show progress.

    Returns
    -------
    xarray.Dataset
        By cell and parameter: ``coverage``, ``length`` of the intervals, ``bias`` and ``rmse`` of
        the estimate, each with a Monte Carlo standard error ``..._se`` (but the rmse), and the mean
        posterior standard deviation ``posterior_sd``. ``failures``: by cell. By replicate, too:
        ``truth``, ``mean``, ``median``, ``mode``, ``sd``, ``lower``, ``upper``, ``pit`` (the share
        of posterior draws below the truth, made continuous), ``ess``, ``seed`` and ``error``, empty
        if there was none. Attributes say with what settings and version.

    Raises
    ------
    ValueError, TypeError, NotImplementedError
        Naming the argument: a builder that cannot be pickled or changes, an empty grid, a
        checkpoint that is damaged or of another study.

    Examples
    --------
    >>> import pymc as pm, pymc_dp as dp
    >>> def build(epsilon):
    ...     with pm.Model() as model:
    ...         mu = pm.Normal("mu", 0.5, 0.3)
    ...         x = pm.Normal("x", mu, 0.2, shape=40)
    ...         noise = dp.LaplaceMechanism.from_epsilon(epsilon, 1 / 40)
    ...         dp.PrivateObservation("z", x.mean(), noise)
    ...     return model
    >>> few = {"replicates": 4, "draws": 100, "tune": 20, "chains": 1, "progressbar": False}
    >>> grid = {"epsilon": [0.5]}
    >>> study = dp.studies.coverage(build, truth={"mu": 0.5}, grid=grid, random_seed=1, **few)
    >>> dict(study["coverage"].sizes), study["lower"].dims
    ({'epsilon': 1, 'parameter': 1}, ('epsilon', 'replicate', 'parameter'))
    """
    if var_names is not None and (
        isinstance(var_names, str) or not 0 < len(set(var_names)) == len(var_names)
    ):
        raise ValueError(f"var_names={var_names!r}: write a list of different names")
    settings = Settings(
        var_names=None if var_names is None else tuple(var_names),
        prob=prob,
        interval=interval,
        draws=draws,
        tune=tune,
        chains=chains,
        thin=thin,
        min_ess=min_ess,
        use_compiled=compiled,
        sampler=dict(sampler or {}),
    )
    if point not in ("mean", "median", "mode"):
        raise ValueError(f"point={point!r}: write 'mean', 'median' or 'mode'")
    study = run_study(
        StudyPlan(build, truth, simulate, settings),
        grid,
        replicates=replicates,
        random_seed=random_seed,
        path=path,
        n_jobs=n_jobs,
        batch=batch,
        progressbar=progressbar,
    )
    return _described(study, point)


def _share_se(share: xr.DataArray, count: xr.DataArray) -> xr.DataArray:
    """Return the standard error of a share, with two successes and two failures added.

    Without them it is zero where all replicates agree (Agresti & Coull, 1998).
    """
    adjusted = (share * count + 2) / (count + 4)
    return (adjusted * (1 - adjusted) / (count + 4)) ** 0.5


def _described(study: xr.Dataset, point: Point) -> xr.Dataset:
    """Add coverage, interval length and error over the replicates."""
    worked = study["mean"].notnull()
    count = worked.sum("replicate")
    covered = (study["lower"] <= study["truth"]) & (study["truth"] <= study["upper"])
    length = study["upper"] - study["lower"]
    error = study[point] - study["truth"]
    share = covered.where(worked).mean("replicate")
    described = {
        "coverage": share,
        "coverage_se": _share_se(share, count),
        "length": length.mean("replicate"),
        "length_se": length.std("replicate", ddof=1) / np.sqrt(count),
        "bias": error.mean("replicate"),
        "bias_se": error.std("replicate", ddof=1) / np.sqrt(count),
        "rmse": np.sqrt((error**2).mean("replicate")),
        "posterior_sd": study["sd"].mean("replicate"),
        "failures": (study["error"] != "").sum("replicate"),
    }
    return study.assign(described).assign_attrs(point=point)


def privacy_utility(
    build: Callable[..., pm.Model],
    epsilons: Sequence[float],
    *,
    name: str = "epsilon",
    grid: Mapping[str, Sequence[Any]] | None = None,
    **kwargs: Any,
) -> xr.Dataset:
    """Find what privacy costs: width, coverage and error of the posterior at every epsilon.

    Parameters
    ----------
    build : callable
        As for `coverage`; it takes the level, too.
    epsilons : sequence of float
        The levels.
    name : str, default "epsilon"
        The argument of `build` that takes the level; "rho", say.
    grid, **kwargs
        As for `coverage`. Without truth=, true values are drawn from the priors, anew in every
        replicate: what a data owner expects before seeing the data.

    Returns
    -------
    xarray.Dataset
        As `coverage` returns, with the levels as a dimension.

    Raises
    ------
    ValueError, TypeError, NotImplementedError
        Levels that are not positive, a `grid` that holds the level, and what `coverage` refuses.

    Examples
    --------
    >>> import pymc as pm, pymc_dp as dp
    >>> def build(epsilon):
    ...     with pm.Model() as model:
    ...         mu = pm.Normal("mu", 0.5, 0.3)
    ...         x = pm.Normal("x", mu, 0.2, shape=40)
    ...         noise = dp.LaplaceMechanism.from_epsilon(epsilon, 1 / 40)
    ...         dp.PrivateObservation("z", x.mean(), noise)
    ...     return model
    >>> few = {"replicates": 4, "draws": 100, "tune": 20, "chains": 1, "progressbar": False}
    >>> study = dp.studies.privacy_utility(build, [0.5, 50.0], random_seed=1, **few)
    >>> noisy, exact = study["posterior_sd"].sel(parameter="mu").values
    >>> bool(noisy > exact)
    True
    """
    levels = np.asarray(epsilons, "float64")
    if levels.ndim != 1 or levels.size == 0 or not np.all((levels > 0) & np.isfinite(levels)):
        raise ValueError(f"epsilons={epsilons!r}: positive levels are needed, such as [0.1, 1, 10]")
    if name in (grid or {}):
        raise ValueError(f"grid: {name!r} is the level; leave it out")
    study = coverage(build, grid={**(grid or {}), name: levels.tolist()}, **kwargs)
    return study.assign_attrs(level=name)


def calibration(
    build: Callable[..., pm.Model],
    *,
    grid: Mapping[str, Sequence[Any]] | None = None,
    replicates: int = 300,
    **kwargs: Any,
) -> xr.Dataset:
    r"""Check a sampler by simulation-based calibration [1]_.

    True values are drawn from the priors, and data and releases from the model. The share of
    posterior draws below the truth is then uniform if the sampler is right. (The package simuk does
    the same with `pm.sample`; here, the model is sampled as `dp.sample` does it.)

    Parameters
    ----------
    build, grid, replicates, **kwargs
        As for `coverage`, without truth= and simulate=. All priors have to be proper.

    Returns
    -------
    xarray.Dataset
        As `coverage` returns, with ``ks`` and ``ks_pvalue``: the Kolmogorov-Smirnov distance of
        ``pit``, the truth's place among 99 draws, from a uniform law, by cell and parameter.
        `plot_calibration` draws it.

    Raises
    ------
    ValueError, TypeError, NotImplementedError
        A truth= or simulate=, and what `coverage` refuses.

    References
    ----------
    .. [1] S. Talts, M. Betancourt, D. Simpson, A. Vehtari, A. Gelman (2018). Validating Bayesian
       inference algorithms with simulation-based calibration.

    Examples
    --------
    >>> import pymc as pm, pymc_dp as dp
    >>> def build(epsilon):
    ...     with pm.Model() as model:
    ...         mu = pm.Normal("mu", 0.5, 0.3)
    ...         x = pm.Normal("x", mu, 0.2, shape=40)
    ...         noise = dp.LaplaceMechanism.from_epsilon(epsilon, 1 / 40)
    ...         dp.PrivateObservation("z", x.mean(), noise)
    ...     return model
    >>> few = {"replicates": 4, "draws": 100, "tune": 20, "chains": 1, "progressbar": False}
    >>> study = dp.studies.calibration(build, grid={"epsilon": [0.5]}, random_seed=1, **few)
    >>> study["pit"].dims, study["ks"].dims
    (('epsilon', 'replicate', 'parameter'), ('epsilon', 'parameter'))
    """
    for wrong in ("truth", "simulate"):
        if kwargs.get(wrong) is not None:
            raise TypeError(f"{wrong}=: calibration draws true values and data from the model")
    study = coverage(build, grid=grid, replicates=replicates, **kwargs)

    def distance(values: np.ndarray) -> tuple[float, float]:
        values = values[np.isfinite(values)]
        return tuple(stats.kstest(values, "uniform")[:2]) if len(values) else (np.nan, np.nan)

    ks, pvalue = xr.apply_ufunc(
        distance,
        study["pit"],
        input_core_dims=[["replicate"]],
        output_core_dims=[[], []],
        vectorize=True,
    )
    return study.assign(ks=ks, ks_pvalue=pvalue)
