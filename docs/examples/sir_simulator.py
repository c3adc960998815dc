"""The stochastic SIR epidemic: draws of its curve, and a particle filter for its release.

Of a closed population of K members S are susceptible and I infected. One more gets infected at rate
beta S I / K, one recovers at rate gamma I. `simulate` draws curves of I at given times; a curve of
a million members has two million events, which is why large epidemics advance in steps.

Small numbers are drawn event by event (Gillespie, 1977), for that is where chance decides: whether
an epidemic dies out, and when it takes off. Once I has reached `EXACT_BELOW`, the numbers of
infections and recoveries of a step are drawn, binomial and Poisson, with hazards at what I grows to
within the step. S and I remain whole and never negative, and when I has fallen again, events take
over.

`log_likelihood` estimates the likelihood of a released curve without bias, so that importance
sampling with it (`posterior`) has the exact posterior for its limit. It serves as the reference
here; it needs a model with two parameters, a Markov process and a likelihood of the release.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numba
import numpy as np
from scipy import special, stats

EXACT_BELOW = 1000  # infected members; below, every event is drawn
STEP = 0.25  # days, and no more than a quarter of an infection's or recovery's typical time

_jit = numba.njit(cache=True, nogil=True, error_model="numpy")


@_jit
def advance(rng, s, i, beta, gamma, population, duration, exact_below):
    """Return S and I after some time."""
    left = duration
    longest = min(STEP, 0.25 / (beta + gamma))
    while left > 0.0 and i > 0:
        if i < exact_below:
            infection = beta * s * i / population
            total = infection + gamma * i
            left -= rng.standard_exponential() / total
            if left <= 0.0:
                break
            if rng.random() * total < infection:
                s -= 1
                i += 1
            else:
                i -= 1
            continue
        dt = min(longest, left)
        left -= dt
        # I grows as exp(r t) with r at S of mid-step: exact while S hardly changes.
        half = i * _average_growth((beta * s / population - gamma) * dt / 2)
        s_middle = s * math.exp(-beta * half * dt / 2 / population)
        mean = i * _average_growth((beta * s_middle / population - gamma) * dt)
        new = rng.binomial(s, -math.expm1(-beta * mean * dt / population)) if s > 0 else 0
        s -= new
        i += new
        i -= min(rng.poisson(gamma * mean * dt), i)
    return s, i


@_jit
def _average_growth(x):
    """Average of exp(x u) over u in [0, 1]."""
    return 1.0 + x / 2 + x * x / 6 if abs(x) < 1e-4 else math.expm1(x) / x


@_jit
def _curves(rng, beta, gamma, population, infected, times, exact_below):
    out = np.empty((len(beta), len(times)), np.int64)
    for row in range(len(beta)):
        s, i, now = population - infected, infected, 0.0
        for k in range(len(times)):
            s, i = advance(
                rng, s, i, beta[row], gamma[row], population, times[k] - now, exact_below
            )
            now = times[k]
            out[row, k] = i
    return out


def simulate(
    rng: np.random.Generator,
    beta,
    gamma,
    times,
    *,
    population: int,
    infected: int = 1,
    exact_below: float = EXACT_BELOW,
) -> np.ndarray:
    """Draw the numbers of infected members at some times, one curve for every pair of rates.

    Parameters
    ----------
    rng : numpy.random.Generator
        Where chance comes from; the same one in the same state draws the same curves.
    beta, gamma : array_like
        Rates of infection and of recovery, > 0; they broadcast against each other.
    times : array_like
        Increasing, >= 0.
    population, infected : int
        Members, and how many of them are infected at time 0.
    exact_below : float
        From how many infected members on time advances in steps; infinity draws every event.

    Returns
    -------
    numpy.ndarray of int
        The curves, along the last axis.
    """
    beta, gamma = np.broadcast_arrays(np.asarray(beta, float), np.asarray(gamma, float))
    times = np.asarray(times, float)
    if not (np.all(beta > 0) and np.all(gamma > 0)):  # NaN too
        raise ValueError("beta and gamma must be positive")
    if times.ndim != 1 or np.any(np.diff(times, prepend=0.0) < 0):
        raise ValueError("times must be a vector that does not decrease, from 0 on")
    if not 0 <= infected <= population:
        raise ValueError("infected must be from 0 to the population")
    rows = [np.ascontiguousarray(x).ravel() for x in (beta, gamma)]
    curves = _curves(rng, *rows, population, infected, times, float(exact_below))
    return curves.reshape((*beta.shape, len(times)))


@_jit
def _filter(rng, beta, gamma, population, infected, times, log_mass, particles):
    """Estimate the log likelihood; `log_mass[k, i]` is that of release k given I = i."""
    s = np.full(particles, population - infected)
    i = np.full(particles, infected)
    s_new, i_new = np.empty_like(s), np.empty_like(i)
    weight = np.empty(particles)
    total, now = 0.0, 0.0
    for k in range(len(times)):
        largest = -np.inf
        for p in range(particles):
            s[p], i[p] = advance(
                rng, s[p], i[p], beta, gamma, population, times[k] - now, EXACT_BELOW
            )
            weight[p] = log_mass[k, i[p]]
            largest = max(largest, weight[p])
        now = times[k]
        if largest == -np.inf:
            return -np.inf
        mass = 0.0
        for p in range(particles):
            mass += math.exp(weight[p] - largest)
            weight[p] = mass
        total += largest + math.log(mass / particles)
        # Systematic resampling.
        u, q = rng.random(), 0
        for p in range(particles):
            while q < particles - 1 and weight[q] < (p + u) / particles * mass:
                q += 1
            s_new[p], i_new[p] = s[q], i[q]
        s, s_new, i, i_new = s_new, s, i_new, i
    return total


@_jit
def _log_likelihoods(rng, beta, gamma, population, infected, times, log_mass, particles):
    out = np.empty(len(beta))
    for row in range(len(beta)):
        out[row] = _filter(
            rng, beta[row], gamma[row], population, infected, times, log_mass, particles
        )
    return out


@dataclass(frozen=True)
class Epidemic:
    """What is public about an epidemic: everything but its course.

    Attributes
    ----------
    population, infected : int
        Members, and how many are infected at time 0.
    times : numpy.ndarray
        When I is released.
    prior_mean, prior_sd : numpy.ndarray
        Of log beta and log gamma, which are Normal and independent.
    """

    population: int
    infected: int
    times: np.ndarray
    prior_mean: np.ndarray
    prior_sd: np.ndarray


def binomial_log_mass(released, draws: int, pseudo_count: float, population: int) -> np.ndarray:
    """Log mass of every released number given each I from 0 to K: (time, I)."""
    share = (np.arange(population + 1) + pseudo_count) / (population + 2 * pseudo_count)
    return stats.binom.logpmf(np.asarray(released)[:, None], draws, share)


@dataclass(frozen=True)
class Weighted:
    """Weighted draws of (log beta, log gamma): (draw, parameter)."""

    values: np.ndarray
    weights: np.ndarray

    @property
    def ess(self) -> float:
        """Effective number of draws."""
        return float(1 / np.sum(self.weights**2))

    def resample(self, rng: np.random.Generator, n: int) -> np.ndarray:
        """Draw equally weighted values."""
        return self.values[rng.choice(len(self.weights), n, p=self.weights)]


def posterior(
    epidemic: Epidemic,
    log_mass: np.ndarray,
    rng: np.random.Generator,
    *,
    draws: int = 2000,
    particles: int = 100,
    rounds: int = 5,
    start: Weighted | None = None,
) -> Weighted:
    """Sample the posterior of log beta and log gamma by importance, with estimated likelihoods.

    The first proposal is the prior, or Student's t about the draws `start`, of a related posterior;
    each later one is Student's t about what the draws before it say. All rounds but the last only
    look for a proposal, with a fifth of the particles, and with a root of the likelihood as long as
    few draws would carry all the weight. Likelihoods estimated without bias leave the limit exact
    (Tran, Scharth, Pitt & Kohn, 2013).
    """
    mean, sd = epidemic.prior_mean, epidemic.prior_sd
    prior = stats.multivariate_normal(mean, np.diag(sd**2))
    proposal = prior if start is None else _student(start)
    for turn in range(rounds):
        last = turn == rounds - 1
        values = proposal.rvs(draws, random_state=rng)
        rates = np.ascontiguousarray(np.exp(values).T)
        log_weight = prior.logpdf(values) - proposal.logpdf(values)
        log_weight += _log_likelihoods(
            rng,
            rates[0],
            rates[1],
            epidemic.population,
            epidemic.infected,
            np.asarray(epidemic.times, float),
            log_mass,
            particles if last else max(particles // 5, 1),
        )
        possible = np.isfinite(log_weight)
        if possible.sum() < MIN_DRAWS:
            raise ValueError(
                f"the release is impossible under all but {possible.sum()} of {draws} draws: take "
                "more draws or particles, or start from a related posterior"
            )
        values, log_weight = values[possible], log_weight[possible]
        power = 1.0
        while True:
            found = Weighted(values, special.softmax(power * log_weight))
            if last or found.ess > min(50, possible.sum() / 2):
                break
            power *= 0.8
        proposal = _student(found)
    return found


MIN_DRAWS = 10


def _student(found: Weighted):
    mean = found.weights @ found.values
    spread = np.cov(found.values.T, aweights=found.weights, ddof=0)
    return stats.multivariate_t(mean, 1.3 * spread, df=6)
