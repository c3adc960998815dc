"""Gauss-Legendre rules on [0, 1] with weights that are accurate at the ends."""

import numpy as np


def unit_rule(count):
    """Nodes and weights of Gauss-Legendre quadrature on [0, 1].

    The library's nodes on [-1, 1] leave relative errors of 1e-13 in the weights near the ends,
    where our integrands are largest. So the left half is polished in the distance u from the end,
    with Legendre's recurrence in differences, and reflected.
    """
    half = (count + 1) // 2
    u = 0.5 * (np.polynomial.legendre.leggauss(count)[0][:half] + 1.0)
    for _ in range(3):
        previous = np.ones(half)
        step = -2.0 * u
        current = previous + step
        for k in range(1, count):
            step = (k * step - (2 * k + 1) * 2.0 * u * current) / (k + 1)
            previous = current
            current = current + step
        square = 4.0 * u * (1.0 - u)
        slope = -2.0 * count * (previous - (1.0 - 2.0 * u) * current) / square
        u = u - current / slope
    weights = square / (count * previous) ** 2
    rest = count - half
    return (
        np.concatenate([u, 1.0 - u[:rest][::-1]]),
        np.concatenate([weights, weights[:rest][::-1]]),
    )


SHORT_NODES, SHORT_WEIGHTS = unit_rule(16)
LONG_NODES, LONG_WEIGHTS = unit_rule(48)
# Beyond this drop of the log integrand a tail is below the rounding of the whole.
DROP = 37.0
