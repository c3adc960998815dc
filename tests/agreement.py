"""Whether draws have the law that they should have; each function asserts that they do.

Random numbers are fixed. By its level, or a limit in standard errors, one test in a thousand or
less would fail on others; what draws from another law fails by far more. Where draws have to fail,
to see that a test is sharp, ``pytest.raises(AssertionError)`` is around the call.
"""

import arviz as az
import numpy as np
from scipy import integrate, stats

LEVEL = 1e-3


def _pass(p, level, test, where):
    assert p > level, f"{test}: p = {p:.1e} {where}"


def follows(draws, law, level=LEVEL, where=""):
    """Kolmogorov and Smirnov's test of draws from a continuous law, one by one independent.

    The law is one of SciPy's or its name, a distribution function, or a pair of a grid and the
    density there, which need not be normalised.
    """
    if isinstance(law, tuple):
        grid, density = law
        below = integrate.cumulative_trapezoid(density, grid, initial=0.0)
        law = lambda x: np.interp(x, grid, below / below[-1])  # noqa: E731
    p = stats.kstest(np.ravel(draws), getattr(law, "cdf", law)).pvalue
    _pass(p, level, "Kolmogorov-Smirnov", where)


def same_law(first, second, level=LEVEL, where=""):
    """The same test of two samples; of each entry where draws have several."""
    columns = (np.reshape(x, (len(x), -1)).T for x in (first, second))
    for j, (a, b) in enumerate(zip(*columns, strict=True)):
        _pass(stats.ks_2samp(a, b).pvalue, level, f"two samples, entry {j}", where)


def counts_follow(counts, chances, level=LEVEL, where=""):
    """Chi-square test of how often each outcome was seen; chances need not be normalised.

    Outcomes that are not to be expected at all, taken together, must not have been seen. Rare ones
    are pooled; where they are rare even so, their number is tested by itself.
    """
    counts, chances = np.ravel(counts).astype(float), np.ravel(chances)
    expected = counts.sum() * chances / chances.sum()
    order = np.argsort(expected)
    never = order[np.cumsum(expected[order]) < level]
    assert not counts[never].any(), f"{never[counts[never] > 0]} are all but impossible {where}"
    rare = expected < 5
    seen, number = counts[rare].sum(), expected[rare].sum()
    counts, expected = counts[~rare], expected[~rare]
    if number >= 5:
        counts, expected = np.append(counts, seen), np.append(expected, number)
    else:
        _pass(stats.poisson.sf(seen - 1, number), level, f"rare outcomes, {seen:.0f}", where)
    if counts.size > 1:
        p = stats.chisquare(counts, expected * counts.sum() / expected.sum()).pvalue
        _pass(p, level, "chi-square", where)


def values_follow(draws, values, chances, level=LEVEL, where=""):
    """The same for draws of a law with these values, numbers or rows, and no others."""
    number = {tuple(np.ravel(value)): i for i, value in enumerate(values)}
    counts = np.zeros(len(number))
    for value, times in zip(*np.unique(draws, axis=0, return_counts=True), strict=True):
        assert tuple(np.ravel(value)) in number, f"{value} is impossible {where}"
        counts[number[tuple(np.ravel(value))]] = times
    counts_follow(counts, chances, level, where)


def rank(rng, truth, draws):
    """How many draws, along the first axis, are below the truth; ties are broken at random."""
    below, same = (draws < truth).sum(axis=0), (draws == truth).sum(axis=0)
    return below + rng.integers(0, same + 1)


def uniform(ranks, draws, bins=10, level=LEVEL, where=""):
    """Ranks among so many draws, one row for each trial, are uniform in every column."""
    width = np.bincount(np.arange(draws + 1) * bins // (draws + 1))
    for j, column in enumerate(np.reshape(ranks, (len(ranks), -1)).T):
        counts = np.bincount(column.astype(int) * bins // (draws + 1), minlength=bins)
        counts_follow(counts, width, level, f"column {j} {where}")


def weighted(values, weights):
    """Mean, standard deviation and standard error of the mean of weighted draws, the first axis."""
    weights = weights / weights.sum()
    mean = weights @ values
    squares = (values - mean) ** 2
    return mean, np.sqrt(weights @ squares), np.sqrt(weights**2 @ squares)


def _chains(draws, entries):
    """Return draws with axes for chains, draws and that many more."""
    draws = np.asarray(draws, dtype=float)
    return draws[None] if draws.ndim == 1 + entries else draws


def has_moments(
    draws, mean, sd=None, mean_se=0.0, *, sd_within=None, limit=4.0, least=1000, where=""
):
    """Means and standard deviations are the exact ones, within Monte Carlo standard errors.

    Parameters
    ----------
    draws : array
        Of one chain, or with an axis of chains before that of draws; then the axes of `mean`.
    mean_se : float or array
        Error of the means to compare with. That of `sd` is as large beside that of the draws.
    sd_within : float, optional
        Relative error of standard deviations, in place of standard errors: for heavy tails.
    least : float
        Effective draws that there are at least.
    """
    draws = _chains(draws, np.ndim(mean))
    assert np.min(az.ess(draws, method="mean")) >= least, f"few effective draws {where}"
    error = az.mcse(draws)
    off = np.abs(draws.mean(axis=(0, 1)) - mean) / np.hypot(error, mean_se)
    assert np.all(off <= limit), f"means are off by {off} standard errors {where}"
    if sd is None:
        return
    off = np.abs(draws.std(axis=(0, 1)) - sd)
    if sd_within is None:
        allowed = limit * az.mcse(draws, method="sd") * np.hypot(1.0, np.divide(mean_se, error))
    else:
        allowed = sd_within * np.asarray(sd)
    assert np.all(off <= allowed), f"standard deviations are off by {off}, not {allowed} {where}"


def has_quantiles(draws, quantiles, *, error=0.0, limit=4.0, least=1000, where=""):
    """The shares of draws up to quantiles, given as {share: quantile}, are the exact ones."""
    draws = _chains(draws, 0)
    for share, quantile in quantiles.items():
        below = (draws <= quantile).astype(float)
        ess = az.ess(below, method="mean")
        assert ess >= least, f"few effective draws {where}"
        off = abs(below.mean() - share) / np.hypot(np.sqrt(share * (1 - share) / ess), error)
        assert off <= limit, f"the quantile of {share} is off by {off} standard errors {where}"


def same_means(first, second, *, limit=4.0, where=""):
    """The means of two samples agree; their first axes are those of chains and of draws."""
    a, b = (np.asarray(x, dtype=float) for x in (first, second))
    off = np.abs(a.mean(axis=(0, 1)) - b.mean(axis=(0, 1))) / np.hypot(az.mcse(a), az.mcse(b))
    assert np.all(off <= limit), f"means differ by {off} standard errors {where}"


def has_gradient(function, *point, step=1e-5, rtol=1e-6, atol=1e-7):
    """What a function returns behind its value are the slopes, by central differences.

    The arguments are numbers or arrays, each with its step beside its size.
    """
    _, *gradient = function(*point)
    assert gradient
    for k, slope in enumerate(gradient):
        for index in np.ndindex(np.shape(point[k])):
            h = step * max(1.0, abs(np.asarray(point[k])[index]))
            ends = []
            for sign in (1, -1):
                moved = list(point)
                moved[k] = np.array(point[k], dtype=float)
                moved[k][index] += sign * h
                ends.append(function(*moved)[0])
            expected = (ends[0] - ends[1]) / (2 * h)
            np.testing.assert_allclose(np.asarray(slope)[index], expected, rtol=rtol, atol=atol)
