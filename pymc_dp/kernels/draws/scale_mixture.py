r"""Laplace noise as a scale mixture of normals, for latent statistics with a (joint) Normal law.

:math:`z_j \mid s_j, \omega_j^2 \sim N(s_j, \omega_j^2)` with
:math:`\omega_j^2 \sim \mathrm{Exp}(1/(2 b_j^2))` is Laplace noise of scale :math:`b_j` (Andrews &
Mallows, 1974; Park & Casella, 2008).
"""

import numpy as np

from pymc_dp.kernels import jit


@jit
def draw_precision(rng, distance, scale):
    r"""Draw :math:`1/\omega^2` given the distance :math:`|z - s|`: inverse Gaussian.

    Its mean 1/(b d) and shape 1/b^2 leave it as b^-2 / chi^2_1 when d tends to zero, where the
    generator's own draws break down.
    """
    if distance < 1e-6 * scale:
        return 1.0 / (scale * rng.standard_normal()) ** 2
    return rng.wald(1.0 / (scale * distance), 1.0 / (scale * scale))


@jit
def draw_independent(rng, s, z, scale, mean, sd):
    """One update of independent Normal statistics: the mixture's variances, then the statistics."""
    out = np.empty_like(s)
    for i in range(s.size):
        noise_precision = draw_precision(rng, abs(z[i] - s[i]), scale[i])
        precision = sd[i] ** -2 + noise_precision
        center = (mean[i] * sd[i] ** -2 + z[i] * noise_precision) / precision
        out[i] = center + rng.standard_normal() / np.sqrt(precision)
    return out


@jit
def draw_joint(rng, s, z, scale, mean, cov):
    r"""One update of jointly Normal statistics: :math:`s \mid \omega, z \sim N(A^{-1}h, A^{-1})`.

    Written without inverting the covariance V, which may be singular: a draw of (s, z) from the
    joint law is moved to the observed z.
    """
    k = s.size
    omega2 = np.empty(k)
    for i in range(k):
        omega2[i] = 1.0 / draw_precision(rng, abs(z[i] - s[i]), scale[i])
    values, vectors = np.linalg.eigh(cov)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    s0 = mean + root @ rng.standard_normal(k)
    z0 = s0 + np.sqrt(omega2) * rng.standard_normal(k)
    return s0 + cov @ np.linalg.solve(cov + np.diag(omega2), z - z0)
