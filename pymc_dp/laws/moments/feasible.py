"""Mean and variance of bounded records, integrated out over the feasible region."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply
from pytensor.tensor.random.basic import NormalRV

from pymc_dp.graphs.draws import as_row, per_draw
from pymc_dp.graphs.ops import Placement
from pymc_dp.kernels import njit
from pymc_dp.kernels.moments import feasible
from pymc_dp.laws.integrated import Integrated, in_results
from pymc_dp.laws.kernel_call import KernelCall, doubles
from pymc_dp.laws.one_value import entry
from pymc_dp.laws.tilting import laplace_log_marginal, log_tilted_mass
from pymc_dp.mechanisms.arguments import as_float
from pymc_dp.mechanisms.base import has_kink
from pymc_dp.mechanisms.release import FeasibleMoments, law_is_feasible


def moment_noises(components, mechanism, value, stacked: bool):
    """Return (Laplace rate, Gaussian precision, value) by released moment, "mean" or "variance".

    The value and the noise are rescaled to the moment itself, without its factor and constant.
    """
    noises = {}
    for j, component in enumerate(components):
        moment = "mean" if component.mean else "variance"
        factor = component.mean or component.variance
        [noise] = mechanism.parameters
        scale = as_float(entry(noise, j, len(components)) if stacked else noise) / abs(factor)
        z = ((value[j] if stacked else value) - component.constant) / factor
        noises[moment] = (*mechanism.with_parameters(scale).rates, z)
    return noises


def of_both(noises) -> tuple:
    """Return the values of `moment_noises` for mean and variance, zeros where one is missing."""
    none = (pt.constant(0.0),) * 3
    return *noises.get("mean", none), *noises.get("variance", none)


class FeasibleEdges(KernelCall, Placement):
    """Edges of the quadrature over the feasible region; the integral does not depend on them."""

    __props__ = ("n", "lower", "upper")

    def __init__(self, n: int, lower: float, upper: float):
        self.n, self.lower, self.upper = float(n), float(lower), float(upper)

    def make_node(self, numbers):
        """Apply to the vector (m, v, lam1, tau1, z1, lam2, tau2, z2)."""
        return Apply(self, doubles(numbers), [pt.vector(shape=(feasible.EDGES,), dtype="float64")])

    def call(self):
        """See `KernelCall.call`."""
        edges, n, lower, upper = _edges, self.n, self.lower, self.upper

        def feasible_edges(numbers):
            return edges(n, lower, upper, numbers)

        return feasible_edges


@njit(cache=True, nogil=True, error_model="numpy")
def _edges(n, lower, upper, numbers):
    m, v, lam1, tau1, z1, lam2, tau2, z2 = numbers
    half = 0.5 * (upper - lower)
    if not (v > 0.0 and m > lower and m < upper and v < 4.0 * half * half):
        return np.linspace(0.0, 0.5 * np.pi, feasible.EDGES)
    problem, _ = feasible.make_problem(n, m, v, lam1, tau1, z1, lam2, tau2, z2, lower, upper)
    return feasible.feasible_edges(problem)


@dataclass(frozen=True)
class BoundedMoments(Integrated):
    r"""The mean, the variance or both of bounded records; parameters are m and v of their law.

    The density is the integral of the unconstrained joint density over the feasible region of
    (mean, variance), not divided by the region's probability:

    .. math::

        p(z) = \int_{F} N(\bar y \mid m, v/n)\, \mathrm{Gamma}(s \mid \tfrac{n-1}{2},
        \tfrac{n-1}{2v})\, \eta(z \mid \bar y, s)\, d\bar y\, ds \cdot 1[(m, v) \text{ feasible}]

    A draw outside of the region is NaN.
    """

    components: tuple
    n: int
    bounds: tuple[float, float]
    names: tuple[str, ...]
    stacked: bool

    def cost(self, entries: int) -> dict[str, float]:
        """See `Integrated.cost`."""
        return {"bounded moments": 1.0}

    def draw(self, rng, m, v):
        """See `Integrated.draw`."""
        n = self.n
        rng, mean = pt.random.normal(m, pt.sqrt(v / n), rng=rng, return_next_rng=True)
        rng, s2 = pt.random.gamma((n - 1) / 2, scale=2 * v / (n - 1), rng=rng, return_next_rng=True)
        parts = [c.expression(mean, s2) for c in self.components]
        possible = FeasibleMoments(m, v, mean, s2).feasible(n, *self.bounds)
        return rng, pt.switch(possible, pt.stack(parts) if self.stacked else parts[0], np.nan)

    def problem(self, value, mechanism, m, v):
        """Return m, v, and (lam, tau, z) of the noise of the mean and of the variance."""
        return m, v, *of_both(moment_noises(self.components, mechanism, value, self.stacked))

    def logp(self, value, mechanism, m, v):
        """See `Integrated.logp`."""
        m, v, lam1, tau1, z1, lam2, tau2, z2 = self.problem(value, mechanism, m, v)
        n, (lower, upper) = self.n, self.bounds
        half, middle = (upper - lower) / 2, (upper + lower) / 2
        law_feasible = law_is_feasible(m, v, lower, upper)
        # Outside of the region the value is -inf; keep the graph finite there.
        m = pt.switch(law_feasible, m, middle)
        v = pt.switch(law_feasible, v, half**2 / 2)

        numbers = pt.stack(doubles(m, v, lam1, tau1, z1, lam2, tau2, z2))
        edges = FeasibleEdges(n, lower, upper)(numbers)
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
        log_mean = self._log_mean_mass(mechanism, m, v / n, lam1, tau1, z1, y_low, y_high)
        logp = pt.logsumexp(log_weight + log_gamma + log_noise + log_mean)
        jacobian = sum(float(np.log(abs(c.mean or c.variance))) for c in self.components)
        return pt.switch(law_feasible, logp - jacobian, -np.inf)

    def recovered(self, rv, value, posterior, rng):
        """See `Integrated.recovered`."""
        mechanism, parameters = rv.owner.op.split(rv.owner.inputs)
        moments = self.problem(value, mechanism, *parameters)
        return draw_moments(self.names, moments, self.n, self.bounds, posterior, rng)

    def _log_mean_mass(self, mechanism, m, v, lam, tau, z, low, high):
        """Log integral of Normal(y | m, v) eta(z | y) over [low, high]."""
        released = any(c.mean for c in self.components)
        if released and has_kink(mechanism):
            return laplace_log_marginal(NormalRV(), z, lam, m, pt.sqrt(v), lo=low, hi=high)
        if released:
            total = v + 1 / tau
            factor = -((z - m) ** 2) / total / 2 - pt.log(2 * np.pi * total) / 2
            m, v = (m + v * tau * z) / (1 + v * tau), v / (1 + v * tau)
            return factor + log_tilted_mass(NormalRV(), 0.0, 0.0, low, high, m, pt.sqrt(v))
        return log_tilted_mass(NormalRV(), 0.0, 0.0, low, high, m, pt.sqrt(v))


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


def draw_moments(names, moments, n, bounds, posterior, rng) -> dict[str, Any]:
    """Draw mean and variance of bounded records given their releases, at each posterior draw.

    `moments` is what `BoundedMoments.problem` returns.
    """
    rows = per_draw(posterior, as_row(*moments))
    rows = np.ascontiguousarray(rows[..., 0])
    drawn = _draw_each(rng, float(n), float(bounds[0]), float(bounds[1]), rows)
    mean, variance = names
    return in_results(posterior, mean, drawn[:, 0]) | in_results(posterior, variance, drawn[:, 1])


@njit(cache=True, nogil=True, error_model="numpy")
def _draw_each(rng, n, lower, upper, rows):
    out = np.empty((rows.shape[0], 2))
    for i in range(rows.shape[0]):
        m, v, lam1, tau1, z1, lam2, tau2, z2 = rows[i]
        problem, _ = feasible.make_problem(n, m, v, lam1, tau1, z1, lam2, tau2, z2, lower, upper)
        out[i] = feasible.draw_feasible(rng, problem)
    return out
