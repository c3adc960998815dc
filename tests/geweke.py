"""Geweke's test: a right transition leaves the joint law of parameters, latents and release alone.

Parameters and latents are drawn from the prior, the release from the model; then the transition is
made once, given the release. What it drew has again the joint law that it started from (Geweke,
2004). Chains start in that law, so that nothing has to converge, and as many as a sharp test takes
are independent of each other.

Test functions are ranks, their squares and their products with each other and with the release:
an update that leaves the marginal laws alone but forgets the release is seen by the products. Where
the release says much, the law given it is narrow beside the prior, and products of ranks hardly
notice that it gets wider: so there are squares along the principal axes of the ranks, too, each in
units of its own spread.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

# In standard errors. Of 40 functions a case, one in 4,000 cases would fail on other random numbers.
LIMIT = 4.5
_MOVED = 0.02  # least share of replicates in which a variable moves
_DETERMINED = 1e-6  # share of the variance along an axis that others determine

Columns = Mapping[str, np.ndarray]


def _ranks(values: np.ndarray, among: np.ndarray) -> np.ndarray:
    """Return where values stand in a sample, from -1 to 1; ties are split in two."""
    order = np.sort(among)
    below, up_to = (np.searchsorted(order, values, side) for side in ("left", "right"))
    return (below + up_to) / order.size - 1.0


def z_scores(before: Columns, after: Columns, given: Columns) -> dict[str, float]:
    """Return the mean change of every test function, in its standard errors.

    Parameters
    ----------
    before, after : mapping of str to array
        What the transition draws, one entry for each replicate. Ranks are those among `before`.
    given : mapping of str to array
        What it conditions on: the releases, and variables that it leaves as they are.
    """
    fixed = {name: _ranks(values, values) for name, values in given.items()}
    old = {name: _ranks(values, values) for name, values in before.items()} | fixed
    new = {name: _ranks(values, before[name]) for name, values in after.items()} | fixed
    pairs = [(a, b) for i, a in enumerate(old) for b in [*old][i:] if a in before or b in before]
    scores = {}
    for parts in [*((name,) for name in before), *pairs]:
        change = np.prod([new[p] for p in parts], axis=0) - np.prod([old[p] for p in parts], axis=0)
        scores[" * ".join(parts)] = _z_score(change)
    spread, axes = np.linalg.eigh(np.cov([*old.values()]))
    for k in np.flatnonzero(spread > _DETERMINED * spread[-1]):
        there, here = (axes[:, k] @ [*found.values()] for found in (new, old))
        largest = np.argsort(-np.abs(axes[:, k]))[:3]
        name = " ".join(f"{axes[i, k]:+.1f} {[*old][i]}" for i in largest)
        scores[f"({name} ...)^2"] = _z_score((there**2 - here**2) / spread[k])
    return scores


def _z_score(change: np.ndarray) -> float:
    error = change.std() / change.size**0.5
    return float(change.mean() / error) if error > 0.0 else 0.0


def check_invariance(before: Columns, after: Columns, given: Columns) -> None:
    """Assert that a transition moves all variables and leaves their joint law as it was."""
    for name, values in after.items():
        assert np.isfinite(values).all(), f"{name} is not finite"
        moved = np.mean(values != before[name])
        assert moved > _MOVED, f"{name} moves in {moved:.1%} of the replicates"
    scores = z_scores(before, after, given)
    wrong = {name: round(score, 1) for name, score in scores.items() if abs(score) > LIMIT}
    assert not wrong, f"the law changes, in standard errors: {wrong}"


def feasible(mu, s2, mean, variance, *, n, bounds=(0.0, 1.0)):
    """Say which laws, and samples of n records, can have these moments within the bounds."""
    low, high = bounds
    inside = (mu > low) & (mu < high) & (s2 <= (mu - low) * (high - mu))
    inside &= (mean >= low) & (mean <= high)
    return inside & ((n - 1) / n * variance <= (mean - low) * (high - mean))


def normal_records(
    rng, size, *, n, mu0, kappa0=0.0, tau0=0.0, a0=3.0, b0=0.1, c0=0.0, bounded=False
):
    """Draw (mu, s2) and the mean and variance of n records; on [0, 1] if bounded."""
    s2 = b0 / rng.gamma(a0, size=size) if b0 else rng.gamma(-a0, 1 / c0, size)
    mu = mu0 + rng.standard_normal(size) / np.sqrt(kappa0 / s2 + tau0)
    mean = mu + np.sqrt(s2 / n) * rng.standard_normal(size)
    variance = s2 * rng.chisquare(n - 1, size) / (n - 1)
    drawn = mu, s2, mean, variance
    return np.array(drawn)[:, feasible(*drawn, n=n) | (not bounded)].T
