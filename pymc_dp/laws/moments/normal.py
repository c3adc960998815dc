"""Jointly Normal statistics, integrated out of their release."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable
from scipy import linalg

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.draws import each_draw
from pymc_dp.graphs.shapes import known_shape
from pymc_dp.laws.integrated import Integrated, in_results, integrated_release
from pymc_dp.laws.sum_law import Change
from pymc_dp.mechanisms.base import has_continuous_rates, has_kink
from pymc_dp.reading.model import mechanism_of


@dataclass(frozen=True)
class NormalStatistics(Integrated):
    r"""Jointly Normal statistics :math:`s = m + F e`, raveled; parameters are m, F and perhaps w.

    Given the variances w of the noise, :math:`z \sim N(m, FF' + \mathrm{diag}(w))`. Gaussian noise
    has known variances; those of Laplace noise are variables of the model,
    :math:`w_j \sim \mathrm{Exp}(1/(2 b_j^2))`. Prior predictive draws have fresh noise of the
    mechanism. Results show the statistics without the factors and constants in `public`.
    """

    shape: tuple[int, ...]
    names: tuple[str, ...]
    public: tuple[Any, Any] = (1.0, 0.0)
    by_entry = True

    def draw(self, rng, mean, factor, *variances):
        """See `Integrated.draw`."""
        rng, e = pt.random.normal(size=(factor.shape[1],), rng=rng, return_next_rng=True)
        return rng, (mean + factor @ e).reshape(self.shape)

    def logp(self, value, mechanism, mean, factor, *variances):
        """See `Integrated.logp`."""
        noise = self.noise_variances(mechanism, *variances)
        chol = pt.linalg.cholesky(factor @ factor.T + pt.diag(noise))
        residual = pt.linalg.solve_triangular(chol, value.ravel() - mean, lower=True, b_ndim=1)
        k = int(np.prod(self.shape))
        log_det = pt.log(pt.diagonal(chol)).sum()
        return -0.5 * (residual**2).sum() - log_det - 0.5 * k * np.log(2 * np.pi)

    def cost(self, entries: int) -> dict[str, float]:
        """See `Integrated.cost`."""
        return {"jointly Normal": entries}

    def noise_variances(self, mechanism, *variances):
        """Return the variances of the noise: variables of the model, or those of the mechanism."""
        if variances:
            return variances[0]
        return pt.broadcast_to(1.0 / mechanism.rates[1], self.shape).ravel()

    def support_point(self, rv, mean, *parameters):
        """See `Integrated.support_point`."""
        return mean.reshape(self.shape)

    def recovered(self, rv, value, posterior, rng):
        """See `Integrated.recovered`."""
        mechanism, [mean, factor, *variances] = rv.owner.op.split(rv.owner.inputs)
        noise = self.noise_variances(mechanism, *variances)
        times, added = map(np.asarray, self.public)
        drawn = [
            (conditional(z, m, f, w, rng.standard_normal(f.shape[1] + w.size)) - added) / times
            for z, m, f, w in each_draw(posterior, [value.ravel(), mean, factor, noise])
        ]
        return in_results(posterior, self.names[0], np.reshape(drawn, (-1, *self.shape)))


def conditional(z, mean, factor, variances, normal) -> np.ndarray:
    r"""Draw jointly Normal statistics given their release, from standard Normal numbers.

    A draw of statistics and release, (s_0, z_0), is shifted to the published release z:
    :math:`s_0 + FF'(FF' + \mathrm{diag}(w))^{-1}(z - z_0)` (Matheron's rule).
    """
    columns = factor.shape[1]
    statistics = mean + factor @ normal[:columns]
    gap = z - statistics - np.sqrt(variances) * normal[columns:]
    covariance = factor @ factor.T
    total = covariance + np.diag(variances)
    return statistics + covariance @ linalg.solve(total, gap, assume_a="pos")


def normal_release(
    change: Change, release: TensorVariable, mean, factor, name: str, public=(1.0, 0.0)
) -> TensorVariable:
    """Integrate jointly Normal statistics out of a release; see `NormalStatistics`.

    Variances of Laplace noise are added to the change.
    """
    mechanism = mechanism_of(release)
    if not has_continuous_rates(mechanism):
        raise Declined(
            f"the release {release.name!r} has no marginal under {type(mechanism).__name__}: "
            f"LaplaceMechanism and GaussianMechanism are supported. Use to='statistics'"
        )
    shape = tuple(int(length) for length in known_shape(release) if length is not None)
    variances = []
    if has_kink(mechanism):
        assert mechanism.rates is not None
        scale = pt.broadcast_to(1.0 / mechanism.rates[0], shape).ravel()
        variance = pm.Exponential.dist(scale=2 * scale**2, shape=int(np.prod(shape)))
        transform = pm.distributions.transforms.log
        change.added[f"{release.name}_noise_variance"] = (variance, transform)
        variances = [variance]
    law = NormalStatistics(shape, (name,), public)
    return integrated_release(law, mechanism, mean, factor, *variances)
