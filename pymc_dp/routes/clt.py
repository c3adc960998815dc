"""Routes for regressions under the central limit theorem, and the analyses to compare with."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pymc as pm
from xarray import DataTree

from pymc_dp.graphs.declined import Declined
from pymc_dp.kernels.moments.clt_chain import (
    RegressionModel,
    covariate_law,
    draw_nig,
    initial_state,
    nig_update,
    onto_cone,
    run_sweeps,
)
from pymc_dp.kernels.moments.clt_law import cross_products, gaussian_moments
from pymc_dp.laws.moments.columns import covariate_moments, releases_of_sums
from pymc_dp.laws.moments.sums import feature_products
from pymc_dp.reading.columns import Rows
from pymc_dp.reading.model import Reading
from pymc_dp.routes import ROUTES, Plan, Route
from pymc_dp.routes.chain import ARGUMENTS, run_chains
from pymc_dp.routes.priors import NormalInverseGamma, NormalWishart
from pymc_dp.routes.regression import (
    ConjugateRegression,
    box,
    covariate_values,
    covered,
    regression_tree,
)
from pymc_dp.step_methods.base import published_values

_log = logging.getLogger("pymc.dp")

SWEEPS = 2  # to a recorded draw


@dataclass(frozen=True)
class ReleasedSums:
    """What was published of the sums of a regression.

    The sums are those of x_i x_j (i <= j, without the first), x_i y and y y, with x_0 = 1. Where
    both noises are 0 a sum was not released.
    """

    z: np.ndarray
    laplace: np.ndarray
    gaussian: np.ndarray


def released_sums(model: pm.Model, rows: Rows, moments: Any) -> ReleasedSums:
    """Read the published sums, noise and observed values as they are now."""
    order = feature_products(rows.width)
    z, laplace, gaussian = (np.zeros(len(order)) for _ in range(3))
    for release in releases_of_sums(rows, moments):
        entries = zip(*published_values(model, release.rv), release.linear(), strict=True)
        for own, lam, tau, polynomial in entries:
            powers = [m for m in polynomial if m]
            if not powers:
                continue  # the public number of rows
            if len(powers) > 1:
                raise Declined(
                    f"an entry of {release.name!r} combines several sums: it covers releases of "
                    f"sums as they are"
                )
            [power] = powers
            k = order.index(power)
            if laplace[k] or gaussian[k]:
                what = "·".join(rows.labels[c] for c in power)
                raise Declined(f"the sum of {what} is released more than once")
            z[k] = (own - polynomial.get((), 0.0)) / polynomial[power]
            if lam > 0.0:
                laplace[k] = 1.0 / lam / abs(polynomial[power])
            else:
                gaussian[k] = tau**-0.5 / abs(polynomial[power])
    return ReleasedSums(z, laplace, gaussian)


def kernel_model(
    model: pm.Model, regression: ConjugateRegression, moments: Any, *, corrected: bool
) -> RegressionModel:
    """Read the numbers that the kernel needs."""
    rows, prior = regression.rows, regression.prior
    sums = released_sums(model, rows, moments)
    matrix = regression.matrix
    p = rows.width - 1
    fields: dict[str, Any] = {
        "n": float(rows.n),
        "z": sums.z,
        "laplace": sums.laplace,
        "gaussian": sums.gaussian,
        "mu0": matrix @ prior.mean + regression.offset,
        "lambda0": np.ascontiguousarray(np.linalg.inv(matrix @ prior.cov @ matrix.T)),
        "a0": prior.shape,
        "b0": prior.rate,
        "hierarchical": False,
        "m0": np.zeros(p),
        "k0": 1.0,
        "psi0": np.eye(p),
        "nu0": float(p + 2),
        "corrected": corrected,
    } | box(rows)
    law = regression.covariate
    if moments is None and isinstance(law, NormalInverseGamma | NormalWishart):
        fields |= {"hierarchical": True, "m0": np.ascontiguousarray(law.mean), "k0": law.kappa}
        fields |= {"psi0": law.psi, "nu0": law.nu}
        eta, xi = gaussian_moments(fields["m0"], fields["psi0"])
    elif moments is None and isinstance(law, tuple):
        eta, xi = gaussian_moments(*(np.ascontiguousarray(part) for part in law))
    else:
        found = covariate_moments(model, rows, moments)
        eta, xi = found.second, found.root @ found.root.T
    values, vectors = np.linalg.eigh(xi)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    fields |= {"eta": np.ascontiguousarray(eta), "xi": np.ascontiguousarray(xi)}
    return RegressionModel(**fields, xi_root=np.ascontiguousarray(root))


def plan(reading: Reading, moments: Any = None) -> Plan:
    """Plan the route; say what of the model the kernel does not cover."""
    regression = covered(reading, False)
    kernel_model(reading.model, regression, moments, corrected=True)
    rate = 1e6 / regression.rows.width**2.8
    return Plan(rate, partial(sample, reading, moments=moments))


def sample(reading: Reading, *, moments: Any = None, **kwargs: Any) -> DataTree:
    """Sample the joint law of parameters and sums, Normal by the central limit theorem, exactly."""
    return _sample(reading, moments, corrected=True, **kwargs)


def published(reading: Reading, *, moments: Any = None, **kwargs: Any) -> DataTree:
    """Run the sampler of Bernstein & Sheldon (2019) as it was published, for comparison.

    Its draws of the parameters given the sums are conjugate ones, which do not belong to the Normal
    law of the sums: what it converges to is not the posterior of a model.
    """
    return _sample(reading, moments, corrected=False, **kwargs)


def _sample(
    reading: Reading,
    moments: Any,
    *,
    corrected: bool,
    tune: int = 1000,
    compute_convergence_checks: bool = True,
    **kwargs: Any,
) -> DataTree:
    regression = covered(reading, False)
    kernel = kernel_model(reading.model, regression, moments, corrected=corrected)
    d, k = kernel.mu0.size, kernel.z.size
    width = d + 1 + k + (d * d if kernel.hierarchical else 0)
    thin = SWEEPS if corrected else 1  # the published sampler keeps every sweep

    def begin(rng: np.random.Generator):
        sweeps = np.empty((tune, width))
        return run_sweeps(rng, initial_state(kernel), kernel, True, thin, sweeps)

    def advance(rng: np.random.Generator, state, draws: int):
        out = np.empty((draws, width))
        return run_sweeps(rng, state, kernel, False, thin, out), out

    advance(np.random.default_rng(0), initial_state(kernel), 1)  # compiled after this
    found, seconds = run_chains(begin, advance, **kwargs)
    values = regression.values(found[..., :d], found[..., d])
    sums = found[..., d + 1 : d + 1 + k]
    mean, cov = _sample_moments(sums, d, regression.rows.n)
    if kernel.hierarchical:
        prior = regression.covariate
        assert isinstance(prior, NormalInverseGamma | NormalWishart)
        roots = found[..., d + 1 + k :].reshape(-1, d, d)
        means, covs = zip(*map(covariate_law, roots), strict=True)
        shape = found.shape[:2]
        values |= covariate_values(
            prior, np.reshape(means, (*shape, d - 1)), np.reshape(covs, (*shape, d - 1, d - 1))
        )
    name = "regression by the central limit theorem" if corrected else "Bernstein & Sheldon (2019)"
    attributes = {"route": name, "sampling_time": seconds, "tuning_steps": tune}
    checks = compute_convergence_checks
    return regression_tree(
        reading, regression.rows, values, mean, cov, thin, attributes, checks=checks
    )


def naive(
    reading: Reading,
    *,
    draws: int = 1000,
    chains: int | None = None,
    random_seed: Any = None,
    compute_convergence_checks: bool = True,
    moments: Any = None,
    **_: Any,
) -> DataTree:
    """Draw from the posterior that takes what was published for the confidential sums.

    It is what an analysis gives that ignores the noise, for comparison: its intervals are too
    narrow. Sums that no data have are projected onto those that are nearest.
    """
    regression = covered(reading, False)
    kernel = kernel_model(
        reading.model, regression, _any_moments(regression, moments), corrected=False
    )
    if kernel.bounded:
        raise Declined("the naive analysis knows no bounds=: leave them out for it")
    missing = np.flatnonzero((kernel.laplace == 0.0) & (kernel.gaussian == 0.0))
    if missing.size:
        raise Declined("the naive analysis needs all sums of products to be released")
    d = kernel.mu0.size
    products = cross_products(kernel.z, kernel.n, d)
    cone = onto_cone(products)
    if not np.allclose(cone, products):
        _log.warning("The published sums are those of no data: they were projected")
    rng = np.random.default_rng(random_seed)
    chains = chains or 4
    out = np.empty((chains, draws, d + 1))
    *law, proper = nig_update(cone, kernel.n, kernel.mu0, kernel.lambda0, kernel.a0, kernel.b0)
    if not proper:
        raise ValueError("the published sums and the prior give no proper naive posterior")
    for row in out.reshape(-1, d + 1):
        row[:d], row[d] = draw_nig(rng, *law[:4])
    values = regression.values(out[..., :d], out[..., d])
    sums = np.broadcast_to(kernel.z, (*out.shape[:2], kernel.z.size))
    mean, cov = _sample_moments(sums, d, regression.rows.n)
    attributes = {"route": "naive", "sampling_time": 0.0, "tuning_steps": 0}
    checks = compute_convergence_checks
    return regression_tree(
        reading, regression.rows, values, mean, cov, 1, attributes, checks=checks
    )


def _any_moments(regression: ConjugateRegression, moments: Any) -> Any:
    """Return moments of covariates where they do not matter."""
    if moments is not None or regression.covariate is not None:
        return moments
    d = regression.rows.width
    return np.eye(d)[:, :, None, None] * np.eye(d)


def _sample_moments(sums: np.ndarray, d: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the sample mean and covariance matrix of the columns (x, y) from sums of products."""
    products = np.empty((*sums.shape[:-1], d + 1, d + 1))
    i, j = (index[1:] for index in np.triu_indices(d))
    products[..., 0, 0] = n
    products[..., i, j] = products[..., j, i] = sums[..., : i.size]
    products[..., d, :d] = products[..., :d, d] = sums[..., i.size : i.size + d]
    products[..., d, d] = sums[..., -1]
    mean = products[..., 0, 1:] / n
    scatter = products[..., 1:, 1:] - n * mean[..., :, None] * mean[..., None, :]
    return mean, scatter / (n - 1)


METHODS: dict[str, Callable[..., DataTree]] = {"bernstein-sheldon": published, "naive": naive}


ROUTES.add(
    Route(
        "regression by the central limit theorem",
        "statistics",
        plan,
        ARGUMENTS,
        approximate="clt",
    )
)
