r"""The sample moments of bounded records: quadrature and exact draws on the feasible region.

For records on [a, b] the sample moments satisfy :math:`\frac{n-1}{n} S^2 \le (\bar Y-a)(b-\bar Y)`.
With half-width h, :math:`S^2 = \frac{n}{n-1} h^2 \sin^2\varphi` and
:math:`\bar Y \in \frac{a+b}{2} \pm h\cos\varphi`, everything is analytic in
:math:`\varphi \in (0, \pi/2)`: the inner integral over :math:`\bar Y` is closed (a tilted Normal
mass) and the outer one is left to Gauss-Legendre rules on pieces that are placed here.

A `problem` is the tuple (n, v, m1, v1, lam1, z1, lam2, tau2, z2, lo, hi): n records of variance v
with :math:`\bar Y \sim N(m_1, v_1)` (Gaussian noise already folded in), Laplace rates `lam`, a
Gaussian precision `tau2`, 0 where there is no such noise.
"""

import math

import numpy as np

from pymc_dp.kernels import jit
from pymc_dp.kernels.draws.listed import draw_listed
from pymc_dp.kernels.draws.log_concave import draw_log_concave
from pymc_dp.kernels.functions.tilting import normal_log_tilted_mass

# Edges are put at the mode, on either side of it where the log integrand has fallen by FALLS, and
# at kinks: the released variance, and where the range of the mean crosses the released mean or the
# law's mean, with layers of so many widths of the noise or the law around them.
FALLS = np.array([0.7, 3.0, 12.0, 40.0])
LAYERS = np.array([-6.0, -1.0, 0.0, 1.0, 6.0])
EDGES = 1 + 2 * FALLS.size + 1 + 2 * LAYERS.size
NODES, WEIGHTS = np.polynomial.legendre.leggauss(16)


@jit
def make_problem(n, m, v, lam1, tau1, z1, lam2, tau2, z2, lo, hi):
    """Fold Gaussian noise on the mean into its law; returns the problem and the log factor."""
    m1, v1, log_factor = m, v / n, 0.0
    if tau1 > 0.0:
        total = v1 + 1.0 / tau1
        log_factor = -0.5 * (z1 - m) ** 2 / total - 0.5 * math.log(2.0 * math.pi * total)
        m1, v1 = (m + v1 * tau1 * z1) / (1.0 + v1 * tau1), v1 / (1.0 + v1 * tau1)
    return (n, v, m1, v1, lam1, z1, lam2, tau2, z2, lo, hi), log_factor


@jit
def _log_mean_mass(problem, left, right):
    """Log integral of Normal(y | m1, v1) exp(-lam1 |z1 - y|) over [left, right]."""
    _, _, m1, v1, lam, z, _, _, _, _, _ = problem
    if lam == 0.0:
        return normal_log_tilted_mass(0.0, 0.0, left, right, m1, v1)
    split = min(max(z, left), right)
    below = normal_log_tilted_mass(lam, z, left, split, m1, v1) if split > left else -math.inf
    above = normal_log_tilted_mass(-lam, z, split, right, m1, v1) if split < right else -math.inf
    top = max(below, above)
    if top == -math.inf:
        return top
    return top + math.log(math.exp(below - top) + math.exp(above - top))


@jit
def log_integrand(phi, problem):
    """Log density of phi up to a constant."""
    n, v, _, _, _, _, lam2, tau2, z2, lo, hi = problem
    sine, cosine = math.sin(phi), math.cos(phi)
    half, middle = 0.5 * (hi - lo), 0.5 * (hi + lo)
    s = n / (n - 1.0) * (half * sine) ** 2
    value = math.log(cosine) - 0.5 * (n - 1.0) / v * s
    if n > 2.0:
        value += (n - 2.0) * math.log(sine)
    value -= lam2 * abs(z2 - s) + 0.5 * tau2 * (s - z2) ** 2
    return value + _log_mean_mass(problem, middle - half * cosine, middle + half * cosine)


@jit
def _angle(s, n, half):
    """Return phi for a sample variance s, clipped to the range."""
    return math.asin(math.sqrt(min(max((n - 1.0) / n * s, 0.0) / (half * half), 1.0)))


@jit
def _mode(problem, start_left, start_right):
    """Mode of the unimodal integrand on an interval, by golden section."""
    ratio = 0.5 * (math.sqrt(5.0) - 1.0)
    left, right = start_left, start_right
    x1, x2 = right - ratio * (right - left), left + ratio * (right - left)
    f1, f2 = log_integrand(x1, problem), log_integrand(x2, problem)
    while right - left > 1e-9 * (1e-3 + right):
        if f1 < f2:
            left, x1, f1 = x1, x2, f2
            x2 = left + ratio * (right - left)
            f2 = log_integrand(x2, problem)
        else:
            right, x2, f2 = x2, x1, f1
            x1 = right - ratio * (right - left)
            f1 = log_integrand(x1, problem)
    return x1 if f1 > f2 else x2


@jit
def feasible_edges(problem):
    """Sorted edges in phi between which the integrand is smooth and falls by a bounded amount."""
    n, _, m1, v1, lam1, z1, lam2, _, z2, lo, hi = problem
    half, middle = 0.5 * (hi - lo), 0.5 * (hi + lo)
    end = 0.5 * math.pi
    kinks = np.full(1 + 2 * LAYERS.size, np.nan)
    if lam2 > 0.0:
        kinks[0] = _angle(z2, n, half)
    for i in range(LAYERS.size):
        reach = abs(m1 - middle) + LAYERS[i] * math.sqrt(v1)
        kinks[1 + i] = math.acos(min(max(reach, 0.0), half) / half)
        if lam1 > 0.0:
            reach = abs(z1 - middle) + LAYERS[i] / lam1
            kinks[1 + LAYERS.size + i] = math.acos(min(max(reach, 0.0), half) / half)
    mode = _mode(problem, 0.0, end)
    top = log_integrand(mode, problem)
    if lam2 > 0.0:  # golden section stops short of a sharp kink
        at_kink = log_integrand(kinks[0], problem)
        if at_kink > top:
            mode, top = kinks[0], at_kink
    edges = np.empty(EDGES)
    edges[0] = mode
    for side in range(2):
        direction, limit = (-1.0, mode) if side == 0 else (1.0, end - mode)
        first = 1 + side * FALLS.size
        edges[first : first + FALLS.size] = mode + direction * limit
        d = limit * 1e-13
        k = 0
        while d < limit and k < FALLS.size:
            fall = top - log_integrand(mode + direction * d, problem)
            while k < FALLS.size and not fall < FALLS[k]:
                edges[first + k] = mode + direction * d
                k += 1
            d *= 1.5
    first = 1 + 2 * FALLS.size
    low, high = np.min(edges[:first]), np.max(edges[:first])
    for i in range(kinks.size):
        kink = kinks[i] if not math.isnan(kinks[i]) else mode
        edges[first + i] = min(max(kink, low), high)
    edges.sort()
    return edges


@jit
def draw_feasible(rng, problem):
    """Draw (mean, variance) of the sample exactly from its joint law on the feasible region.

    The angle is drawn by choosing a piece with its integral, then by rejection within it (the
    integrand is monotone there); the mean given the variance is log-concave.
    """
    n, _, m1, v1, lam1, z1, _, _, _, lo, hi = problem
    half, middle = 0.5 * (hi - lo), 0.5 * (hi + lo)
    edges = feasible_edges(problem)
    pieces = edges.size - 1
    log_mass = np.full(pieces, -np.inf)
    for j in range(pieces):
        width = edges[j + 1] - edges[j]
        if width <= 0.0:
            continue
        total = -math.inf
        for i in range(NODES.size):
            x = edges[j] + 0.5 * width * (1.0 + NODES[i])
            term = log_integrand(x, problem) + math.log(0.5 * width * WEIGHTS[i])
            if term > -math.inf:
                total = np.logaddexp(total, term)
        log_mass[j] = total
    j = draw_listed(rng, log_mass)
    top = max(log_integrand(edges[j], problem), log_integrand(edges[j + 1], problem))
    while True:
        phi = edges[j] + (edges[j + 1] - edges[j]) * rng.random()
        if math.log(1.0 - rng.random()) + top <= log_integrand(phi, problem):
            break
    var = n / (n - 1.0) * (half * math.sin(phi)) ** 2
    width = half * math.cos(phi)
    mean = draw_log_concave(rng, 0.0, 0.0, 1.0 / v1, m1, lam1, z1, middle - width, middle + width)
    return mean, var
