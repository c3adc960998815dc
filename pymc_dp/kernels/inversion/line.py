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

Where h clips, one or two values of a record have mass of their own, and the density has a corner
wherever all records may have these: the integrand falls off as slowly as the noise's. These sums
are added one by one, and :math:`M^n - M_0^n` is inverted, :math:`M_0` being their part of M.
"""

import math

import numpy as np

from pymc_dp.kernels import jit, njit
from pymc_dp.kernels.functions.count_masses import log_sigmoid
from pymc_dp.kernels.inversion.atoms import few_values

LOG_TINY = 35.0  # aliases are cut at exp(-LOG_TINY)
LARGEST_TAIL = 1e-15  # tilted mass allowed at the ends where the law was cut
TOLERANCE = 1e-5  # largest error estimate, relative to the density, that is let through
MOST_STEPS = 1 << 14
FEWEST_TERMS = 16  # of an integrand that is cut off: Normal sums, the smoothest, take as many
_CORNERS = -37.0  # log of the mass of records at atoms alone, above which they are taken apart
NEGLIGIBLE = 1e-14  # expected number of records at a node that need not be resolved
COARSER = 0.8  # cut-off of the second sum, whose difference estimates the error of the first
# Gauss-Legendre with 16 nodes integrates exp(i theta x) over [-1, 1] to 3e-45 theta^32. A panel of
# all the mass resolves its law and theta = PHASE to 1e-14, one of mass e^-x theta = PHASE + x GAIN.
PHASE, GAIN = 6.0, 0.4


@jit
def log_mgf(lw, h, t):
    """Log of sum(exp(lw + t h)) for sum(exp(lw)) = 1, to relative accuracy for small t."""
    top = -math.inf
    spread = 0.0
    for j in range(h.size):
        spread = max(spread, abs(t * h[j]))
        top = max(top, lw[j] + t * h[j])
    total = 0.0
    if spread < 1.0:
        for j in range(h.size):
            total += math.exp(lw[j]) * math.expm1(t * h[j])
        return math.log1p(total)
    for j in range(h.size):
        total += math.exp(lw[j] + t * h[j] - top)
    return top + math.log(total)


@jit
def tilted(lw, h, t, pi):
    """Fill pi with the law tilted by t; returns its mean and variance."""
    top = -math.inf
    for j in range(h.size):
        top = max(top, lw[j] + t * h[j])
    total = mean = 0.0
    for j in range(h.size):
        pi[j] = math.exp(lw[j] + t * h[j] - top)
        total += pi[j]
    for j in range(h.size):
        pi[j] /= total
        mean += pi[j] * h[j]
    variance = 0.0
    for j in range(h.size):
        variance += pi[j] * (h[j] - mean) ** 2
    return mean, variance


@jit
def saddlepoint(lw, h, n, zeta, sg2, pi):
    """Solve n K'(t) + sg2 t = zeta, not to the last digit: any contour gives the same integral."""
    mean, variance = tilted(lw, h, 0.0, pi)
    reach = h.max() - h.min()
    t, lo, hi = 0.0, -math.inf, math.inf
    for _ in range(60):
        slope = n * variance + sg2
        gap = zeta - n * mean - sg2 * t
        if abs(gap) <= 1e-3 * math.sqrt(slope):
            break
        if gap > 0.0:
            lo = t
        else:
            hi = t
        # The curvature changes once a step moves the weights by some e-folds.
        longest = (3.0 + abs(t) * reach) / reach
        step = min(max(gap / slope, -longest), longest) if slope > 0.0 else longest * np.sign(gap)
        t += step
        if not lo < t < hi:
            t = 0.5 * (lo + hi)
        mean, variance = tilted(lw, h, t, pi)
    return t


@jit
def within_tails(lw, h, tail, t, pi):
    """Take t back towards 0 until the ends, where the law was cut, carry no mass."""
    tilted(lw, h, t, pi)
    if np.dot(pi, tail) < LARGEST_TAIL:
        return t
    inside, outside = 0.0, t
    for _ in range(12):
        middle = 0.5 * (inside + outside)
        tilted(lw, h, middle, pi)
        if np.dot(pi, tail) < LARGEST_TAIL:
            inside = middle
        else:
            outside = middle
    return inside


@jit
def extent(lw, h, n, zeta, sg2, t, base, start, sign):
    """Distance that the tilted sum exceeds with probability e^-35, and Chernoff's exponent."""
    best, at = math.inf, 0.0
    for factor in (2.0, 0.5):
        # The distance is quasiconvex in c: walk up, and down if the first step up is no gain.
        c = start if factor == 2.0 else 0.5 * start
        while 1e-6 * start < c < 1e6 * start:
            s = t + sign * c
            bound = n * (log_mgf(lw, h, s) - base) - sign * c * zeta
            bound += sg2 * (sign * t * c + 0.5 * c * c)
            distance = (max(bound, 0.0) + LOG_TINY) / c
            if distance >= best:
                break
            best, at = distance, c
            c *= factor
    return best, at


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract"})
def rotate(c, s, dc, ds, pi):
    """Advance c + is = exp(ix) - 1 by a step of the frequency; returns the sums under pi.

    Differences from 1 are kept, so that n log(phi) has its digits for any n.
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
def window(u, cutoff):
    """Cut-off that changes no smooth part of the density by more than 1e-10."""
    return 0.5 * math.erfc((u - 0.5 * cutoff) * 9.0 / cutoff)


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract"})
def accumulate(re, im, c, s, out):
    """Add the real part of (re + i im) exp(ix) to out."""
    for j in range(c.size):
        out[j] += re * (1.0 + c[j]) - im * s[j]


@jit
def line(lw, h, dh, tail, n, z, b, sg, grad, used):
    """Log density of one noisy sum.

    Parameters
    ----------
    lw, h : log masses, normalised, and values.
    dh : width of the panel that a node belongs to, 0 for an atom.
    tail : share of a node's mass that lies where the law was cut.
    n, z : number of records, released value.
    b, sg : scale of the Laplace part and standard deviation of the Gaussian part of the noise.
    grad : filled with the derivatives by lw, which add up to n.
    used : filled with the tilts of the laws that the density was computed from, NaN for unused.

    Returns
    -------
    log density, its derivative by z, and the estimated relative error.
    """
    m = h.size
    pi = np.empty(m)
    m0, _ = tilted(lw, h, 0.0, pi)
    h = h - m0
    zeta = z - n * m0
    sg2 = sg * sg
    # Log of the two residues, and of how much of each lies on this side of the contour.
    poles = np.array([1.0, -1.0]) / b if b > 0.0 else np.empty(0)
    residues, shares = np.empty(poles.size), np.full(poles.size, -math.inf)
    atoms_share = np.full(poles.size, -math.inf)
    for i in range(poles.size):
        r = poles[i]
        residues[i] = n * log_mgf(lw, h, r) - r * zeta + 0.5 * sg2 * r * r - math.log(2.0 * b)

    used[:] = math.nan
    exponent, count, step = -math.inf, 0, 0.0
    t = mean = cutoff = lost = 0.0
    terms = np.empty((6, MOST_STEPS))
    [atoms] = np.nonzero(dh == 0.0)
    corners = False
    if sg == 0.0 and zeta >= n * h.max():
        shares[0] = 0.0
    elif sg == 0.0 and zeta <= n * h.min():
        shares[1] = 0.0
    else:
        t = saddlepoint(lw, h, n, zeta, sg2, pi)
        t = within_tails(lw, h, tail, t, pi)
        base = log_mgf(lw, h, t)
        mean, variance = tilted(lw, h, t, pi)
        lost = np.dot(pi, tail)
        exponent = n * base - t * zeta + 0.5 * sg2 * t * t
        start = 8.0 / math.sqrt(n * variance + sg2)
        right, c_right = extent(lw, h, n, zeta, sg2, t, base, start, 1.0)
        left, c_left = extent(lw, h, n, zeta, sg2, t, base, start, -1.0)
        period = max(left, right) * (2.0 if b > 0.0 else 1.0)
        step = 2.0 * math.pi / period
        for i in range(poles.size):
            # Beyond Chernoff's exponent the tail of the noise is shorter than that of the sum.
            if i == 0 and poles[0] - t < c_right:
                shares[0] = log_sigmoid((t - poles[0]) * period)
            if i == 1 and t - poles[1] < c_left:
                shares[1] = log_sigmoid((poles[1] - t) * period)
        if b == 0.0 or exponent - math.log(2.0 * b) > np.max(residues + shares) - 60.0:
            delta = zeta - n * mean - sg2 * t
            corners = b > 0.0 and sg == 0.0 and 0 < atoms.size < min(m, 3)
            corners = corners and n * math.log(pi[atoms].sum()) > _CORNERS
            own = atoms if corners else atoms[:0]
            count, cutoff = _fill(h - mean, dh, n, pi, t, b, sg2, delta, step, own, terms)
    of_atoms, at_corners, log_corners, slope_corners = np.zeros(2), np.zeros(2), -math.inf, 0.0
    of_atoms, at_corners = of_atoms[: atoms.size], at_corners[: atoms.size]
    log_atoms = 0.0
    if corners:
        log_corners, slope_corners = few_values(lw[atoms], h[atoms], n, zeta, b, at_corners)
        log_atoms = lw[atoms].max()
        log_atoms += math.log(np.exp(lw[atoms] - log_atoms).sum())
        for i in range(poles.size):  # log of the share of the atoms' part in each
            part = log_atoms + log_mgf(lw[atoms] - log_atoms, h[atoms], poles[i])
            atoms_share[i] = n * (part - log_mgf(lw, h, poles[i]))
            residues[i] += math.log(-math.expm1(min(atoms_share[i], -1e-300)))

    # Sum it up relative to the largest part.
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
        total += terms[0, k]
        slope -= t * terms[0, k] - u * terms[1, k]
        size += math.hypot(terms[0, k], terms[1, k])
    # Where the law was cut about as much is missing as is left at the ends.
    error = factor * size * (1e-14 + n * lost)
    if cutoff > 0.0:  # of too few terms both sums miss the same
        error += factor * abs(total - coarse) if count >= FEWEST_TERMS else math.inf
    total, slope = factor * total, factor * slope
    grad[:] = 0.0
    if count > 0:
        used[0] = t
        _line_gradient(h - mean, pi, step, terms[2:4, :count], grad)
        if corners:
            _line_gradient(h[atoms] - mean, pi[atoms], step, terms[4:, :count], of_atoms)
            for a in range(atoms.size):
                grad[atoms[a]] -= of_atoms[a]
        grad *= n * factor * pi
    for i in range(poles.size):
        part = math.exp(residues[i] + shares[i] - top)
        if part > 0.0:
            tilted(lw, h, poles[i], pi)
            total += part
            if part > 1e-12:
                used[1 + i] = poles[i]
            slope -= poles[i] * part
            whole = n * part / -math.expm1(atoms_share[i])
            grad += whole * pi
            if corners:
                for a in atoms:
                    log_mass = lw[a] + poles[i] * h[a] - log_mgf(lw, h, poles[i])
                    log_mass += (1.0 - 1.0 / n) * atoms_share[i]
                    grad[a] -= whole * math.exp(log_mass)
            error += part * n * np.dot(pi, tail)
    if corners:
        part = math.exp(log_corners - top)
        total += part
        slope += part * slope_corners
        for a in range(atoms.size):
            grad[atoms[a]] += part * at_corners[a]
    if not total > 0.0:
        return math.nan, math.nan, math.inf
    grad /= total
    return top + math.log(total), slope / total, error / total


@jit
def resolved(mass):
    """Radians across a panel that are resolved if one of its nodes has this mass."""
    return 2.0 * (PHASE + GAIN * max(0.0, -math.log(16.0 * mass)))


@jit
def _fill(x, dh, n, pi, t, b, sg2, delta, step, own, terms):
    """Evaluate the integrand, and it divided by phi, up to where it is negligible.

    The part of the atoms `own` alone is taken from it, and what that is divided by theirs is kept.

    Returns the number of nodes, and the frequency at which the integrand had to be cut off (0 if
    it died out).
    """
    atoms, limit = 0.0, math.inf
    for j in range(x.size):
        if dh[j] == 0.0:
            atoms += pi[j]
        elif n * pi[j] > NEGLIGIBLE:
            limit = min(limit, resolved(pi[j]) / dh[j])
    # At a revival of the atoms' phases little more than their own mass remains.
    floor = n * math.log(atoms) if atoms > 0.0 else -math.inf
    dies = n * (1.0 - atoms) > 60.0
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
        modulus, phase = power(re, im, n)
        n_re, n_im = 1.0 - b * b * (t * t - u * u), -2.0 * b * b * t * u
        noise = math.exp(-0.5 * sg2 * u * u) / (n_re * n_re + n_im * n_im)
        value = complex(n_re, -n_im) * noise
        plain = value
        value *= complex(math.cos(phase - u * delta), math.sin(phase - u * delta))
        value *= math.exp(modulus)
        ratio = value / complex(1.0 + re, im)
        terms[2, k], terms[3, k] = ratio.real, ratio.imag
        if own.size:
            o_re = o_im = 0.0
            for j in own:
                o_re += pi[j] * (1.0 + c[j])
                o_im += pi[j] * s[j]
            angle = n * math.atan2(o_im, o_re) - u * delta
            part = plain * complex(math.cos(angle), math.sin(angle))
            part *= math.exp(0.5 * n * math.log(max(o_re * o_re + o_im * o_im, 1e-300)))
            ratio = part / complex(o_re, o_im) if abs(part) > 0.0 else complex(0.0, 0.0)
            terms[4, k], terms[5, k] = ratio.real, ratio.imag
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
def _line_gradient(x, pi, step, ratios, grad):
    c, s = -2.0 * np.sin(0.25 * step * x) ** 2, np.sin(0.5 * step * x)
    dc, ds = -2.0 * np.sin(0.5 * step * x) ** 2, np.sin(step * x)
    for k in range(ratios.shape[1]):
        if k > 0:
            rotate(c, s, dc, ds, pi)
        accumulate(ratios[0, k], ratios[1, k], c, s, grad)
