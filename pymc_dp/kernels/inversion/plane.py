r"""Density of two noisy sums of the same records, by Fourier inversion; see `inversion`.

Without Laplace noise the tilted covariance of the release is whitened and the midpoint rule runs
over the plane. With Laplace noise the correction for the poles is applied to one coordinate after
the other. With T the sum over the plane, :math:`J_{i \pm}` the residue at :math:`\tau_i = \pm
1/b_i`, integrated over the other coordinate (a problem on a line, with its own contour), and
:math:`C_{\pm \pm}` the residue in both,

.. math::

    p(z) = T + \sum_{i, \pm} s_{i \pm} J_{i \pm} - \sum_{\pm, \pm} s_{1 \pm} s_{2 \pm} C_{\pm \pm} .
"""

import math

import numpy as np

from pymc_dp.kernels import jit
from pymc_dp.kernels.functions.count_masses import log_sigmoid
from pymc_dp.kernels.inversion.line import (
    NEGLIGIBLE,
    accumulate,
    extent,
    line,
    log_mgf,
    power,
    resolved,
    rotate,
    tilted,
)

RADIUS = 8.4  # standard deviations at which a normal characteristic function is exp(-35)
MOST_POINTS = 1 << 18
EDGE = 1e-12  # the integrand at the frame of the grid, relative to its largest value


@jit
def _moments(lw, h, n, t, sg2, zeta, pi):
    """Log of the integrand at t, its gradient and its Hessian; pi becomes the tilted law."""
    g = h[:, 0] * t[0] + h[:, 1] * t[1]
    value = n * log_mgf(lw, g, 1.0) + 0.5 * np.sum(sg2 * t * t) - np.sum(t * zeta)
    tilted(lw, g, 1.0, pi)
    mean = np.array([np.sum(pi * h[:, 0]), np.sum(pi * h[:, 1])])
    a, b = h[:, 0] - mean[0], h[:, 1] - mean[1]
    cross = n * np.dot(pi * a, b)
    hessian = np.array([[n * np.dot(pi * a, a) + sg2[0], cross], [cross, 0.0]])
    hessian[1, 0], hessian[1, 1] = cross, n * np.dot(pi * b, b) + sg2[1]
    return value, n * mean + sg2 * t - zeta, hessian


@jit
def _saddlepoint(lw, h, n, zeta, sg2, lowest, pi):
    """Minimise the integrand over real t by damped Newton steps, or until it is below `lowest`."""
    t = np.zeros(2)
    value, gradient, hessian = _moments(lw, h, n, t, sg2, zeta, pi)
    for _ in range(100):
        # Round-off must not turn a degenerate tilted law into an indefinite Hessian.
        ridge = 1e-12 * (hessian[0, 0] + hessian[1, 1])
        a, b, c = hessian[0, 0] + ridge, hessian[0, 1], hessian[1, 1] + ridge
        det = a * c - b * b
        if not det > 0.0:
            break
        step = -np.array([c * gradient[0] - b * gradient[1], a * gradient[1] - b * gradient[0]])
        step /= det
        decrement = -np.sum(step * gradient)
        if decrement < 1e-6 or value < lowest:
            break
        move = h[:, 0] * step[0] + h[:, 1] * step[1]
        now = h[:, 0] * t[0] + h[:, 1] * t[1]
        longest = 3.0 + now.max() - now.min()
        scale = min(1.0, longest / (move.max() - move.min()))
        for _ in range(30):
            new, new_gradient, new_hessian = _moments(lw, h, n, t + scale * step, sg2, zeta, pi)
            if new <= value - 0.1 * scale * decrement:
                break
            scale *= 0.5
        t = t + scale * step
        value, gradient, hessian = new, new_gradient, new_hessian
    return t


@jit
def _uncross(lw, h, n, zeta, sg2, lowest, b, t, pi):
    """Go back behind a pole if the plane's part stays negligible: residues may cancel."""
    for i in range(2):
        if abs(t[i]) * b[i] > 0.5:
            kept = t[i]
            t[i] = 0.5 * np.sign(kept) / b[i]
            if _moments(lw, h, n, t, sg2, zeta, pi)[0] >= lowest:
                t[i] = kept


@jit
def _grid(x, pi, n, root, t, b, sg2, delta, steps, half, terms):
    """Fill the terms over half of the plane; returns the sum of sizes and the largest at the frame.

    x are the whitened contributions, root the inverse transposed Cholesky factor: u = root v.
    """
    m = x.shape[0]
    rows, columns = half[1], half[0]
    s1, s2 = steps
    up = (np.empty(m), np.empty(m))
    down = (np.empty(m), np.empty(m))
    work_c, work_s = np.empty(m), np.empty(m)
    turn = (-2.0 * np.sin(0.5 * s1 * x[:, 0]) ** 2, np.sin(s1 * x[:, 0]))
    rise = (-2.0 * np.sin(0.5 * s2 * x[:, 1]) ** 2, np.sin(s2 * x[:, 1]))
    phase_up = 0.5 * (s2 * x[:, 1] + s1 * x[:, 0])
    phase_down = 0.5 * (s2 * x[:, 1] - s1 * x[:, 0])
    up[0][:], up[1][:] = -2.0 * np.sin(0.5 * phase_up) ** 2, np.sin(phase_up)
    down[0][:], down[1][:] = -2.0 * np.sin(0.5 * phase_down) ** 2, np.sin(phase_down)
    size = frame = 0.0
    for row in range(rows):
        if row > 0:
            rotate(up[0], up[1], rise[0], rise[1], pi)
            rotate(down[0], down[1], rise[0], rise[1], pi)
        v2 = (row + 0.5) * s2
        for side in range(2):
            first = up if side == 0 else down
            sign = 1.0 if side == 0 else -1.0
            work_c[:], work_s[:] = first
            re, im = np.dot(pi, work_c), np.dot(pi, work_s)
            for column in range(columns):
                if column > 0:
                    re, im = rotate(work_c, work_s, turn[0], sign * turn[1], pi)
                v1 = sign * (column + 0.5) * s1
                u1, u2 = root[0, 0] * v1 + root[0, 1] * v2, root[1, 1] * v2
                modulus, phase = power(re, im, n)
                phase -= v1 * delta[0] + v2 * delta[1]
                value = complex(math.cos(phase), math.sin(phase))
                value *= math.exp(modulus - 0.5 * (sg2[0] * u1 * u1 + sg2[1] * u2 * u2))
                value /= complex(
                    1.0 + b[0] ** 2 * (u1 * u1 - t[0] ** 2), -2.0 * b[0] ** 2 * t[0] * u1
                )
                value /= complex(
                    1.0 + b[1] ** 2 * (u2 * u2 - t[1] ** 2), -2.0 * b[1] ** 2 * t[1] * u2
                )
                factor = complex(1.0 + re, im)  # of each record; numba raises where it is zero
                ratio = value / factor if factor != 0.0 else 0.0 * value
                place = (2 * row + side) * columns + column
                terms[0, place], terms[1, place] = value.real, value.imag
                terms[2, place], terms[3, place] = ratio.real, ratio.imag
                size += abs(value)
                if row >= rows - 2 or column >= columns - 2:
                    frame = max(frame, abs(value))
    return size, frame


@jit
def _grid_gradient(x, pi, steps, half, terms, grad):
    rows, columns = half[1], half[0]
    s1, s2 = steps
    m = x.shape[0]
    c, s = np.empty(m), np.empty(m)
    turn_c, turn_s = -2.0 * np.sin(0.5 * s1 * x[:, 0]) ** 2, np.sin(s1 * x[:, 0])
    for row in range(rows):
        for side in range(2):
            sign = 1.0 if side == 0 else -1.0
            phase = (row + 0.5) * s2 * x[:, 1] + sign * 0.5 * s1 * x[:, 0]
            c[:], s[:] = -2.0 * np.sin(0.5 * phase) ** 2, np.sin(phase)
            for column in range(columns):
                if column > 0:
                    rotate(c, s, turn_c, sign * turn_s, pi)
                place = (2 * row + side) * columns + column
                accumulate(terms[2, place], terms[3, place], c, s, grad)


@jit
def plane(lw, h, dh, tail, n, z, b, sg, slope, grad, used):
    """Log density of two noisy sums, as `line`; arrays of h, dh, z, b, sg and slope have 2 columns.

    Returns the log density and its estimated relative error; slope, grad and used are filled, the
    last with up to 17 pairs of tilts.
    """
    m = h.shape[0]
    pi = np.empty(m)
    tilted(lw, h[:, 0], 0.0, pi)
    center = np.array([np.sum(pi * h[:, 0]), np.sum(pi * h[:, 1])])
    h = h - center
    zeta = z - n * center
    sg2 = sg * sg
    laplace = b[0] > 0.0
    lowest = -math.inf
    if laplace:
        # By Jensen's inequality the density is not below this; an integrand far below is nothing.
        for i in range(2):
            spread = math.sqrt(n * np.sum(pi * h[:, i] ** 2))
            lowest = (0.0 if i == 0 else lowest) - math.log(2.0 * b[i])
            lowest -= (abs(zeta[i]) + spread) / b[i]
        lowest -= 60.0
    t = _saddlepoint(lw, h, n, zeta, sg2, lowest, pi)
    if laplace:
        _uncross(lw, h, n, zeta, sg2, lowest, b, t, pi)
    exponent, residual, hessian = _moments(lw, h, n, t, sg2, zeta, pi)
    mean = np.array([np.sum(pi * h[:, 0]), np.sum(pi * h[:, 1])])
    lost = np.dot(pi, tail)

    # Whitening: v . x = u . (h - mean) for u = root v, x = forward (h - mean).
    l11, l21, l22 = math.sqrt(hessian[0, 0]), 0.0, math.sqrt(hessian[1, 1])
    if not laplace:
        l21 = hessian[0, 1] / l11
        l22 = math.sqrt(max(hessian[1, 1] - l21 * l21, 1e-14 * hessian[1, 1]))
    root = np.array([[1.0 / l11, -l21 / (l11 * l22)], [0.0, 1.0 / l22]])
    x, dx = np.empty((m, 2)), np.empty((m, 2))
    for j in range(m):
        x[j, 0] = (h[j, 0] - mean[0]) * root[0, 0]
        x[j, 1] = (h[j, 0] - mean[0]) * root[0, 1] + (h[j, 1] - mean[1]) * root[1, 1]
        dx[j, 0] = dh[j, 0] * root[0, 0]
        dx[j, 1] = dh[j, 0] * abs(root[0, 1]) + dh[j, 1] * root[1, 1]
    delta = -np.array(
        [residual[0] * root[0, 0], residual[0] * root[0, 1] + residual[1] * root[1, 1]]
    )
    lt = lw + h[:, 0] * t[0] + h[:, 1] * t[1]
    lt -= log_mgf(lw, h[:, 0] * t[0] + h[:, 1] * t[1], 1.0)
    noise = np.array([sg2[0] * root[0, 0] ** 2,
                      sg2[0] * root[0, 1] ** 2 + sg2[1] * root[1, 1] ** 2])  # fmt: skip
    period = np.empty(2)
    shares = np.full((2, 2), -math.inf)  # of the poles +1/b and -1/b of each coordinate
    for i in range(2):
        right, c_right = extent(lt, x[:, i], n, delta[i], noise[i], 0.0, 0.0, 8.0, 1.0)
        left, c_left = extent(lt, x[:, i], n, delta[i], noise[i], 0.0, 0.0, 8.0, -1.0)
        period[i] = max(left, right) * (2.0 if laplace else 1.0)
        if laplace:
            scale = root[i, i]
            above, below = (1.0 / b[i] - t[i]) / scale, (1.0 / b[i] + t[i]) / scale
            if above < c_right:
                shares[i, 0] = log_sigmoid(-above * period[i])
            if below < c_left:
                shares[i, 1] = log_sigmoid(-below * period[i])

    # The parts: log size, sign, gradient.
    total, top, error = 0.0, -math.inf, 0.0
    slope[:] = 0.0
    grad[:] = 0.0
    parts = 1 + (8 if laplace else 0)
    sizes, signs, errors = np.full(parts, -math.inf), np.ones(parts), np.zeros(parts)
    slopes, grads = np.zeros((parts, 2)), np.zeros((parts, m))
    used[:] = math.nan
    if exponent > lowest:
        used[0] = t
        sizes[0], signs[0], errors[0] = _sum_plane(
            x, dx, pi, n, root, t, b, sg2, delta, period, exponent, slopes[0], grads[0]
        )
        errors[0] += n * lost
    if laplace:
        _add_residues(
            lw, h, dh, tail, n, zeta, b, shares, sizes[1:], signs[1:], errors[1:], slopes[1:],
            grads[1:], used[1:],
        )  # fmt: skip
    for k in range(parts):
        top = max(top, sizes[k])
    for k in range(parts):
        if sizes[k] > top - 80.0:
            weight = math.exp(sizes[k] - top)
            total += weight * signs[k]
            slope += weight * slopes[k]
            grad += weight * grads[k]
            # Of each part the last digits are lost.
            error += math.exp(sizes[k] - top) * (errors[k] + 1e-14)
    if not total > 0.0:
        return math.nan, math.inf
    slope /= total
    grad /= total
    return top + math.log(total), error / total


@jit
def _sum_plane(x, dx, pi, n, root, t, b, sg2, delta, period, exponent, slope, grad):
    """Log of the sum of the absolute terms over the plane, the terms' sum and its error.

    These and the derivatives, which are filled in, are relative to the sum of absolute terms.
    """
    steps = (2.0 * math.pi / period[0], 2.0 * math.pi / period[1])
    # Where a normal law with the tilted covariance of the sum and the noise has died out.
    cov = np.zeros((2, 2))
    for j in range(x.shape[0]):
        cov[0, 0] += n * pi[j] * x[j, 0] * x[j, 0]
        cov[0, 1] += n * pi[j] * x[j, 0] * x[j, 1]
        cov[1, 1] += n * pi[j] * x[j, 1] * x[j, 1]
    cov[0, 0] += sg2[0] * root[0, 0] ** 2
    cov[0, 1] += sg2[0] * root[0, 0] * root[0, 1]
    cov[1, 1] += sg2[0] * root[0, 1] ** 2 + sg2[1] * root[1, 1] ** 2
    det = max(cov[0, 0] * cov[1, 1] - cov[0, 1] ** 2, 1e-300)
    reach = np.array([math.sqrt(cov[1, 1] / det), math.sqrt(cov[0, 0] / det)]) * RADIUS
    atoms = 0.0
    for j in range(x.shape[0]):
        if dx[j, 0] == 0.0 and dx[j, 1] == 0.0:
            atoms += pi[j]
    if not n * (1.0 - atoms) > 60.0:
        # The atoms' phases may come back: go on to where the noise alone has died out.
        for i in range(2):
            if sg2[i] > 0.0:
                reach[i] = max(reach[i], RADIUS / (math.sqrt(sg2[i]) * root[i, i]))
    size, frame = 0.0, math.inf
    terms = np.empty((4, 0))
    half = (0, 0)
    for _ in range(8):
        fine = 1.0
        for j in range(x.shape[0]):
            if n * pi[j] > NEGLIGIBLE and dx[j, 0] + dx[j, 1] > 0.0:
                # The integrand is negligible in the corners: no more than the larger phase counts.
                phase = max(reach[0] * dx[j, 0], reach[1] * dx[j, 1])
                fine = min(fine, resolved(pi[j]) / phase)
        half = (
            max(3, math.ceil(fine * reach[0] / steps[0])),
            max(3, math.ceil(fine * reach[1] / steps[1])),
        )
        points = 2 * half[0] * half[1]
        if points > MOST_POINTS:
            return exponent, 1.0, math.inf
        terms = np.empty((4, points))
        size, frame = _grid(x, pi, n, root, t, b, sg2, delta, steps, half, terms)
        if frame < EDGE * np.max(np.abs(terms[0])) or fine < 1.0:
            break
        reach *= 1.5
    area = steps[0] * steps[1] * 2.0 / (4.0 * math.pi**2) * root[0, 0] * root[1, 1]
    columns = half[0]
    for place in range(terms.shape[1]):
        row, side, column = (
            place // (2 * columns),
            place // columns % 2,
            place % columns,
        )
        v1 = (1.0 - 2.0 * side) * (column + 0.5) * steps[0]
        v2 = (row + 0.5) * steps[1]
        u1, u2 = root[0, 0] * v1 + root[0, 1] * v2, root[1, 1] * v2
        slope[0] -= t[0] * terms[0, place] - u1 * terms[1, place]
        slope[1] -= t[1] * terms[0, place] - u2 * terms[1, place]
    slope /= size
    _grid_gradient(x, pi, steps, half, terms, grad)
    grad *= n * pi / size
    # Beyond the frame the integrand falls off at least as fast as on the way to it.
    return exponent + math.log(area * size), terms[0].sum() / size, frame * terms.shape[1] / size


@jit
def _add_residues(lw, h, dh, tail, n, zeta, b, shares, sizes, signs, errors, slopes, grads, used):
    """Fill the four residues in one coordinate and the four in both."""
    pi = np.empty(lw.size)
    tilts = np.empty(3)
    for i in range(2):
        other = 1 - i
        for k in range(2):
            if shares[i, k] < -100.0:
                continue
            place = 2 * i + k
            r = (1.0 - 2.0 * k) / b[i]
            mgf = log_mgf(lw, h[:, i], r)
            log_p, slopes[place, other], errors[place] = line(
                lw + r * h[:, i] - mgf, h[:, other].copy(), dh[:, other].copy(), tail, n,
                zeta[other], b[other], 0.0, grads[place], tilts,
            )  # fmt: skip
            used[3 * place : 3 * place + 3, i] = r
            used[3 * place : 3 * place + 3, other] = tilts
            slopes[place, i] = -r
            sizes[place] = n * mgf - r * zeta[i] - math.log(2.0 * b[i]) + log_p + shares[i, k]
    for k1 in range(2):
        for k2 in range(2):
            share = shares[0, k1] + shares[1, k2]
            if share < -100.0:
                continue
            place = 4 + 2 * k1 + k2
            r1, r2 = (1.0 - 2.0 * k1) / b[0], (1.0 - 2.0 * k2) / b[1]
            g = r1 * h[:, 0] + r2 * h[:, 1]
            sizes[place] = n * log_mgf(lw, g, 1.0) - r1 * zeta[0] - r2 * zeta[1] + share
            sizes[place] -= math.log(4.0 * b[0] * b[1])
            signs[place] = -1.0
            tilted(lw, g, 1.0, pi)
            errors[place] = n * np.dot(pi, tail)
            used[8 + place, 0], used[8 + place, 1] = r1, r2
            slopes[place, 0], slopes[place, 1] = r1, r2
            grads[place] = -n * pi
