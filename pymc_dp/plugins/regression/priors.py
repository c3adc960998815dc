"""The priors of a regression, read in conjugate form."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.multivariate import MvNormalRV, WishartRV
from pytensor import scalar as ps
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.linalg import MatrixInverse
from pytensor.tensor.random.basic import InvGammaRV, NormalRV
from pytensor.tensor.variable import TensorVariable
from scipy import sparse

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.powers import power, power_law
from pymc_dp.graphs.shapes import entry_of, known_shape
from pymc_dp.graphs.values import known_value, nearest_rvs
from pymc_dp.reading.columns import Link, Rows
from pymc_dp.reading.model import prior_number, prior_value
from pymc_dp.reading.sums.polynomials import Polynomial, constant, degree, read_polynomial


@dataclass(frozen=True)
class NormalInverseGamma:
    r"""A conjugate prior: :math:`v \sim IG(a, b)`, :math:`\beta \mid v \sim N(m, v\, C)`.

    Attributes
    ----------
    variance : the variable v; the variance is ``factor * v``.
    factor : the number factor.
    shape, rate : a and b of the variance itself.
    entries : the variable and index of each entry of beta.
    mean, cov : m and C.
    """

    variance: TensorVariable
    factor: float
    shape: float
    rate: float
    entries: list[tuple[TensorVariable, tuple[int, ...]]]
    mean: np.ndarray
    cov: np.ndarray

    @property
    def variables(self) -> list[TensorVariable]:
        """The variables that have this prior."""
        return [self.variance, *dict.fromkeys(rv for rv, _ in self.entries)]

    @property
    def kappa(self) -> float:
        """How many observations the prior of a single mean is worth."""
        return 1.0 / float(self.cov[0, 0])

    @property
    def psi(self) -> np.ndarray:
        """Scale of the inverse Wishart law of the variance, as a matrix of one entry."""
        return np.array([[2.0 * self.rate]])

    @property
    def nu(self) -> float:
        """Degrees of freedom of the inverse Wishart law of the variance."""
        return 2.0 * self.shape

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the variables that hold the entries."""
        return {rv.name: _shape(rv) for rv in dict.fromkeys(rv for rv, _ in self.entries)}

    def values(self, beta: np.ndarray, variance: np.ndarray) -> dict[str, np.ndarray]:
        """Return draws by name; `beta` has the entries on its last axis."""
        v = variance / self.factor
        draws = {self.variance.name: v.reshape(*v.shape, *[1] * self.variance.type.ndim)}
        for name, shape in self.shapes.items():
            places = [k for k, (rv, _) in enumerate(self.entries) if rv.name == name]
            draws[name] = beta[..., places].reshape(*beta.shape[:-1], *shape)
        return draws


@dataclass(frozen=True)
class NormalWishart:
    r"""A conjugate prior: :math:`T \sim W(\nu, \Psi^{-1})`, mean N(m, inverse of kappa T).

    Attributes
    ----------
    precision, location : the variables T and mu.
    nu, psi, kappa, mean : the numbers of the prior.
    """

    precision: TensorVariable
    location: TensorVariable
    nu: float
    psi: np.ndarray
    kappa: float
    mean: np.ndarray

    @property
    def variables(self) -> list[TensorVariable]:
        """The variables that have this prior."""
        return [self.precision, self.location]

    def values(self, mean: np.ndarray, cov: np.ndarray) -> dict[str, np.ndarray]:
        """Return draws by name."""
        return {self.location.name: mean, self.precision.name: np.linalg.inv(cov)}


ConjugateLaw = NormalInverseGamma | NormalWishart


def read_prior(model: pm.Model, means, sigma: TensorVariable, link: Link) -> NormalInverseGamma:
    """Read the prior of the variables in the mean and standard deviation of a Normal variable."""
    name = link.rv.name
    variance = sigma**2
    sources = nearest_rvs([variance])
    law = power_law(variance, sources[0], positive=True) if len(sources) == 1 else None
    if law is None or law[1] != 1 or not isinstance(sources[0].owner.op, InvGammaRV):
        raise Declined(
            f"the variance of {name!r} has no inverse gamma prior: the kernel is for "
            f"sigma2 = pm.InverseGamma(...), {name!r} = pm.Normal(..., pm.math.sqrt(sigma2))"
        )
    [spread] = sources
    factor = law[0]
    alpha, beta = (prior_number(p, spread.name) for p in spread.owner.op.dist_params(spread.owner))
    entries: list[tuple[TensorVariable, tuple[int, ...]]] = []
    locations, blocks = [], []
    graphs = [m for m in means if isinstance(m, Variable)]
    for rv in [rv for rv in model.free_RVs if rv in nearest_rvs(graphs)]:
        op = rv.owner.op
        if rv.type.ndim > 1 or not isinstance(op, NormalRV | MvNormalRV):
            raise Declined(f"the prior of {rv.name!r} is not Normal")
        width = math.prod(_shape(rv))
        location, scale = op.dist_params(rv.owner)
        location = _unfilled(location)
        cov = scale**2 if isinstance(op, NormalRV) else scale
        if nearest_rvs([cov]) != [spread] or power(cov, spread, positive=True) != 1:
            raise Declined(
                f"the prior of {rv.name!r} is not conjugate: its standard deviation has to be "
                f"proportional to that of {name!r} (of several, pm.MvNormal(..., cov=C * sigma2))"
            )
        if nearest_rvs([location]):
            raise Declined(
                f"the prior of {rv.name!r} is not conjugate: its mean has to be a number"
            )
        value = np.full([1] * spread.type.ndim, 1 / factor, spread.dtype)
        at_one = graph_replace(cov, {spread: pt.constant(value)}, strict=False)
        unit = prior_value(at_one, rv.name)
        if isinstance(op, NormalRV):
            unit = np.diag(np.broadcast_to(unit, (width,)))
        blocks.append(unit)
        locations.append(np.broadcast_to(np.asarray(known_value(location)), (width,)))
        entries += [(rv, (k,) if rv.type.ndim else ()) for k in range(width)]
    # scipy.linalg.block_diag would import JAX: ArviZ leaves a lazy module of it where it is
    # installed.
    arrays = map(sparse.coo_array, blocks)
    cov = sparse.block_diag([*arrays]).toarray() if blocks else np.zeros((0, 0))
    mean = np.concatenate(locations) if locations else np.zeros(0)
    return NormalInverseGamma(spread, factor, alpha, beta * factor, entries, mean, cov)


def _unfilled(graph: TensorVariable) -> TensorVariable:
    """Return a graph without broadcasts to another shape, which MvNormal applies to its mean."""
    while graph.owner is not None:
        op = getattr(graph.owner.op, "scalar_op", graph.owner.op)
        if not isinstance(op, ps.Second | DimShuffle):
            break
        graph = graph.owner.inputs[-1]
    return graph


def _shape(rv: TensorVariable) -> tuple[int, ...]:
    shape = tuple(length for length in known_shape(rv) if length is not None)
    if len(shape) < rv.type.ndim:
        raise Declined(f"the shape of {rv.name!r} is not known")
    return shape


def map_of_coefficients(graphs, entries, link: Link) -> tuple[np.ndarray, np.ndarray]:
    """Read scalars as linear functions of entries of variables."""

    def leaf(variable: Variable) -> Polynomial | None:
        entry = entry_of(variable) if nearest_rvs([variable]) else None
        if entry in entries:
            return {(entries.index(entry),): 1.0}
        if not nearest_rvs([variable]):
            value = known_value(variable)
            if value is not None and value.size == 1:
                return constant(float(value.ravel()[0]))
        return None

    matrix, offset = np.zeros((len(graphs), len(entries))), np.zeros(len(graphs))
    for row, graph in enumerate(graphs):
        try:
            polynomial = (
                read_polynomial(graph, leaf) if isinstance(graph, Variable) else constant(graph)
            )
        except Declined as error:
            raise Declined(f"a coefficient of {link.rv.name!r}: {error}") from None
        if degree(polynomial) > 1:
            raise Declined(f"a coefficient of {link.rv.name!r} is a product of variables")
        for monomial, value in polynomial.items():
            if monomial:
                matrix[row, monomial[0]] = value
            else:
                offset[row] = value
    return matrix, offset


def read_covariates(model: pm.Model, rows: Rows, links):
    """Return the known law of the covariates, or the conjugate prior of their law."""
    mean, root = rows.law(links)
    known_mean, known_root = map(known_value, (mean, root))
    if known_mean is not None and known_root is not None:
        return known_mean, known_root @ known_root.T
    [link, *rest] = links
    if not rest and link.sigma is None:
        return _read_wishart(model, link)
    if rest or link.intercept is None:
        raise Declined(
            "it covers covariates with a known law, one with a conjugate prior, or several as one "
            "pm.MvNormal with a Wishart precision"
        )
    location = link.rv.owner.op.dist_params(link.rv.owner)[0].squeeze()
    prior = read_prior(model, [location], link.sigma, link)
    matrix, offset = map_of_coefficients([location], prior.entries, link)
    if matrix.shape != (1, 1) or matrix[0, 0] != 1.0 or offset[0] != 0.0:
        raise Declined(f"the mean of {link.rv.name!r} is no free variable")
    return prior


def _read_wishart(model: pm.Model, link: Link) -> NormalWishart:
    """Read the prior of the mean and precision of several covariates."""
    name = link.rv.name
    reason = NotImplementedError(
        f"the law of {name!r} is not known, nor is its prior conjugate: "
        f"T = pm.Wishart('T', nu, V), mu = pm.MvNormal('mu', m, tau=kappa * T), "
        f"{name!r} = pm.MvNormal(..., mu, tau=T)"
    )
    if not isinstance(link.rv.owner.op, MvNormalRV):
        raise reason
    location, cov = map(_unfilled, link.rv.owner.op.dist_params(link.rv.owner))
    if location not in model.free_RVs or not isinstance(location.owner.op, MvNormalRV):
        raise reason
    mean, location_cov = map(_unfilled, location.owner.op.dist_params(location.owner))
    factors = []
    for matrix in (cov, location_cov):
        if not isinstance(getattr(matrix.owner.op, "core_op", None), MatrixInverse):
            raise reason
        [inner] = matrix.owner.inputs
        [precision, *rest] = nearest_rvs([inner])
        if rest or not isinstance(precision.owner.op, WishartRV) or power(inner, precision) != 1:
            raise reason
        ones = pt.ones(precision.type.shape, dtype=precision.dtype)
        at_one = known_value(graph_replace(inner, {precision: ones}, strict=False))
        if at_one is None or np.ptp(at_one) > 0.0:
            raise reason
        factors.append((precision, float(at_one.flat[0])))
    [(precision, unit), (same, kappa)] = factors
    if precision is not same or unit != 1.0 or nearest_rvs([mean]):
        raise reason
    nu, root = precision.owner.inputs[-2:]
    root = prior_value(root, precision.name)
    center = np.broadcast_to(np.asarray(known_value(mean), "float64"), (link.width,))
    psi = np.linalg.inv(root @ root.T)
    return NormalWishart(precision, location, prior_number(nu, precision.name), psi, kappa, center)
