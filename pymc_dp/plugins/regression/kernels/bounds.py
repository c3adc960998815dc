r"""The feasible region of a simple regression whose rows are publicly known to lie in a box.

Sums of n rows in the unit square satisfy :math:`0 \le S_{xx} \le S_x \le n`,
:math:`0 \le S_{yy} \le S_y \le n`, :math:`\max(0, S_x + S_y - n) \le S_{xy} \le \min(S_x, S_y)`,
and their matrix of products is positive definite. The line meets the square, and the variance of
the errors is at most 1/4 (Kazan & Reiter, 2024, with their bound of the variance corrected). Any
other box is mapped to the unit square.
"""

import numpy as np

from pymc_dp.kernels import jit


@jit
def feasible_sums(s, n, box):
    """Say whether (Sx, Sxx, Sy, Sxy, Syy) can come from n rows in the box (ax, bx, ay, by)."""
    ax, bx, ay, by = box
    wx, wy = bx - ax, by - ay
    sx, sy = (s[0] - n * ax) / wx, (s[2] - n * ay) / wy
    sxx = (s[1] - 2.0 * ax * s[0] + n * ax * ax) / (wx * wx)
    syy = (s[4] - 2.0 * ay * s[2] + n * ay * ay) / (wy * wy)
    sxy = (s[3] - ax * s[2] - ay * s[0] + n * ax * ay) / (wx * wy)
    inside = 0.0 <= sxx <= sx <= n and 0.0 <= syy <= sy <= n
    inside = inside and max(0.0, sx + sy - n) <= sxy <= min(sx, sy)
    cxx, cyy, cxy = sxx - sx * sx / n, syy - sy * sy / n, sxy - sx * sy / n
    return inside and cxx > 0.0 and cxx * cyy > cxy * cxy


@jit
def feasible_parameters(theta, sigma2, box):
    """Say whether the line meets the box, and values in the box can have the errors' variance."""
    ax, bx, ay, by = box
    left, right = theta[0] + theta[1] * ax, theta[0] + theta[1] * bx
    meets = max(left, right) >= ay and min(left, right) <= by
    return meets and sigma2 <= 0.25 * (by - ay) ** 2


@jit
def central_point(n, box):
    """Return feasible sums, coefficients and a variance: those of a cloud in the box's middle."""
    ax, bx, ay, by = box
    mx, my = 0.5 * (ax + bx), 0.5 * (ay + by)
    vx, vy = 0.05 * (bx - ax) ** 2, 0.05 * (by - ay) ** 2
    s = np.array([n * mx, n * (mx * mx + vx), n * my, n * mx * my, n * (my * my + vy)])
    return s, np.array([my, 0.0]), vy
