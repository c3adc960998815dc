r"""Latent Normal variables, and how each of them acts on the data; see `routes.coordinates`.

A latent variable :math:`x = m + s \xi` acts through :math:`\theta = A + B \xi`. Here x, theta and
their expressions are found in the graph of the model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import EllipsisType

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.multivariate import MvNormalRV
from pymc.distributions.timeseries import AutoRegressiveRV, RandomWalkRV
from pymc.logprob.transforms import Transform
from pytensor.gradient import pushforward
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.scalar import basic as ps
from pytensor.tensor.basic import Join
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.extra_ops import CumOp
from pytensor.tensor.random.basic import NormalRV
from pytensor.tensor.subtensor import AdvancedSubtensor
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import once
from pymc_dp.graphs.shapes import known_shape, lengths
from pymc_dp.graphs.values import keeps_values, nearest_rvs
from pymc_dp.reading.model import Reading
from pymc_dp.reading.tags import is_tagged
from pymc_dp.routes.latent_normal import latent_normal, latent_vector
from pymc_dp.routes.latent_walk import (
    cumulated,
    innovations,
    latent_walk,
    of_differences,
    of_scaled,
)

_LONGEST = 150  # entries of a vector: its precision is factorised for every gradient, in 2 ms


@dataclass(frozen=True, eq=False)
class Latent(ABC):
    r"""A latent Normal variable, and how it acts on the data.

    Attributes
    ----------
    rv : the variable.
    a : A as an expression of the model.
    expressions : the other expressions; the docstring of the subclass lists them.
    is_theta : whether the variable is theta itself.
    """

    rv: TensorVariable
    a: TensorVariable
    expressions: tuple[TensorVariable, ...]
    is_theta: bool
    is_joint = False  # whether the entries of theta depend on each other

    def replaced(self, replacements: dict[TensorVariable, TensorVariable]) -> Latent:
        """Return it with some variables replaced in its expressions."""
        a, *expressions = graph_replace([self.a, *self.expressions], replacements, strict=False)
        return replace(self, a=a, expressions=tuple(expressions))

    @property
    @abstractmethod
    def variance(self) -> TensorVariable:
        """The prior variance of each entry of theta."""

    @abstractmethod
    def from_theta(self, theta: TensorVariable) -> TensorVariable:
        """Return the variable for a value of theta."""

    def posterior_mean(self, h, k) -> TensorVariable:
        """Return the mean of theta given parabolas h and k."""
        rv, transform = replace(self, is_theta=True).coordinates(h, k)
        return transform.backward(pt.zeros(lengths(rv)), *rv.owner.inputs)

    @abstractmethod
    def coordinates(self, h, k) -> tuple[TensorVariable, Transform]:
        """Return the variable with its new random variable op, and its coordinates."""

    @property
    def is_free(self) -> bool:
        """Whether its spread, as theta has it, depends on free variables."""
        return bool(nearest_rvs([self.expressions[-1]]))


class Entries(Latent):
    """Independent entries; `expressions` are m, s and B."""

    @property
    def variance(self):
        """See `Latent.variance`."""
        return self.expressions[-1] ** 2

    def from_theta(self, theta):
        """See `Latent.from_theta`."""
        mean, sd, b = self.expressions
        return theta if self.is_theta else mean + sd * (theta - self.a) / b

    def coordinates(self, h, k):
        """See `Latent.coordinates`."""
        mean, sd, b = self.expressions
        return latent_normal(mean, sd, self.a, b, h, k)

    def posterior_mean(self, h, k):
        """See `Latent.posterior_mean`."""
        return self.a + self.variance * (k - h * self.a) / (1.0 + h * self.variance)


class Vector(Latent):
    """A vector; the one of `expressions` is the matrix B."""

    is_joint = True

    @property
    def variance(self):
        """See `Latent.variance`."""
        return (self.expressions[0] ** 2).sum(axis=-1)

    def from_theta(self, theta):
        """See `Latent.from_theta`."""
        return theta

    def coordinates(self, h, k):
        """See `Latent.coordinates`."""
        return latent_vector(self.a, *self.expressions, h, k)


class Walk(Latent):
    """A series, or its innovations; `expressions` are m, s and the bands of W."""

    is_joint = True
    is_free = True  # even with a fixed spread: neighbours depend on each other, which slows NUTS

    @property
    def variance(self):
        """See `Latent.variance`: that of a random walk, an upper bound for an autoregression."""
        return pt.cumsum(self.expressions[2] ** -2.0)

    def from_theta(self, theta):
        """See `Latent.from_theta`."""
        mean, sd, *bands = self.expressions
        return theta if self.is_theta else mean + sd * innovations(bands, theta - self.a)

    def coordinates(self, h, k):
        """See `Latent.coordinates`."""
        mean, sd, *bands = self.expressions
        return latent_walk(mean, sd, self.a, bands, h, k, is_theta=self.is_theta)


@once
def latents(reading: Reading) -> list[Latent]:
    """Return the latent Normal variables whose effect on the data has a free spread."""
    model = reading.model
    clients: dict[TensorVariable, list] = {}
    for variable in ancestors([*model.basic_RVs, *model.potentials]):
        for parent in dict.fromkeys(variable.owner.inputs if variable.owner else ()):
            clients.setdefault(parent, []).append(variable.owner)
    latent_variables = []
    for rv in model.free_RVs:
        if (
            model.rvs_to_transforms[rv] is None
            and rv.dtype == "float64"
            and not is_tagged(rv)
            and None not in known_shape(rv)
        ):
            latent = _latent(rv, clients)
            if latent is not None and latent.is_free:
                latent_variables.append(latent)
    return latent_variables


def _latent(rv: TensorVariable, clients) -> Latent | None:
    match rv.owner.op:
        case NormalRV():
            mean, sd = rv.owner.op.dist_params(rv.owner)
            theta, sums, section = _affine(rv, clients)
            zero = pt.zeros(lengths(rv))
            mean, sd = zero + mean, zero + sd
            [a] = graph_replace([theta[section]], {rv: mean}, strict=False)
            if sums:
                return Walk(rv, a, (mean, sd, *_bands_of_sums(rv, sd, theta, sums, section)), False)
            [b] = graph_replace([pushforward(theta, rv, sd)[section]], {rv: zero}, strict=False)
            if (times := _times_when_looked_up(theta, clients)) is not None:
                return Entries(rv, times * a, (mean, sd, times * b), False)
            return Entries(rv, a, (mean, sd, b), theta is rv)
        case MvNormalRV() if rv.type.ndim == 1 and lengths(rv)[0] <= _LONGEST:
            mean, covariance = rv.owner.op.dist_params(rv.owner)
            return Vector(rv, mean, (pt.linalg.cholesky(covariance),), True)
        case RandomWalkRV() if rv.type.ndim == 1 and lengths(rv)[0] > 1:
            first, steps = (part.owner for part in rv.owner.inputs[:2])
            if isinstance(first.op, NormalRV) and isinstance(steps.op, NormalRV):
                [n] = lengths(rv)
                of_first, of_step = (part.op.dist_params(part) for part in (first, steps))
                mean, sd = _first_then_rest(of_first, of_step, 1, n)
                bands = of_differences([1.0 / sd])
                return Walk(rv, pt.cumsum(mean), (mean, sd, *bands), True)
        case AutoRegressiveRV(ar_order=p, constant_term=constant) if rv.type.ndim == 1:
            rho, sigma, first = rv.owner.inputs[:3]
            if isinstance(first.owner.op, NormalRV):
                [n] = lengths(rv)
                (m0, s0), m = first.owner.op.dist_params(first.owner), rho[0] if constant else 0.0
                mean, sd = _first_then_rest((m0, s0), (m, sigma), p, n)
                later = np.arange(n) >= p
                lags = [-rho[constant + i] * later / sd for i in range(p)]
                bands = [1.0 / sd, *lags]
                return Walk(rv, cumulated(bands, mean / sd), (mean, sd, *bands), True)
    return None


def _first_then_rest(first, rest, p: int, n: int) -> list[TensorVariable]:
    """Return parameters of n entries: the first p have those of `first`, the others of `rest`."""
    sizes = (p,), (n - p,)
    pairs = zip(first, rest, strict=True)
    return [pt.concatenate(list(map(pt.broadcast_to, pair, sizes))) for pair in pairs]


def _affine(rv: TensorVariable, clients) -> tuple[TensorVariable, list, slice | EllipsisType]:
    """Return theta: the last variable in the graph that is affine in rv, entry by entry.

    Also return the running sums on the way, each as the variable that is summed, the section of it
    that comes from rv, and the sum; and the section of theta that comes from rv, as a vector may
    have been joined to others.
    """
    theta: TensorVariable = rv
    sums: list[tuple] = []
    section: slice | EllipsisType = ...
    while len(clients.get(theta, ())) == 1 and clients[theta][0].inputs.count(theta) == 1:
        [node] = clients[theta]
        place = node.inputs.index(theta)
        scalar = node.op.scalar_op if isinstance(node.op, Elemwise) else None
        linear = isinstance(scalar, ps.Add | ps.Sub | ps.Neg | ps.Mul)
        linear |= not place and (isinstance(scalar, ps.TrueDiv) or keeps_values(node.op, theta))
        is_sum = isinstance(node.op, CumOp) and node.op.mode == "add" and rv.type.ndim == 1
        if isinstance(node.op, Join) and rv.type.ndim == 1:
            if any(None in known_shape(x) for x in node.inputs):
                break
            begin = sum(lengths(x)[0] for x in node.inputs[:place])
            begin += section.start if isinstance(section, slice) else 0
            section = slice(begin, begin + lengths(rv)[0])
        elif not is_sum and (not linear or known_shape(node.out) != known_shape(theta)):
            break
        if is_sum:
            sums.append((theta, section, node.out))
        theta = node.out
    return theta, sums, section


def _times_when_looked_up(theta: TensorVariable, clients) -> TensorVariable | None:
    """Return s of ``s * theta[group]``, a number; None if theta is not used like this."""
    [node, *more] = clients.get(theta, [None])
    if more or node is None or not isinstance(node.op, AdvancedSubtensor):
        return None
    [product, *more] = clients.get(node.out, [None])
    scalar = getattr(getattr(product, "op", None), "scalar_op", None)
    if more or not isinstance(scalar, ps.Mul) or product.inputs.count(node.out) != 1:
        return None
    factors = [x for x in product.inputs if x is not node.out]
    return pt.prod([x.reshape(()) for x in factors]) if _are_numbers(factors) else None


def _are_numbers(variables: Sequence[TensorVariable]) -> bool:
    return all(all(x.type.broadcastable) for x in variables)


def _bands_of_sums(rv: TensorVariable, sd, theta, sums, section) -> list[TensorVariable]:
    """Return the bands of W, which takes theta to the innovations behind its running sums."""
    bands, begin = [1.0 / sd], rv
    for end, place, summed in [*sums, (theta, section, None)]:
        if end is not begin:
            zero = pt.zeros(lengths(begin))
            slope = pushforward(end, begin, zero + 1.0)
            [slope] = graph_replace([slope[place]], {begin: zero}, strict=False)
            bands = of_scaled(bands, 1.0 / slope)
        if summed is not None:
            bands, begin = of_differences(bands), summed
    return bands
