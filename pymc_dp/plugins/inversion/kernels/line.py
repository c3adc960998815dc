r"""Density of a noisy sum of n independent draws from a law on nodes, by Fourier inversion.

The law of one record's contribution puts mass :math:`w_j` on :math:`h_j` (quadrature nodes and
atoms). With :math:`M(\tau) = \sum_j w_j e^{\tau h_j}`, noise of cumulant generating function
:math:`\tfrac12 \sigma^2 \tau^2 - \log(1 - b^2 \tau^2)` and any real t,

.. math::

    p(z) = \frac{1}{2 \pi} \int M(t + iu)^n \,
        \frac{e^{\sigma^2 (t + iu)^2 / 2}}{1 - b^2 (t + iu)^2} \, e^{-(t + iu) z} \, du

up to the poles :math:`\pm 1/b` that lie between the contour and the imaginary axis. With t at the
saddlepoint the integrand is largest at u = 0 and nothing cancels, however far z is in a tail
(Daniels 1954). The midpoint rule with step :math:`2 \pi / P` gives
:math:`\sum_k (-1)^k p(z + k P) e^{t k P}`: where the sum itself (without the Laplace noise) leaves
:math:`z \pm P / 2` with probability :math:`e^{-35}` under the tilted law, by Chernoff's bound, the
other terms are those of the two exponential tails :math:`A_\pm e^{\mp x / b}` with
:math:`A_\pm = M(\pm 1/b)^n e^{\sigma^2 / 2 b^2} / 2b`, geometric series that add up to

.. math::

    p(z) = T + A_+ e^{-z/b}\, s\{(t - 1/b) P\} + A_- e^{z/b}\, s\{-(t + 1/b) P\},
    \qquad s(x) = 1 / (1 + e^{-x}) .

This holds on either side of the poles and on them: deep in a tail only a residue is left.

If h clips, a record has one or two values with mass of their own, atoms, and the density has a
corner at each sum of atoms: the integrand falls off as slowly as the transform of the noise. Sums
of atoms are added one by one, and :math:`M^n - M_0^n` is inverted, :math:`M_0` being the atoms'
part of M.

If the number of records is unknown, the generating function :math:`G(M) = \sum_n p_n M^n` of the
number takes the place of :math:`M^n`, with weights :math:`p_n` for :math:`n_0, n_0 + 1, \dots`: one
inversion for all numbers. A known n is a window of one.
"""

import math

import numpy as np

from pymc_dp.kernels import jit, njit
from pymc_dp.kernels.functions.count_masses import log_sigmoid
from pymc_dp.kernels.linked import V, linked
from pymc_dp.plugins.inversion.kernels.atoms import few_values
from pymc_dp.plugins.inversion.kernels.contour import (
    extent,
    log_mgf,
    log_total,
    numbers,
    saddlepoint,
    tilted,
    within_tails,
)

TOLERANCE = 1e-5  # largest error estimate, relative to the density, that is let through
MOST_STEPS = 1 << 14  # of the midpoint rule
FEWEST_TERMS = 16  # of an integrand that is cut off; Normal sums, the smoothest, need so many
_CORNERS = -37.0  # log of the mass of sums of atoms above which these are added one by one
NEGLIGIBLE = 1e-14  # expected number of records at a node that need not be resolved
COARSER = 0.8  # cut-off of the second sum, whose difference estimates the error of the first
# Gauss-Legendre with 16 nodes integrates exp(i theta x) over [-1, 1] to 3e-45 theta^32. A panel of
# all the mass resolves its law and theta = PHASE to 1e-14, one of mass e^-x theta = PHASE + x GAIN.
PHASE, GAIN = 6.0, 0.4


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract"})
def rotate(c, s, dc, ds, pi):
    """Advance c + is = exp(ix) - 1 by a step of the frequency; returns the sums under pi.

    The differences from 1 are kept, so that n log(phi) has all digits for any n.
    """
    re = im = 0.0
    for j in range(c.size):
        cj = c[j] + dc[j] + (c[j] * dc[j] - s[j] * ds[j])
        sj = s[j] + ds[j] + (s[j] * dc[j] + c[j] * ds[j])
        c[j] = cj
        s[j] = sj
        re += pi[j] * cj
        im += pi[j] * sj
    return re, im


@jit
def power(re, im, n):
    """Log modulus and phase of (1 + re + i im)^n."""
    return 0.5 * n * math.log1p(re * (2.0 + re) + im * im), n * math.atan2(im, 1.0 + re)


@jit
def generated(omega, n, y):
    """Add up omega[k] y^k, and (n + k) omega[k] y^k, for abs(y) <= 1."""
    if omega.size == 1:
        return complex(1.0, 0.0), complex(n, 0.0)
    value = slope = complex(0.0, 0.0)
    for k in range(omega.size - 1, -1, -1):
        slope = slope * y + value
        value = value * y + omega[k]
    return value, n * value + y * slope


@jit
def window(u, cutoff):
    """Cut-off that changes no smooth part of the density by more than 1e-10."""
    return 0.5 * math.erfc((u - 0.5 * cutoff) * 9.0 / cutoff)


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract"})
def accumulate(re, im, c, s, out):
    """Add the real part of (re + i im) exp(ix) to out."""
    for j in range(c.size):
        out[j] += re * (1.0 + c[j]) - im * s[j]


@linked(f"UniTuple(f8, 3)({V}, {V}, {V}, {V}, f8, {V}, f8, f8, f8, {V}, {V}, {V})")
def line(lw, h, dh, tail, n, lp, z, b, sg, grad, by_number, used):
    """Log density of one noisy sum.

    Parameters
    ----------
    lw, h : log masses, normalised, and values.
    dh : width of the panel that a node belongs to, 0 for an atom.
    tail : share of a node's mass that lies where the law was cut.
    n, lp : the least number of records, and the log weights of n, n + 1, ... records; [0] for a
        known number.
    z : released value.
    b, sg : scale of the Laplace part and standard deviation of the Gaussian part of the noise.
    grad : filled with the derivatives by lw, which add up to the mean number of records; of no
        entry where no derivatives are asked for.
    by_number : filled with the derivatives by lp, which add up to 1.
    used : filled with the tilts of the laws that the density was computed from, NaN for unused.

    Returns
    -------
    log density, its derivative by z, and the estimated relative error.
    """
    m = h.size
    pi, omega = np.empty(m), np.empty(lp.size)
    center, _ = tilted(lw, h, 0.0, pi)
    h = h - center
    zeta = z - n * center
    sg2 = sg * sg
    # Logs of the two residues, and of the share of each that is added.
    poles = np.array([1.0, -1.0]) / b if b > 0.0 else np.empty(0)
    residues, shares = np.empty(poles.size), np.full(poles.size, -math.inf)
    atoms_share = np.full(poles.size, -math.inf)
    for i in range(poles.size):
        r = poles[i]
        residues[i], _, _ = log_total(lw, h, center, n, lp, r, omega)
        residues[i] += 0.5 * sg2 * r * r - r * zeta - math.log(2.0 * b)

    used[:] = math.nan
    exponent, count, step = -math.inf, 0, 0.0
    t = mean = cutoff = lost = 0.0
    terms = np.empty((6, MOST_STEPS))
    powers = np.empty((4, MOST_STEPS if lp.size > 1 else 0), dtype=np.complex128)
    [atoms] = np.nonzero(dh == 0.0)
    corners = False
    most = n + lp.size - 1.0
    highest, lowest = h.max(), h.min()
    if sg == 0.0 and zeta >= n * highest + max(0.0, (most - n) * (highest + center)):
        shares[0] = 0.0
    elif sg == 0.0 and zeta <= n * lowest + min(0.0, (most - n) * (lowest + center)):
        shares[1] = 0.0
    else:
        t = saddlepoint(lw, h, center, n, lp, zeta, sg2, pi, omega)
        t = within_tails(lw, h, tail, t, pi)
        base, extra, spread = log_total(lw, h, center, n, lp, t, omega)
        mean, variance = tilted(lw, h, t, pi)
        lost = np.dot(pi, tail)
        exponent = base - t * zeta + 0.5 * sg2 * t * t
        variance = (n + extra) * variance + spread * (mean + center) ** 2
        start = 8.0 / math.sqrt(variance + sg2)
        right, c_right = extent(lw, h, center, n, lp, zeta, sg2, t, base, start, 1.0, omega)
        left, c_left = extent(lw, h, center, n, lp, zeta, sg2, t, base, start, -1.0, omega)
        period = max(left, right) * (2.0 if b > 0.0 else 1.0)
        step = 2.0 * math.pi / period
        for i in range(poles.size):
            # Beyond Chernoff's exponent the tail of the noise is shorter than that of the sum.
            if i == 0 and poles[0] - t < c_right:
                shares[0] = log_sigmoid((t - poles[0]) * period)
            if i == 1 and t - poles[1] < c_left:
                shares[1] = log_sigmoid((poles[1] - t) * period)
        if b == 0.0 or exponent - math.log(2.0 * b) > np.max(residues + shares) - 60.0:
            log_total(lw, h, center, n, lp, t, omega)
            at_atoms = math.log(max(pi[atoms].sum(), 1e-300))
            log_corners = n * at_atoms + numbers(np.log(omega), at_atoms, np.empty(lp.size))[0]
            corners = b > 0.0 and sg == 0.0 and 0 < atoms.size < min(m, 3)
            corners = corners and log_corners > _CORNERS
            delta = zeta - n * mean - sg2 * t
            corner_atoms = atoms if corners else atoms[:0]
            count, cutoff = _fill(
                h - mean, mean + center, dh, n, omega, pi, t, b, sg2, delta, step, corner_atoms,
                log_corners, terms, powers,
            )  # fmt: skip
    of_atoms, at_corners, log_corners, slope_corners = np.zeros(2), np.zeros(2), -math.inf, 0.0
    of_atoms, at_corners = of_atoms[: atoms.size], at_corners[: atoms.size]
    numbers_of_atoms, numbers_at_corners, log_atoms = np.zeros(lp.size), np.zeros(lp.size), 0.0
    if corners:
        log_corners, slope_corners = few_values(
            lw[atoms], h[atoms], center, n, lp, zeta, b, 0.0, at_corners, numbers_at_corners
        )
        log_atoms = lw[atoms].max()
        log_atoms += math.log(np.exp(lw[atoms] - log_atoms).sum())
        for i in range(poles.size):  # log of the atoms' share in each residue
            part = log_atoms + log_mgf(lw[atoms] - log_atoms, h[atoms], poles[i])
            part = n * part + numbers(lp, part + center * poles[i], omega)[0]
            atoms_share[i] = part - log_total(lw, h, center, n, lp, poles[i], omega)[0]
            residues[i] += math.log(-math.expm1(min(atoms_share[i], -1e-300)))

    # Add up all parts relative to the largest.
    top = max(exponent, log_corners)
    for i in range(poles.size):
        if shares[i] > -math.inf:
            top = max(top, residues[i] + shares[i])
    factor = math.exp(exponent - top) * step / math.pi
    total = coarse = size = slope = 0.0
    for k in range(count):
        u = (k + 0.5) * step
        if cutoff > 0.0:
            coarse += window(u, COARSER * cutoff) * terms[0, k] if u < COARSER * cutoff else 0.0
            terms[:, k] *= window(u, cutoff)
            if lp.size > 1:
                powers[::2, k] *= window(u, cutoff)
        total += terms[0, k]
        slope -= t * terms[0, k] - u * terms[1, k]
        size += math.hypot(terms[0, k], terms[1, k])
    # A cut misses about as much mass as is left at the ends.
    error = factor * size * (1e-14 + most * lost)
    if cutoff > 0.0:  # with too few terms both sums have the same error
        error += factor * abs(total - coarse) if count >= FEWEST_TERMS else math.inf
    total, slope = factor * total, factor * slope
    grad[:] = 0.0
    by_number[:] = 0.0
    if count > 0:
        used[0] = t
    if count > 0 and grad.size:
        _line_gradient(h - mean, pi, step, terms[2:4, :count], grad)
        if corners:
            _line_gradient(h[atoms] - mean, pi[atoms], step, terms[4:, :count], of_atoms)
            for a in range(atoms.size):
                grad[atoms[a]] -= of_atoms[a]
        grad *= factor * pi
        log_total(lw, h, center, n, lp, t, omega)
        _number_gradient(powers[:2, :count], by_number)
        if corners:
            _number_gradient(powers[2:, :count], numbers_of_atoms)
            by_number -= numbers_of_atoms
        by_number *= factor * omega
    for i in range(poles.size):
        part = math.exp(residues[i] + shares[i] - top)
        if part > 0.0:
            tilted(lw, h, poles[i], pi)
            total += part
            if part > 1e-12:
                used[1 + i] = poles[i]
            slope -= poles[i] * part
            if grad.size:
                whole = part / -math.expm1(atoms_share[i])
                _, extra, _ = log_total(lw, h, center, n, lp, poles[i], omega)
                grad += (n + extra) * whole * pi
                by_number += whole * omega
                if corners:
                    at_pole = log_atoms + log_mgf(lw[atoms] - log_atoms, h[atoms], poles[i])
                    _, extra, _ = numbers(lp, at_pole + center * poles[i], omega)
                    whole *= math.exp(atoms_share[i])
                    for a in atoms:
                        share = math.exp(lw[a] + poles[i] * h[a] - at_pole)
                        grad[a] -= (n + extra) * whole * share
                    by_number -= whole * omega
            error += part * most * np.dot(pi, tail)
    if corners:
        part = math.exp(log_corners - top)
        total += part
        slope += part * slope_corners
        by_number += part * numbers_at_corners
        for a in range(atoms.size if grad.size else 0):
            grad[atoms[a]] += part * at_corners[a]
    if not total > 0.0:
        return math.nan, math.nan, math.inf
    if lp.size == 1:
        by_number[:] = total
    grad /= total
    by_number /= total
    return top + math.log(total), slope / total, error / total


@jit
def resolved(mass):
    """Radians across a panel that are resolved if one of its nodes has this mass."""
    return 2.0 * (PHASE + GAIN * max(0.0, -math.log(16.0 * mass)))


@jit
def _fill(x, mean, dh, n, omega, pi, t, b, sg2, delta, step, corner_atoms, floor, terms, powers):
    """Evaluate the integrand, and its derivative by phi, up to where it is negligible.

    The part of sums of `corner_atoms` alone is subtracted, and its derivatives are kept in `terms`.
    `powers` holds the integrand of n records, and the factor of one more record. `floor` is the log
    of the mass of sums of atoms.

    Returns the number of frequencies, and the frequency at which the integrand had to be cut off (0
    if it died out).
    """
    limit, most = math.inf, n + omega.size - 1.0
    for j in range(x.size):
        if dh[j] > 0.0 and most * pi[j] > NEGLIGIBLE:
            limit = min(limit, resolved(pi[j]) / dh[j])
    # At a revival of the atoms' phases little more than their own mass remains.
    dies = floor < -60.0
    c, s = -2.0 * np.sin(0.25 * step * x) ** 2, np.sin(0.5 * step * x)
    dc, ds = -2.0 * np.sin(0.5 * step * x) ** 2, np.sin(step * x)
    re, im = np.dot(pi, c), np.dot(pi, s)
    size, quiet = 0.0, 0
    for k in range(terms.shape[1]):
        u = (k + 0.5) * step
        if u > limit:
            return k, u
        if k > 0:
            re, im = rotate(c, s, dc, ds, pi)
        n_re, n_im = 1.0 - b * b * (t * t - u * u), -2.0 * b * b * t * u
        noise = math.exp(-0.5 * sg2 * u * u) / (n_re * n_re + n_im * n_im)
        plain = complex(n_re, -n_im) * noise
        turn = complex(math.cos(u * mean), math.sin(u * mean))
        value, slope = _term(re, im, n, omega, plain, u * delta, turn, powers[:2], k)
        terms[2, k], terms[3, k] = slope.real, slope.imag
        if corner_atoms.size:
            o_re, o_im = -1.0, 0.0
            for j in corner_atoms:
                o_re += pi[j] * (1.0 + c[j])
                o_im += pi[j] * s[j]
            part, slope = _term(o_re, o_im, n, omega, plain, u * delta, turn, powers[2:], k)
            terms[4, k], terms[5, k] = slope.real, slope.imag
            value -= part
        terms[0, k], terms[1, k] = value.real, value.imag
        size += abs(value)
        quiet = quiet + 1 if abs(value) < 1e-17 * size else 0
        if quiet >= max(8, k // 3) and (
            dies or floor + math.log(noise * math.hypot(n_re, n_im)) < math.log(1e-17 * size)
        ):
            return k + 1, 0.0
    return terms.shape[1], terms.shape[1] * step


@jit
def _term(re, im, n, omega, noise, angle, turn, powers, place):
    """Return one value of the integrand for phi = 1 + re + i im, and its derivative by phi."""
    phi = complex(1.0 + re, im)
    if abs(phi) < 1e-150:
        phi, re = complex(1e-150, 0.0), 1e-150 - 1.0
    modulus, phase = power(re, im, n)
    value = noise * complex(math.cos(phase - angle), math.sin(phase - angle)) * math.exp(modulus)
    of_number, slope = generated(omega, n, phi * turn)
    if omega.size > 1:
        powers[0, place], powers[1, place] = value, phi * turn
    return value * of_number, value * slope / phi


@jit
def _number_gradient(powers, out):
    """Add the real parts of the integrand for each number of records to out."""
    for place in range(powers.shape[1]):
        value, times = powers[0, place], powers[1, place]
        for k in range(out.size):
            out[k] += value.real
            value *= times


@jit
def _line_gradient(x, pi, step, ratios, grad):
    c, s = -2.0 * np.sin(0.25 * step * x) ** 2, np.sin(0.5 * step * x)
    dc, ds = -2.0 * np.sin(0.5 * step * x) ** 2, np.sin(step * x)
    for k in range(ratios.shape[1]):
        if k > 0:
            rotate(c, s, dc, ds, pi)
        accumulate(ratios[0, k], ratios[1, k], c, s, grad)
