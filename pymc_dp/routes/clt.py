"""Regressions under the central limit theorem."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pymc as pm
from xarray import DataTree

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.interrupts import Pieces
from pymc_dp.kernels.moments.clt_chain import (
    RegressionModel,
    covariate_law,
    initial_state,
    run_sweeps,
)
from pymc_dp.laws.moments.sums import feature_products
from pymc_dp.plugins.regression.columns import covariate_moments, releases_of_sums
from pymc_dp.plugins.regression.kernels.clt_law import gaussian_moments
from pymc_dp.plugins.regression.priors import ConjugateLaw
from pymc_dp.plugins.regression.route import (
    ConjugateRegression,
    box,
    covariate_values,
    covered,
    named_moments,
)
from pymc_dp.reading.columns import Rows
from pymc_dp.reading.model import Reading
from pymc_dp.routes import ROUTES, Plan, Route
from pymc_dp.routes.chain import ARGUMENTS, run
from pymc_dp.step_methods.base import published_values

NAME = "regression by the central limit theorem"
SWEEPS = 2  # to a recorded draw


def released_sums(model: pm.Model, rows: Rows, moments: Any) -> dict[str, np.ndarray]:
    """Read the published sums, noise and observed values as they are now.

    The sums are those of x_i x_j (i <= j, without the first), x_i y and y y, with x_0 = 1. Where
    both noises are 0 a sum was not released.
    """
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
    return {"z": z, "laplace": laplace, "gaussian": gaussian}


def kernel_model(model: pm.Model, regression: ConjugateRegression, moments: Any) -> RegressionModel:
    """Read the numbers that the kernel needs."""
    rows, prior = regression.rows, regression.prior
    matrix = regression.matrix
    p = rows.width - 1
    fields: dict[str, Any] = {
        **released_sums(model, rows, moments),
        "n": float(rows.n),
        "mu0": matrix @ prior.mean + regression.offset,
        "lambda0": np.ascontiguousarray(np.linalg.inv(matrix @ prior.cov @ matrix.T)),
        "a0": prior.shape,
        "b0": prior.rate,
        "hierarchical": False,
        "m0": np.zeros(p),
        "k0": 1.0,
        "psi0": np.eye(p),
        "nu0": float(p + 2),
        **box(rows),
    }
    law = regression.covariate
    if moments is None and isinstance(law, ConjugateLaw):
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
    if len(regression.matrix) != regression.matrix.shape[1]:
        raise Declined("a coefficient is a number")
    kernel_model(reading.model, regression, moments)
    cost = {NAME: regression.rows.width**2.8}
    return Plan.costing(cost, partial(sample, reading, moments=moments))


def sample(reading: Reading, *, moments: Any = None, **kwargs: Any) -> DataTree:
    """Sample the joint law of parameters and sums, Normal by the central limit theorem, exactly."""
    regression = covered(reading, False)
    kernel = kernel_model(reading.model, regression, moments)
    chain = CltChain(kernel, regression)
    chain.advance(np.random.default_rng(0), initial_state(kernel), 1)  # compiled after this
    return run(reading, NAME, chain, **kwargs)


@dataclass(frozen=True)
class CltChain:
    """A chain of the kernel for one regression and what was released.

    Attributes
    ----------
    kernel : RegressionModel
    regression : ConjugateRegression
    """

    kernel: RegressionModel
    regression: ConjugateRegression

    sweeps: ClassVar[int] = SWEEPS

    def begin(self, rng: np.random.Generator, tune: int, *, pieces: Pieces):
        """Return a state after the draws to be discarded, in which the moves are tuned."""
        state = initial_state(self.kernel)
        for piece in pieces.of(tune):
            state, _ = self._run(rng, state, piece.stop - piece.start, tuning=True)
        return state

    def advance(self, rng: np.random.Generator, state, draws: int):
        """Return the next state, and a row (theta, variance, sums, root) for each draw."""
        return self._run(rng, state, draws, tuning=False)

    def _run(self, rng, state, draws: int, *, tuning: bool):
        kernel, d = self.kernel, self.kernel.mu0.size
        width = d + 1 + kernel.z.size + (d * d if kernel.hierarchical else 0)
        out = np.empty((draws, width))
        return run_sweeps(rng, state, kernel, tuning, self.sweeps, out), out

    def posterior(self, rows: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return draws by name, with the rows' sample moments."""
        d, k, regression = self.kernel.mu0.size, self.kernel.z.size, self.regression
        found = regression.values(rows[..., :d], rows[..., d])
        if self.kernel.hierarchical:
            assert isinstance(regression.covariate, ConjugateLaw)
            roots = rows[..., d + 1 + k :].reshape(-1, d, d)
            means, covs = zip(*map(covariate_law, roots), strict=True)
            shape = rows.shape[:2]
            found |= covariate_values(
                regression.covariate,
                np.reshape(means, (*shape, d - 1)),
                np.reshape(covs, (*shape, d - 1, d - 1)),
            )
        return found | _sample_moments(regression.rows, rows[..., d + 1 : d + 1 + k])


def _sample_moments(rows: Rows, sums: np.ndarray) -> dict[str, np.ndarray]:
    """Return the sample moments of the columns (x, y) by name, from sums of products."""
    d, n = rows.width, rows.n
    products = np.empty((*sums.shape[:-1], d + 1, d + 1))
    i, j = (index[1:] for index in np.triu_indices(d))
    products[..., 0, 0] = n
    products[..., i, j] = products[..., j, i] = sums[..., : i.size]
    products[..., d, :d] = products[..., :d, d] = sums[..., i.size : i.size + d]
    products[..., d, d] = sums[..., -1]
    mean = products[..., 0, 1:] / n
    scatter = products[..., 1:, 1:] - n * mean[..., :, None] * mean[..., None, :]
    return named_moments(rows, mean, scatter / (n - 1))


ROUTES.add(Route(NAME, "statistics", plan, ARGUMENTS, approximate="clt"))
