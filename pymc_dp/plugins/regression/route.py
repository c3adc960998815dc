"""The exact route for linear regressions with a conjugate prior: chains of one compiled kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pymc as pm
from pytensor.tensor.variable import TensorVariable
from xarray import DataTree

from pymc_dp.graphs.declined import Declined, once
from pymc_dp.graphs.interrupts import Pieces
from pymc_dp.graphs.values import known_value
from pymc_dp.ladder.collapse import collapsible
from pymc_dp.laws.moments.sums import column_products, nearest_sample
from pymc_dp.mechanisms.release import (
    FeasibleMoments,
    FeasibleRegression,
    law_is_feasible,
    record_bounds,
)
from pymc_dp.plugins.regression.columns import Columns
from pymc_dp.plugins.regression.kernels.bounds import central_point
from pymc_dp.plugins.regression.kernels.chain import run_sweeps
from pymc_dp.plugins.regression.kernels.density import RegressionModel
from pymc_dp.plugins.regression.kernels.statistics import scatter
from pymc_dp.plugins.regression.kernels.tuning import proposal_shape, tune_proposal
from pymc_dp.plugins.regression.priors import (
    ConjugateLaw,
    NormalInverseGamma,
    map_of_coefficients,
    read_covariates,
    read_prior,
)
from pymc_dp.reading.checks import check_transform
from pymc_dp.reading.columns import Rows
from pymc_dp.reading.model import Reading
from pymc_dp.routes import ROUTES, Plan, Route
from pymc_dp.routes.chain import ARGUMENTS, check_releases, run
from pymc_dp.step_methods.base import published_values


@dataclass(frozen=True)
class ConjugateRegression:
    """A regression that the compiled chain covers wholly.

    Attributes
    ----------
    rows : the rows and their releases.
    prior : the prior of the variables beta in the coefficients, and of the error variance.
    matrix, offset : the coefficients (intercept first) are ``matrix @ beta + offset``.
    covariate : the mean and covariance matrix of the covariates, or the conjugate prior of both.
    """

    rows: Rows
    prior: NormalInverseGamma
    matrix: np.ndarray
    offset: np.ndarray
    covariate: tuple[np.ndarray, np.ndarray] | ConjugateLaw

    def values(self, theta: np.ndarray, variance: np.ndarray) -> dict[str, np.ndarray]:
        """Return draws of the prior's variables by name, from those of the coefficients."""
        beta = (theta - self.offset) @ np.linalg.pinv(self.matrix).T
        return self.prior.values(beta, variance)


_NAME = "exact regression"


def plan(reading: Reading) -> Plan:
    """Plan the route; decline a model that the compiled chain does not cover."""
    d = covered(reading).rows.width
    return Plan.costing({_NAME: d**2.8}, partial(sample, reading))


@once
def covered(reading: Reading) -> ConjugateRegression:
    """Read a regression that the compiled chain covers wholly; decline any other."""
    law, *rest = collapsible(reading)
    if rest or not isinstance(law, Columns):
        raise Declined("it covers one regression of rows (x, y)")
    rows, model = law.rows, reading.model
    check_releases(model, [r.rv for r in rows.releases])
    for release in rows.releases:
        if release.degree > 2:
            raise Declined(f"{release.name!r} is of products of {release.degree} columns")
        try:
            release.linear()
        except Declined as error:
            raise Declined(f"the statistic of {release.name!r}: {error}") from None
    *covariates, response = rows.links
    if response.coefficients is None or response.sigma is None:
        raise Declined(f"{response.rv.name!r} is no response to the other columns")
    if rows.n < rows.width + 1:
        raise Declined(f"{rows.n} rows of {rows.width} columns are too few")
    prior = read_prior(model, response.coefficients, response.sigma, response)
    matrix, offset = map_of_coefficients(response.coefficients, prior.entries, response)
    if np.linalg.matrix_rank(matrix) < matrix.shape[1]:
        names = ", ".join(dict.fromkeys(repr(rv.name) for rv, _ in prior.entries))
        raise Declined(
            f"the coefficients of {response.rv.name!r} do not determine {names}: several values "
            f"give the same coefficients"
        )
    covariate = read_covariates(model, rows, covariates)
    drawn = [prior.variance, *(rv for rv, _ in prior.entries), *rows.records]
    if isinstance(covariate, ConjugateLaw):
        law_variables = covariate.variables
        shared = [rv.name for rv in law_variables if rv in drawn]
        if shared:
            raise Declined(
                f"{shared[0]!r} is part of the law of the covariates and of that of "
                f"{response.rv.name!r}"
            )
        drawn += law_variables
    if box(rows)["bounded"] and len(matrix) > matrix.shape[1]:
        raise Declined(
            f"a coefficient of {response.rv.name!r} is a number: with bounds= the kernel is for "
            f"coefficients with a prior"
        )
    extra = [rv.name for rv in model.free_RVs if rv not in drawn]
    if extra:
        raise Declined(f"it does not cover the variable {extra[0]!r}")
    for rv in dict.fromkeys(drawn):
        check_transform(model, rv)
    return ConjugateRegression(rows, prior, matrix, offset, covariate)


def kernel_model(model: pm.Model, regression: ConjugateRegression) -> RegressionModel:
    """Read the numbers that the kernel needs, with the current noise and observed values."""
    rows, prior = regression.rows, regression.prior
    order = {product: k for k, product in enumerate(column_products(rows.width))}
    offset, weights = [], []
    for polynomial in (entry for release in rows.releases for entry in release.linear()):
        weights.append({order[m]: value for m, value in polynomial.items() if m})
        offset.append(polynomial.get((), 0.0))
    published = [published_values(model, release.rv) for release in rows.releases]
    z, lam, tau = map(np.concatenate, zip(*published, strict=True))
    terms = max(1, *map(len, weights))  # number of sums in an entry, at most; entries may have none
    padded = [list(row.items()) + [(0, 0.0)] * (terms - len(row)) for row in weights]
    matrix, basis, cov = regression.matrix, regression.matrix, prior.cov
    if len(matrix) == matrix.shape[1]:
        basis, cov = np.eye(len(matrix)), matrix @ prior.cov @ matrix.T
    fields: dict[str, Any] = {
        "n": float(rows.n),
        "z": z,
        "lam": lam,
        "tau": tau,
        "offset": np.array(offset, dtype="float64"),
        "terms": np.array([[k for k, _ in row] for row in padded]),
        "weights": np.array([[value for _, value in row] for row in padded], dtype="float64"),
        "mean_theta": matrix @ prior.mean + regression.offset,
        "basis": np.ascontiguousarray(basis),
        "precision": np.linalg.inv(cov),
        "shape": prior.shape,
        "rate": prior.rate,
    } | box(rows)
    law = regression.covariate
    if isinstance(law, ConjugateLaw):
        mean, cov, precision = law.mean, law.psi, np.eye(len(law.psi))
        fields |= {"hierarchical": True, "kappa": law.kappa, "nu": law.nu}
    else:
        mean, cov = law
        precision = np.linalg.inv(cov)
        fields |= {"hierarchical": False, "kappa": 1.0, "nu": 1.0}
    mean = np.ascontiguousarray(mean)
    return RegressionModel(**fields, mean_x=mean, precision_x=precision, psi=cov)


def box(rows: Rows) -> dict[str, Any]:
    """Return the fields of the bounds that the releases state.

    Bounds of a release of the covariate alone agree with the box, but also confine the covariate's
    law. The kernel does not confine that law, which is right if the law is known and feasible.
    """
    stated: dict = {}
    for release in rows.releases:
        stated |= record_bounds(release.rv, rows.records)
    if not stated:
        return {"bounded": False, "box": np.zeros(4)}
    regions = [r.rv.owner.op.split(r.rv.owner.inputs)[2] for r in rows.releases]
    if rows.width != 2 or not any(isinstance(region, FeasibleRegression) for region in regions):
        raise Declined(
            f"bounds= of {', '.join(repr(rv.name) for rv in stated)} are no box: it covers those "
            f"of both columns of a simple regression, stated in one release"
        )
    x, y = rows.records
    for region in regions:
        if isinstance(region, FeasibleMoments):
            feasible = law_is_feasible(region.law_mean, region.law_variance, *stated[x])
            if not known_value(feasible):
                raise Declined(f"bounds= of {x.name!r} confine its law, too")
    (ax, bx), (ay, by) = stated[x], stated[y]
    return {"bounded": True, "box": np.array([ax, bx, ay, by])}


def start(kernel: RegressionModel, rng: np.random.Generator):
    """Return scattered coordinates near the released sums, theta and sigma2.

    With bounds they are in the middle of the feasible region.
    """
    p, n = kernel.mean_x.size, kernel.n
    cov = kernel.psi / max(kernel.nu - p - 1, 1.0) if kernel.hierarchical else kernel.psi
    mean, theta = kernel.mean_x, kernel.mean_theta
    sigma2 = kernel.rate / max(kernel.shape, 1.0) * (0.5 + rng.random())
    if kernel.bounded:
        s, theta, sigma2 = central_point(n, kernel.box)
        mean, cov = s[:1] / n, np.array([[s[1] / n - (s[0] / n) ** 2]])
        sigma2 *= 0.5 + 0.5 * rng.random()
    root = np.linalg.cholesky(cov)
    rows = np.block([[root, np.zeros((p, 1))], [theta[1:] @ root, np.sqrt(sigma2)]])
    mean, factor = np.append(mean, theta[0] + mean @ theta[1:]), np.sqrt(n - 1) * rows
    if not kernel.bounded and kernel.weights.any():
        products = (p + 1) * (p + 4) // 2
        matrix = np.zeros((kernel.z.size, products))
        np.add.at(matrix, (np.arange(kernel.z.size)[:, None], kernel.terms), kernel.weights)
        sd = 1.0 / np.where(kernel.lam > 0.0, kernel.lam * np.sqrt(0.5), np.sqrt(kernel.tau))
        before = np.diag(factor)
        mean, factor = nearest_sample(matrix, kernel.z - kernel.offset, sd, int(n), (mean, factor))
        diagonal = np.diag_indices(
            p + 1
        )  # sums that no rows can have lead to the edge of the region that they can
        least = 1e-2 * np.maximum(before, np.sqrt((factor**2).sum(axis=1)))
        factor[diagonal] = np.maximum(factor[diagonal], least)
    lower, last = factor[:p, :p], factor[p]
    slope = np.linalg.solve(lower.T, last[:p])
    packed = [lower[i, j] if j < i else np.log(lower[i, i]) for i in range(p) for j in range(i + 1)]
    c = np.concatenate([mean[:p], packed, [mean[p]], slope, [2.0 * np.log(last[p])]])
    if not kernel.bounded:
        c += 2.0 * proposal_shape(kernel, c).factor @ rng.standard_normal(c.size)
    return c, np.append(mean[p] - mean[:p] @ slope, slope), last[p] ** 2 / (n - p - 1)


def moments(coordinates: np.ndarray, p: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the sample mean and covariance matrix of the columns at coordinates of the kernel."""
    size = coordinates.shape[-1]
    mean = coordinates[..., [*range(p), size - p - 2]]
    products = [scatter(c, p) for c in coordinates.reshape(-1, size)]
    cov = np.empty((*mean.shape, p + 1))
    i, j = np.triu_indices(p + 1)
    cov[..., i, j] = cov[..., j, i] = np.reshape(products, (*mean.shape[:-1], -1))
    return mean, cov / (n - 1)


def named_moments(rows: Rows, mean: np.ndarray, cov: np.ndarray) -> dict[str, np.ndarray]:
    """Return the sample mean and covariance matrix of the columns as results name them."""
    return {f"{rows.name}_mean": mean, f"{rows.name}_cov": cov}


@dataclass(frozen=True)
class RegressionChain:
    """A chain of the kernel for one model and its releases.

    Attributes
    ----------
    kernel : RegressionModel
    regression : ConjugateRegression
    """

    kernel: RegressionModel
    regression: ConjugateRegression

    @classmethod
    def read(cls, reading: Reading) -> RegressionChain:
        """Read a model that the kernel covers."""
        regression = covered(reading)
        return cls(kernel_model(reading.model, regression), regression)

    @property
    def variables(self) -> list[TensorVariable]:
        """The model's variables that it draws."""
        law = self.regression.covariate
        law_variables = law.variables if isinstance(law, ConjugateLaw) else []
        return [*self.regression.prior.variables, *law_variables]

    @property
    def size(self) -> int:
        """The number of coordinates."""
        p = self.regression.rows.width - 1
        return p + p * (p + 1) // 2 + p + 2

    @property
    def sweeps(self) -> int:
        """Trajectories to a draw."""
        return 1

    def given(self, released: Mapping[str, np.ndarray]) -> RegressionChain:
        """Return the chain for other released values."""
        z = [np.ravel(released[r.name]) for r in self.regression.rows.releases]
        return replace(self, kernel=self.kernel._replace(z=np.concatenate(z).astype("float64")))

    def begin(
        self,
        rng: np.random.Generator,
        tune: int,
        thin: int | None = None,
        *,
        pieces: Pieces | None = None,
    ):
        """Return a state with its proposal, adapted during `tune` draws' worth of steps."""
        steps, check = tune * (thin or self.sweeps), (pieces or Pieces()).check
        return tune_proposal(rng, *start(self.kernel, rng), self.kernel, steps, check)

    def advance(self, rng: np.random.Generator, state, draws: int, thin: int | None = None):
        """Return the next state, and a row (theta, variance, coordinates) for each draw."""
        *point, proposal = state
        out = np.empty((draws, self.regression.rows.width + 1 + self.size))
        point = run_sweeps(rng, *point, self.kernel, proposal, thin or self.sweeps, out)
        return (*point, proposal), out

    def moments(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the sample mean and covariance matrix of the columns."""
        width = self.regression.rows.width
        return moments(rows[..., width + 1 :], width - 1, self.regression.rows.n)

    def values(self, rows: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return draws by name; a law of the covariates is drawn given their moments."""
        p, law = self.regression.rows.width - 1, self.regression.covariate
        draws = self.regression.values(rows[..., : p + 1], rows[..., p + 1])
        if isinstance(law, ConjugateLaw):
            mean, cov = self.moments(rows)
            n = self.regression.rows.n
            draws |= _draw_covariate(rng, law, mean[..., :p], cov[..., :p, :p], n)
        return draws

    def posterior(self, rows: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return draws by name, with the rows' sample moments."""
        return self.values(rows, rng) | named_moments(self.regression.rows, *self.moments(rows))


def sample(reading: Reading, *, tune: int = 1000, **kwargs: Any) -> DataTree:
    """Run the kernel on every chain: `tune` draws' worth of steps adapt the proposal."""
    chain = RegressionChain.read(reading)
    if tune < 1:
        raise ValueError(
            f"tune={tune}: the chain has to learn the sizes of its steps; write tune=500"
        )
    return run(reading, "exact regression", chain, "trajectories", tune=tune, **kwargs)


def _draw_covariate(rng, prior: ConjugateLaw, mean, cov, n: int):
    """Draw the mean and covariance matrix of the covariates given those of the sample."""
    p, kappa = len(prior.psi), prior.kappa
    shift = mean - prior.mean
    psi = prior.psi + (n - 1) * cov
    psi = psi + kappa * n / (kappa + n) * shift[..., :, None] * shift[..., None, :]
    bartlett = np.zeros(psi.shape)  # factor A of a Wishart matrix
    below = np.tril_indices(p, -1)
    bartlett[..., *below] = rng.standard_normal((*mean.shape[:-1], len(below[0])))
    for i in range(p):
        chi2 = 2.0 * rng.standard_gamma((prior.nu + n - i) / 2, size=mean.shape[:-1])
        bartlett[..., i, i] = np.sqrt(chi2)
    # W = L A A' L' is Wishart with LL' = psi^-1; its inverse is RR' with R = (L A)'^-1.
    root = np.linalg.cholesky(np.linalg.inv(psi))
    inverse = np.linalg.inv(np.swapaxes(root @ bartlett, -1, -2))
    center = (kappa * prior.mean + n * mean) / (kappa + n)
    e = rng.standard_normal(mean.shape)[..., None]
    location = center + (inverse @ e)[..., 0] / np.sqrt(kappa + n)
    return covariate_values(prior, location, inverse @ np.swapaxes(inverse, -1, -2))


def covariate_values(prior: ConjugateLaw, mean, cov) -> dict[str, np.ndarray]:
    """Return draws of the law of the covariates by name, from means and covariance matrices."""
    return prior.values(mean, cov[..., 0, 0] if isinstance(prior, NormalInverseGamma) else cov)


ROUTES.add(
    Route(
        "exact regression",
        "statistics",
        plan,
        ARGUMENTS,
        usual={"exact regression": 7.0},
        chain=RegressionChain.read,
    )
)
