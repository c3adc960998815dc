"""Make bernstein_sheldon.json: `python docs/papers/kept/bernstein_sheldon.py`, half a minute.

The paper's Algorithm 1, written anew, on the release of `docs/papers/bernstein_sheldon.md`.
"""

import json
from pathlib import Path

import numpy as np


def algorithm_1(z, b, n, variance, iterations, rng):
    """Draw theta and sigma2 by the paper's sampler; x is N(0, variance), its moments known."""
    e2, e4 = variance, 3 * variance**2
    xi = np.array([[e2, 0], [0, e4 - e2**2]])  # covariance of (x, x2)
    lam0, omega2, kept = np.eye(2) * 0.5 / 19, np.full(5, 2.0 * b**2), []
    sigma2 = 0.5 / rng.gamma(20)
    t0, t1 = rng.normal(0, np.sqrt(sigma2 * 19 / 0.5), 2)
    projected = 0
    for _ in range(iterations):
        mean = np.array([0, e2, t0, t1 * e2, sigma2 + t0**2 + t1**2 * e2])
        # Conditional means of y, xy and y2 are linear in (x, x2), the noise about them is added.
        J = np.array([[1, 0], [0, 1], [t1, 0], [t0, t1], [2 * t0 * t1, t1**2]])
        V = J @ xi @ J.T
        a, c = t0, t1 * e2  # E y, E xy
        V[2:, 2:] += sigma2 * np.array([[1, 0, 2 * a], [0, e2, 2 * c],
            [2 * a, 2 * c, 2 * sigma2 + 4 * (t0**2 + t1**2 * e2)]])  # fmt: skip
        s = rng.multivariate_normal(n * mean, n * V, method="cholesky", check_valid="ignore")
        s += (
            n
            * V
            @ np.linalg.solve(n * V + np.diag(omega2), z - s - np.sqrt(omega2) * rng.normal(size=5))
        )
        B = np.array([[n, s[0], s[2]], [s[0], s[1], s[3]], [s[2], s[3], s[4]]])
        values, vectors = np.linalg.eigh(B)
        if values[0] < 0:
            projected += 1
            B = (vectors * np.maximum(values, 0)) @ vectors.T
        lam = B[:2, :2] + lam0
        m = np.linalg.solve(lam, B[:2, 2])
        sigma2 = (0.5 + max(B[2, 2] - m @ lam @ m, 0) / 2) / rng.gamma(20 + n / 2)
        t0, t1 = m + np.sqrt(sigma2) * np.linalg.solve(
            np.linalg.cholesky(lam).T, rng.normal(size=2)
        )
        omega2 = 1 / rng.wald(1 / (b * np.maximum(abs(z - s), 1e-12)), 1 / b**2)
        kept.append((t0, t1, sigma2))
    return np.array(kept[iterations // 10 :]), projected / iterations


def main():
    """Sample and write."""
    rng = np.random.default_rng(1)
    z, b = np.array([0.657, -2.73, 12.337, -10.409, 5.275]), 5.0
    draws, projected = algorithm_1(z, b, 10, 0.04, 200_000, rng)
    batches = draws[: len(draws) // 30 * 30].reshape(30, -1, 3)
    found = {
        "about": "made by bernstein_sheldon.py; orders: theta0, theta1, sigma2",
        "algorithm_1": {
            "mean": draws.mean(axis=0).tolist(),
            "sd": draws.std(axis=0).tolist(),
            "sd_error": (batches.std(axis=1).std(axis=0, ddof=1) / 30**0.5).tolist(),
            "mean_error": (batches.mean(axis=1).std(axis=0, ddof=1) / 30**0.5).tolist(),
            "slope": np.round(draws[::60, 1], 3).tolist(),
            "projected": projected,
        },
    }
    Path(__file__).with_suffix(".json").write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
