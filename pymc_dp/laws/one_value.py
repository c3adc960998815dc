"""Releases with the confidential statistics integrated out: the random variables of that rung."""

from __future__ import annotations

import math
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.distribution import SymbolicRandomVariable, _support_point
from pymc.logprob.abstract import _logprob
from pytensor.graph.basic import Apply
from pytensor.link.numba.dispatch.basic import register_funcify_and_cache_key
from pytensor.tensor.random.basic import NormalRV
from pytensor.tensor.random.op import RandomVariable

from pymc_dp.graphs.ops import Placement
from pymc_dp.kernels import njit, version_of
from pymc_dp.kernels.moments import feasible
from pymc_dp.laws import find_pair, require_pair
from pymc_dp.laws.counted import read_law
from pymc_dp.laws.tilting import laplace_log_marginal, log_tilted_mass
from pymc_dp.mechanisms import LaplaceMechanism
from pymc_dp.mechanisms.arguments import as_float
from pymc_dp.mechanisms.release import FeasibleMoments, PrivateReleaseRV, law_is_feasible

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pymc as pm
    from pytensor.tensor.variable import TensorVariable

    from pymc_dp.mechanisms.base import Mechanism


@dataclass(frozen=True)
class Statistic:
    """One confidential statistic of a known law, released as ``factor * statistic + constant``."""

    name: str
    law: RandomVariable
    n_parameters: int
    factor: float = 1.0
    constant: float = 0.0


class IntegratedReleaseRV(SymbolicRandomVariable):
    """A release whose confidential statistics, or records, are integrated out.

    Attributes
    ----------
    names : names under which `recover` draws what was integrated out.
    mechanism : the noise of the release.
    """

    names: tuple[str, ...]
    mechanism: Mechanism

    @property
    def nuts_rate(self) -> float:
        """Effective draws a second to be expected of NUTS on it, see `sampling.Route`."""
        return 5_000.0


def all_releases(model: pm.Model) -> list[TensorVariable]:
    """Return the releases of a model, those whose confidential values are integrated out too."""
    kinds = PrivateReleaseRV | IntegratedReleaseRV
    return [rv for rv in model.basic_RVs if isinstance(rv.owner.op, kinds)]


class MarginalReleaseRV(IntegratedReleaseRV):
    """A release of independent statistics of known laws, the statistics integrated out.

    Inputs are the rng of the noise, one rng for each statistic, the parameters of every law and
    those of the mechanism. With `stacked` the statistics are the entries of a vector release,
    otherwise there is one, of any shape.
    """

    _print_name = ("MarginalRelease", "\\operatorname{MarginalRelease}")
    statistics: tuple[Statistic, ...]
    stacked: bool

    def split(self, inputs):
        """Return the laws' parameters and, for each statistic, its mechanism."""
        rest = list(inputs[1 + len(self.statistics) :])
        laws = []
        for statistic in self.statistics:
            laws.append(rest[: statistic.n_parameters])
            rest = rest[statistic.n_parameters :]
        noises = [
            [_entry(p, j, len(self.statistics)) if self.stacked else p for p in rest]
            for j in range(len(self.statistics))
        ]
        return laws, noises

    def standardised(self, inputs, value):
        """For each statistic: its law's parameters, mechanism and value as if factor were 1."""
        laws, noises = self.split(inputs)
        for j, statistic in enumerate(self.statistics):
            z = value[..., j] if self.stacked else value
            mechanism = self.mechanism.with_parameters(
                *(p / abs(statistic.factor) for p in noises[j])
            )
            yield statistic, laws[j], mechanism, (z - statistic.constant) / statistic.factor


def _entry(parameter, j: int, length: int):
    return pt.broadcast_to(parameter, (length,))[j]


def _marginal_rv(
    statistics: Sequence[Statistic],
    laws: Sequence[Sequence[TensorVariable]],
    mechanism: Mechanism,
    *,
    stacked: bool,
) -> TensorVariable:
    for statistic in statistics:
        find_pair(statistic.law, mechanism)
    count = len(statistics)
    inputs = [
        *(pt.random.shared_rng(seed=None) for _ in range(count + 1)),
        *(p for law in laws for p in law),
        *mechanism.parameters,
    ]
    dummies = [variable.type() for variable in inputs]
    rest = dummies[1 + count :]
    next_rngs, draws = [], []
    for statistic, rng in zip(statistics, dummies[1 : 1 + count], strict=True):
        parameters, rest = rest[: statistic.n_parameters], rest[statistic.n_parameters :]
        next_rng, draw = statistic.law(*parameters, rng=rng, return_next_rng=True)
        next_rngs.append(next_rng)
        draws.append(statistic.factor * draw + statistic.constant)
    confidential = pt.stack(draws) if stacked else draws[0]
    next_rng, draw = mechanism.with_parameters(*rest).noise_sample(dummies[0], confidential)
    rngs = ",".join(["[rng]"] * (count + 1))
    op = MarginalReleaseRV(
        dummies,
        [next_rng, *next_rngs, draw],
        extended_signature=f"{rngs},{','.join(['()'] * (len(inputs) - count - 1))}->{rngs},()",
    )
    op.statistics, op.mechanism, op.stacked = tuple(statistics), mechanism, stacked
    op.names = tuple(statistic.name for statistic in statistics)
    return op(*inputs)


def marginal_release_rv(statistic: TensorVariable, mechanism: Mechanism, *, name: str):
    """Build the release of an unregistered ``.dist(...)``, which is integrated out."""
    try:
        law, parameters = read_law(statistic)
        require_pair(law, mechanism, parameters)
    except NotImplementedError as error:
        raise NotImplementedError(
            f"{name!r}: {error}. Register the confidential value with the model instead "
            f"(x = pm...('x', ...)) and release x"
        ) from None
    found = Statistic(f"{name}_confidential", law, len(parameters))
    return _marginal_rv([found], [parameters], mechanism, stacked=False)


def stacked_release_rv(
    statistics: Sequence[Statistic],
    laws: Sequence[Sequence[TensorVariable]],
    mechanism: Mechanism,
    *,
    ndim: int,
) -> TensorVariable:
    """Build the release of independent statistics, a vector unless `ndim` is 0."""
    return _marginal_rv(statistics, laws, mechanism, stacked=ndim == 1)


@_logprob.register(MarginalReleaseRV)
def _marginal_logprob(op, values, *inputs, **kwargs):
    [value] = values
    terms = [
        find_pair(statistic.law, mechanism).log_marginal(mechanism, z, *law)
        - np.log(abs(statistic.factor))
        for statistic, law, mechanism, z in op.standardised(inputs, value)
    ]
    return pt.stack(terms, axis=-1) if op.stacked else terms[0]


@_support_point.register(MarginalReleaseRV)
def _marginal_support_point(op, rv, *inputs):
    return pt.zeros(rv.shape)


class FeasibleReleaseRV(IntegratedReleaseRV):
    r"""A release of the mean, the variance or both of bounded records, integrated out.

    The density is the integral of the unconstrained joint density over the feasible region of
    (mean, variance), not divided by the region's probability:

    .. math::

        p(z) = \int_{F} N(\bar y \mid m, v/n)\, \mathrm{Gamma}(s \mid \tfrac{n-1}{2},
        \tfrac{n-1}{2v})\, \eta(z \mid \bar y, s)\, d\bar y\, ds \cdot 1[(m, v) \text{ feasible}]

    Inputs are the three rngs, m, v and the mechanism's parameters.
    """

    _print_name = ("FeasibleRelease", "\\operatorname{FeasibleRelease}")

    @property
    def nuts_rate(self) -> float:
        """Effective draws a second to be expected of NUTS on it, see `sampling.Route`."""
        return 500.0

    components: tuple
    n: int
    bounds: tuple[float, float]
    stacked: bool

    def problem(self, inputs, value):
        """Return (m, v, noise of the mean, noise of the variance); noise is (lam, tau, z)."""
        m, v, *parameters = inputs[3:]
        mechanism = self.mechanism.with_parameters(*parameters)
        noises = moment_noises(self.components, mechanism, value, self.stacked)
        zero = pt.constant(0.0)
        none = (zero, zero, zero)
        return m, v, noises.get("mean", none), noises.get("variance", none)


def moment_noises(components, mechanism, value, stacked: bool):
    """Return (Laplace rate, Gaussian precision, value) of each released moment, "mean", "variance".

    The value and the noise are those of the moment itself, its factor and constant taken out.
    """
    noises = {}
    for j, component in enumerate(components):
        which = "mean" if component.mean else "variance"
        factor = component.mean or component.variance
        [noise] = mechanism.parameters
        scale = as_float(_entry(noise, j, len(components)) if stacked else noise) / abs(factor)
        z = ((value[j] if stacked else value) - component.constant) / factor
        noises[which] = (*mechanism.with_parameters(scale).rates, z)
    return noises


def feasible_release_rv(components, m, v, mechanism, *, n, bounds, names, ndim) -> TensorVariable:
    """Build the release of the moments of bounded records, integrated out."""
    inputs = [*(pt.random.shared_rng(seed=None) for _ in range(3)), m, v, *mechanism.parameters]
    dummies = [variable.type() for variable in inputs]
    rng, rng_mean, rng_variance, mean, variance, *rest = dummies
    next_mean, ybar = pt.random.normal(
        mean, pt.sqrt(variance / n), rng=rng_mean, return_next_rng=True
    )
    next_variance, s2 = pt.random.gamma(
        (n - 1) / 2, scale=2 * variance / (n - 1), rng=rng_variance, return_next_rng=True
    )
    parts = [c.expression(ybar, s2) for c in components]
    statistic = pt.stack(parts) if ndim else parts[0]
    next_rng, draw = mechanism.with_parameters(*rest).noise_sample(rng, statistic)
    feasible_now = FeasibleMoments(mean, variance, ybar, s2).feasible(n, *bounds)
    draw = pt.switch(feasible_now, draw, np.nan)
    op = FeasibleReleaseRV(
        dummies,
        [next_rng, next_mean, next_variance, draw],
        extended_signature=f"[rng],[rng],[rng],{','.join(['()'] * (len(inputs) - 3))}"
        f"->[rng],[rng],[rng],{'(k)' if ndim else '()'}",
    )
    op.components, op.mechanism, op.n = tuple(components), mechanism, n
    op.bounds, op.names, op.stacked = bounds, names, bool(ndim)
    return op(*inputs)


class FeasibleEdges(Placement):
    """Edges of the quadrature over the feasible region; the integral does not depend on them."""

    __props__ = ("n", "lower", "upper")

    def __init__(self, n: int, lower: float, upper: float):
        self.n, self.lower, self.upper = n, lower, upper

    def make_node(self, *inputs):
        """Apply to (m, v, lam1, tau1, z1, lam2, tau2, z2)."""
        doubles = [pt.as_tensor(i).astype("float64") for i in inputs]
        return Apply(self, doubles, [pt.vector(shape=(feasible.EDGES,), dtype="float64")])

    def perform(self, node, inputs, output_storage):
        """Place the edges."""
        output_storage[0][0] = _edges(self.n, self.lower, self.upper, *(float(i) for i in inputs))


@register_funcify_and_cache_key(FeasibleEdges)
def _numba_feasible_edges(op, node, **kwargs):
    from pytensor.link.numba.dispatch import basic as numba_basic

    n, lower, upper = float(op.n), float(op.lower), float(op.upper)
    edges = _edges

    @numba_basic.numba_njit
    def feasible_edges(m, v, lam1, tau1, z1, lam2, tau2, z2):
        return edges(
            n,
            lower,
            upper,
            m.item(),
            v.item(),
            lam1.item(),
            tau1.item(),
            z1.item(),
            lam2.item(),
            tau2.item(),
            z2.item(),
        )

    # Compiled graphs are cached on disk: the key follows the kernels' source.
    return feasible_edges, sha256(
        repr((n, lower, upper, version_of(__file__))).encode()
    ).hexdigest()


@njit(cache=True, nogil=True, error_model="numpy")
def _edges(n, lower, upper, m, v, lam1, tau1, z1, lam2, tau2, z2):
    half = 0.5 * (upper - lower)
    if not (v > 0.0 and m > lower and m < upper and v < 4.0 * half * half):
        return np.linspace(0.0, 0.5 * np.pi, feasible.EDGES)
    problem, _ = feasible.make_problem(n, m, v, lam1, tau1, z1, lam2, tau2, z2, lower, upper)
    return feasible.feasible_edges(problem)


@_logprob.register(FeasibleReleaseRV)
def _feasible_logprob(op, values, *inputs, **kwargs):
    [value] = values
    m, v, (lam1, tau1, z1), (lam2, tau2, z2) = op.problem(inputs, value)
    n, (lower, upper) = op.n, op.bounds
    half, middle = (upper - lower) / 2, (upper + lower) / 2
    law_feasible = law_is_feasible(m, v, lower, upper)
    # Outside of the region the value is -inf; keep the graph finite there.
    m = pt.switch(law_feasible, m, middle)
    v = pt.switch(law_feasible, v, half**2 / 2)

    edges = FeasibleEdges(n, lower, upper)(m, v, lam1, tau1, z1, lam2, tau2, z2)
    left, width = edges[:-1, None], pt.diff(edges)[:, None]
    # Pieces of no width may sit at zero, where the density has a pole.
    phi = pt.maximum((left + width * (1 + feasible.NODES) / 2).ravel(), 1e-150)
    log_weight = pt.log(pt.maximum(width * feasible.WEIGHTS / 2, 1e-300)).ravel()
    sine, cosine = pt.sin(phi), pt.cos(phi)
    cap = n / (n - 1) * half**2
    s = cap * sine**2
    # Gamma(s | a, a/v) ds/dphi around s = v, where nothing cancels for large n.
    a = (n - 1) / 2
    u = s / v - 1
    log_gamma = a * (pt.log(s / v) - u) + _log_peak(a) + pt.log(2 * cosine / sine)
    log_noise = _log_noise(lam2, tau2, z2, s)
    y_low, y_high = middle - half * cosine, middle + half * cosine
    log_mean = _log_mean_mass(op, m, v / n, lam1, tau1, z1, y_low, y_high)
    logp = pt.logsumexp(log_weight + log_gamma + log_noise + log_mean)
    jacobian = sum(float(np.log(abs(c.mean or c.variance))) for c in op.components)
    return pt.switch(law_feasible, logp - jacobian, -np.inf)


def _log_peak(a: float) -> float:
    """Log of a^a e^-a / Gamma(a)."""
    if a < 1e4:
        return a * math.log(a) - a - math.lgamma(a)
    return 0.5 * math.log(a / (2 * math.pi)) - 1 / (12 * a) + 1 / (360 * a**3)


def _log_noise(lam, tau, z, s):
    """Log density of the noise at z - s, Laplace or Gaussian, 0 where there is neither."""
    laplace = pt.log(pt.switch(lam > 0, lam, 2.0) / 2) - lam * pt.abs(z - s)
    gaussian = pt.log(pt.switch(tau > 0, tau, 2 * np.pi) / (2 * np.pi)) / 2 - tau * (z - s) ** 2 / 2
    return laplace + gaussian


def _log_mean_mass(op, m, v, lam, tau, z, low, high):
    """Log integral of Normal(y | m, v) eta(z | y) over [low, high]."""
    released = any(c.mean for c in op.components)
    if released and isinstance(op.mechanism, LaplaceMechanism):
        return laplace_log_marginal(NormalRV(), z, lam, m, pt.sqrt(v), lo=low, hi=high)
    if released:
        total = v + 1 / tau
        factor = -((z - m) ** 2) / total / 2 - pt.log(2 * np.pi * total) / 2
        m, v = (m + v * tau * z) / (1 + v * tau), v / (1 + v * tau)
        return factor + log_tilted_mass(NormalRV(), 0.0, 0.0, low, high, m, pt.sqrt(v))
    return log_tilted_mass(NormalRV(), 0.0, 0.0, low, high, m, pt.sqrt(v))


@_support_point.register(FeasibleReleaseRV)
def _feasible_support_point(op, rv, *inputs):
    return pt.zeros(rv.shape)
