r"""One Gibbs sweep of Poisson factorization, with the counts known or released with noise.

The counts of a D x V table, :math:`y_{dv} \sim \mathrm{Poisson}(\mu_{dv})` with
:math:`\mu_{dv} = \sum_k \theta_{dk} \phi_{kv}`, have Gamma priors on both factors. A sweep draws

1. :math:`y_{dv}` given its release :math:`z_{dv}` and :math:`\mu_{dv}`, unless it is known;
2. its parts :math:`y_{dv1}, \ldots, y_{dvK}`, multinomial with weights
   :math:`\theta_{dk} \phi_{kv}`;
3. :math:`\theta_{dk} \sim \mathrm{Gamma}(a_{dk} + \sum_v y_{dvk},\ b_{dk} + \sum_v \phi_{kv})`,
   then :math:`\phi` likewise.

Step 1 is one of two draws. The direct one is from
:math:`\mathrm{Poisson}(y \mid \mu)\, e^{-\lambda |z - y|}`, with geometric or Laplace noise of
scale :math:`1/\lambda`. The other is the published augmentation of geometric noise [1]_, which is
kept to compare with: :math:`z = y + g_1 - g_2`, :math:`g_i \sim \mathrm{Poisson}(\lambda_i)`,
:math:`\lambda_i` exponential of mean :math:`\alpha / (1 - \alpha)`, :math:`\alpha = e^{-\lambda}`.
Then the smaller of :math:`y + g_1` and :math:`g_2` follows a Bessel law,

.. math::

    m \sim \mathrm{Bessel}\bigl(|z|, 2 \sqrt{(\lambda_1 + \mu) \lambda_2}\bigr), \quad
    y + g_1 = m + \max(z, 0), \quad g_2 = m + \max(-z, 0), \\
    y \sim \mathrm{Binomial}\Bigl(y + g_1, \frac{\mu}{\mu + \lambda_1}\Bigr), \quad
    \lambda_i \sim \mathrm{Gamma}(1 + g_i, \text{rate } 1 / \alpha).

Rows are worked on in blocks. Every block has its own random generator and the sums over blocks are
of whole numbers: threads change nothing but the time. They are Python's, with the GIL released:
those of numba do not survive the fork by which PyMC starts its chains.

References
----------
.. [1] A. Schein, Z. S. Wu, A. Schofield, M. Zhou, H. Wallach (2019). Locally private Bayesian
   inference for count models. ICML.
"""

from __future__ import annotations

import math
from concurrent.futures import Executor
from typing import NamedTuple

import numpy as np

from pymc_dp.kernels import jit
from pymc_dp.kernels.counts.poisson import LISTED, draw_count
from pymc_dp.kernels.counts.skellam_bessel import draw_count_augmented, start_augmentation

KNOWN, DIRECT, BESSEL = 0, 1, 2  # how the counts are drawn

TINY = 1e-300  # a factor is never smaller: its logarithm has to exist
_FEW_CELLS = 1024  # of a block: starting it is then 1% of its time
_MOST_BLOCKS = 64


@jit
def allocate(rng, y, weights, cumulative, row, column):
    """Allocate a count over the components: add a multinomial draw to `row` and to `column`.

    Many are split off by binomial draws, component by component, a few are placed one by one.

    Parameters
    ----------
    rng : numpy Generator
    y : int
    weights, cumulative : float arrays (K,)
        Not normalised, and their sums from the first on.
    row, column : float arrays (K,), updated in place
    """
    k = weights.size - 1
    while k > 0 and y > 6 * (k + 1):
        n = rng.binomial(y, weights[k] / cumulative[k]) if weights[k] > 0.0 else 0
        row[k] += n
        column[k] += n
        y -= n
        k -= 1
    if k == 0:
        row[0] += y
        column[0] += y
        return
    total = cumulative[k]
    for _ in range(y):
        u = rng.random() * total
        j = 0
        for i in range(k):  # without a branch that the processor would guess wrong
            j += cumulative[i] <= u
        row[j] += 1.0
        column[j] += 1.0


@jit
def _scaled_weights(theta, phi, weights, cumulative):
    """Weights relative to the largest, where the products under- or overflow; False if all are 0.

    A component with a rate of 0 gets the weight 0.
    """
    top = -math.inf
    for k in range(theta.size):
        top = max(top, math.log(theta[k]) + math.log(phi[k]))
    if not abs(top) < math.inf:
        return False
    total = 0.0
    for k in range(theta.size):
        weights[k] = math.exp(math.log(theta[k]) + math.log(phi[k]) - top)
        total += weights[k]
        cumulative[k] = total
    return True


@jit
def sweep_rows(rng, method, first, last, z, noise, y, augmentation, theta, phi, prior, parts):
    """Draw and allocate the counts of the rows [first, last), and their rows of theta.

    Parameters
    ----------
    rng : numpy Generator
    method : int
        `KNOWN`: z are the counts; `DIRECT` or `BESSEL`: see the module.
    first, last : int
    z, noise : float matrices (D, V)
        Releases and the scales of their noise.
    y : int matrix (D, V), written
        Counts.
    augmentation : float array (D, V, 2), updated in place with `BESSEL`
    theta, phi : float matrices (D, K) and (V, K)
        Theta is updated in place where `prior` has rows.
    prior : pair of float matrices (D, K), or of no rows
        Shapes, and rates with the sums of phi added to them.
    parts : float matrix (V, K), written
        Counts of these rows by column and component.

    Returns
    -------
    bool
        False where a count cannot be drawn: its rate or release is NaN or above 9e15, or the rate
        is 0 while the known count is positive.
    """
    components = phi.shape[1]
    weights, cumulative = np.empty(components), np.empty(components)
    row = np.empty(components)
    masses = np.empty((2, LISTED))
    parts[:] = 0.0
    shape, rate = prior
    scale, lam, down, up = -1.0, 0.0, 0.0, 0.0
    for d in range(first, last):
        row[:] = 0.0
        for v in range(z.shape[1]):
            mu = 0.0
            for k in range(components):
                weights[k] = theta[d, k] * phi[v, k]
                mu += weights[k]
                cumulative[k] = mu
            count = z[d, v]
            if method != KNOWN:
                if noise[d, v] != scale:
                    scale = noise[d, v]
                    lam = 1.0 / scale
                    down, up = math.exp(-lam), math.exp(lam)
                if method == DIRECT:
                    count = draw_count(rng, count, lam, down, up, mu, masses)
                else:
                    count = draw_count_augmented(rng, count, down, mu, augmentation[d, v])
            if not (count >= 0.0 and mu < math.inf):
                return False
            y[d, v] = int(count)
            if count > 0.0:
                if mu < 1e-290 and not _scaled_weights(theta[d], phi[v], weights, cumulative):
                    return False
                allocate(rng, y[d, v], weights, cumulative, row, parts[v])
        if shape.shape[0] > 0:
            for k in range(components):
                theta[d, k] = max(rng.standard_gamma(shape[d, k] + row[k]) / rate[d, k], TINY)
    return True


@jit
def draw_factor(rng, factor, shape, rate, parts):
    """Draw a factor in place: Gamma with `parts` added to the shapes; all of the same shape."""
    for v in range(factor.shape[0]):
        for k in range(factor.shape[1]):
            factor[v, k] = max(rng.standard_gamma(shape[v, k] + parts[v, k]) / rate[v, k], TINY)


class Table(NamedTuple):
    """What a sweep conditions on.

    Attributes
    ----------
    method : int
        `KNOWN`, `DIRECT` or `BESSEL`.
    z, noise : float arrays (D, V)
        Releases, or known counts, and the scales of the noise.
    theta_prior, phi_prior : pair of float arrays (D, K) and (V, K), or None
        Shapes and rates of the Gamma priors; None holds the factor fixed.
    """

    method: int
    z: np.ndarray
    noise: np.ndarray
    theta_prior: tuple[np.ndarray, np.ndarray] | None
    phi_prior: tuple[np.ndarray, np.ndarray] | None


class State(NamedTuple):
    """What a sweep updates in place: phi is transposed, (V, K)."""

    theta: np.ndarray
    phi: np.ndarray
    y: np.ndarray
    augmentation: np.ndarray


def block_count(rows: int, columns: int) -> int:
    """Return the number of blocks of a table; it depends on nothing but the table's size."""
    blocks = 1
    while (
        blocks < _MOST_BLOCKS and rows * columns >= 2 * blocks * _FEW_CELLS and 2 * blocks <= rows
    ):
        blocks *= 2
    return blocks


def start_state(
    rng,
    table: Table,
    theta: np.ndarray,
    phi: np.ndarray,
    augmentation: np.ndarray | None = None,
) -> State:
    """Return a state with these factors.

    Parameters
    ----------
    rng : numpy Generator
    table : Table
    theta, phi : float arrays (D, K) and (K, V), copied
    augmentation : float array (D, V, 2), optional
        The latent rates of a state before; by default they are drawn from their conditional.
    """
    theta = np.array(theta, dtype=float, order="C")
    phi = np.array(np.transpose(phi), dtype=float, order="C")
    needed = table.method == BESSEL and augmentation is None
    if augmentation is None:
        augmentation = np.empty((*table.z.shape, 2) if needed else (0, 0, 2))
    if needed:
        start_augmentation(rng, table.z, table.noise, theta @ phi.T, augmentation)
    return State(theta, phi, np.zeros(table.z.shape, dtype=np.int64), augmentation)


def sweep(
    rngs: list[np.random.Generator],
    table: Table,
    state: State,
    pool: Executor | None = None,
    threads: int = 1,
) -> bool:
    """Update a state in place by one sweep.

    Parameters
    ----------
    rngs : list of numpy Generators
        One for each block, see `block_count`.
    table : Table
    state : State
    pool : concurrent.futures.Executor, optional
        Of threads, at least ``threads - 1``.
    threads : int, default 1
        How many share the work; what is drawn does not depend on it.

    Returns
    -------
    bool
        False where a count cannot be drawn, see `sweep_rows`; the state is then of no use.
    """
    rows, columns = table.z.shape
    components = state.phi.shape[1]
    edges = np.linspace(0, rows, len(rngs) + 1).astype(int).tolist()
    parts = np.empty((len(rngs), columns, components))
    if table.theta_prior is None:
        prior = np.empty((0, components)), np.empty((0, components))
    else:
        shape, rate = table.theta_prior
        prior = shape, rate + state.phi.sum(axis=0)

    def work(thread: int) -> bool:
        good = True
        for b in range(thread, len(rngs), threads):
            good &= sweep_rows(
                rngs[b], table.method, edges[b], edges[b + 1], table.z, table.noise, *state[2:],
                state.theta, state.phi, prior, parts[b],
            )  # fmt: skip
        return good

    if pool is None:
        threads = 1
    futures = [pool.submit(work, t) for t in range(1, threads)] if pool is not None else []
    good = work(0)
    good = all([other.result() for other in futures]) and good
    if good and table.phi_prior is not None:
        shape, rate = table.phi_prior
        rate = rate + state.theta.sum(axis=0)
        draw_factor(rngs[0], state.phi, shape, rate, parts.sum(axis=0))
    return good
