"""Densities of noisy sums in numpy: by quadrature, by enumeration, by Fourier sums.

They know nothing of the package. Each returns a log density and a bound of its error.
"""

import numpy as np
from scipy import special, stats

_STEPS = np.array([0, 0.3, 1, 2, 4, 7, 12, 20, 40])
_TAILS = np.array([1e-15, 1e-11, 1e-8, 1e-6, 1e-4, 1e-3, 0.01, 0.03, 0.1, 0.2, 0.35, 0.5])


def _panels(edges, nodes):
    """Return the points and weights of the Gauss-Legendre rule between edges, on the last axis."""
    at, weights = special.roots_legendre(nodes)
    edges = np.sort(edges)
    half = np.diff(edges)[..., None] / 2
    shape = (*edges.shape[:-1], -1)
    return (edges[..., :-1, None] + half * (1 + at)).reshape(shape), (half * weights).reshape(shape)


def _with_error(rule):
    """Return what a rule of so many nodes gives, and how much fewer nodes change it."""
    with np.errstate(divide="ignore", under="ignore", invalid="ignore"):
        found, rough = rule(24), rule(16)
        return found, np.where(found == rough, 0.0, abs(found - rough)) + 1e-10


def of_value(law, log_noise, at, width):
    """Log of the mean of a noise's density over a law of scipy's.

    `log_noise` is a function of the value; it is largest near `at`, and `width` is its scale. Of
    many laws, parameters, `at` and `width` are columns.
    """
    lower, upper = law.support()
    if hasattr(law.dist, "pmf"):
        least, most = law.ppf(1e-15), law.isf(1e-15)
        least = np.min(np.maximum(lower, np.minimum(least, np.floor(at - 60 * width))))
        most = np.max(np.minimum(upper, np.maximum(most, np.ceil(at + 60 * width))))
        k = np.arange(least, most + 1)
        found = special.logsumexp(law.logpmf(k) + log_noise(k), axis=-1)
        return found, np.full(np.shape(found), 1e-10)
    around = at + width * np.concatenate([-_STEPS, _STEPS])
    parts = [law.ppf(_TAILS), law.isf(_TAILS), around]
    shape = np.broadcast_shapes(*(np.shape(p)[:-1] for p in parts))
    parts = [np.broadcast_to(p, (*shape, p.shape[-1])) for p in [*parts, np.zeros(1)]]
    edges = np.clip(np.concatenate(parts, axis=-1), lower, upper)

    def rule(nodes):
        x, w = _panels(edges, nodes)
        return special.logsumexp(law.logpdf(x) + log_noise(x), b=w, axis=-1)

    return _with_error(rule)


def of_sums(law, h, kinks, sizes, z, sigma):
    r"""Log density of :math:`\sum_{i \le n} h(x_i)` with Normal noise, for each of some sizes n.

    The value and the noise may differ by size.

    :math:`p(z) = \frac{1}{2\pi} \int \varphi(t)^n e^{-itz - \sigma^2 t^2 / 2} dt`, where the
    trapezoid rule is exact up to what lies a period :math:`2\pi / \Delta t` away. Records are
    integrated over their quantiles, which `kinks` of h cut in pieces: those of each part of a
    mixture, that has `parts`.
    """
    sizes = np.asarray(sizes)
    z, sigma = (np.broadcast_to(v, sizes.shape) for v in (z, sigma))

    def quantiles(law, nodes):
        edges = np.concatenate([_TAILS, 1 - _TAILS, law.cdf(kinks), [0.0, 1.0]])
        # Far out the doubles are too coarse for 1 - u; what lies there is below 1e-11.
        edges = edges[(edges == 0) | (edges == 1) | ((edges > 1e-11) & (edges < 1 - 1e-11))]
        u, w = _panels(edges, nodes)
        return h(law.ppf(u)), w

    def rule(nodes):
        parts = [(p, *quantiles(own, nodes)) for p, own in getattr(law, "parts", [(1.0, law)])]
        value = np.concatenate([v for _, v, _ in parts])
        w = np.concatenate([p * w for p, _, w in parts])
        mean = w @ value
        spread = np.sqrt(max(w @ (value - mean) ** 2, 1e-12))
        far = np.max(np.abs(z - sizes * mean) + 12 * (sigma + np.sqrt(sizes) * spread))
        far += np.ptp(value) * min(sizes.max(), 8)
        t = np.arange(0, 9.0 / sigma.min(), np.pi / far)
        phi = np.exp(1j * np.multiply.outer(t, value - mean)) @ w
        turn = np.multiply.outer(sizes * mean - z, t)
        with np.errstate(under="ignore"):
            terms = phi ** sizes[:, None] * np.exp(1j * turn - np.multiply.outer(sigma, t) ** 2 / 2)
        total = terms.real @ np.where(t == 0, 0.5, 1.0) * (t[1] - t[0]) / np.pi
        return np.log(np.maximum(total, 1e-300))

    found, error = _with_error(rule)
    return found, error + 1e-13 * np.exp(-found)


def of_normals(mean, covariance, z, variances):
    """Log density of Normal values with independent Normal noise of these variances."""
    law = stats.multivariate_normal(mean, covariance + np.diag(variances))
    return float(law.logpdf(z)), 1e-9
