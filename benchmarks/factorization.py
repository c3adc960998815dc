"""Poisson factorization: time of a sweep beside a plain numba sampler as published.

Takes about two minutes. All columns of a row are measured in turns, so that the speed of the
machine, which may drift, drops out of the ratios.
"""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numba import njit
from rich.console import Console
from rich.table import Table

from pymc_dp.kernels.counts import factorization as kernel

SIZES = ((100, 5), (300, 10))
ALPHA = 0.5
ROUNDS = 5


@njit(error_model="numpy")
def published_sweep(rng, z, alpha, theta, phi, lam1, lam2):
    """Update everything by the published augmentation, the plain way: one loop."""
    rows, columns = z.shape
    components = theta.shape[1]
    by_row, by_column = np.zeros((rows, components)), np.zeros((components, columns))
    weights = np.empty(components)
    for d in range(rows):
        for v in range(columns):
            mu = 0.0
            for k in range(components):
                weights[k] = theta[d, k] * phi[k, v]
                mu += weights[k]
            # The Bessel law by listing its masses from 0 on, relative to the first.
            order = abs(z[d, v])
            y = (mu + lam1[d, v]) * lam2[d, v]
            total = term = 1.0
            m = 0
            while term > 1e-14 * total or (m + 1) * (m + 1 + order) < y:
                m += 1
                term *= y / (m * (m + order))
                total += term
            u = rng.random() * total
            m, term = 0, 1.0
            while u > term:
                u -= term
                m += 1
                term *= y / (m * (m + order))
            both, g2 = m + max(z[d, v], 0), m + max(-z[d, v], 0)
            count = rng.binomial(both, mu / (mu + lam1[d, v]))
            lam1[d, v] = rng.gamma(1.0 + both - count, alpha)
            lam2[d, v] = rng.gamma(1.0 + g2, alpha)
            for k in range(components - 1):
                part = rng.binomial(count, min(weights[k] / mu, 1.0)) if count else 0
                mu -= weights[k]
                by_row[d, k] += part
                by_column[k, v] += part
                count -= part
            by_row[d, components - 1] += count
            by_column[components - 1, v] += count
    for k in range(components):
        exposure = phi[k].sum()
        for d in range(rows):
            theta[d, k] = rng.gamma(1.0 + by_row[d, k], 1.0 / (1.0 + exposure))
        exposure = theta[:, k].sum()
        for v in range(columns):
            phi[k, v] = rng.gamma(1.0 + by_column[k, v], 1.0 / (1.0 + exposure))


def problem(size: int, components: int):
    rng = np.random.default_rng(1)
    theta, phi = rng.gamma(1.0, 1.0, (size, components)), rng.gamma(1.0, 1.0, (components, size))
    y = rng.poisson(theta @ phi)
    z = y + rng.geometric(1 - ALPHA, y.shape) - rng.geometric(1 - ALPHA, y.shape)
    return rng, theta, phi, y, z


def sweeps(size: int, components: int, pool) -> dict:
    """Return functions that run one sweep, by name."""
    rng, theta, phi, y, z = problem(size, components)
    ones = np.ones((size, components))
    scale = np.full(z.shape, -1 / np.log(ALPHA))
    lam1, lam2 = rng.exponential(1.0, (2, *z.shape))
    plain = theta.copy(), phi.copy(), lam1, lam2
    found = {"published, plain": lambda: published_sweep(rng, z, ALPHA, *plain)}
    for name, method, values in (
        ("bessel", kernel.BESSEL, z),
        ("direct", kernel.DIRECT, z),
        ("counts known", kernel.KNOWN, y),
    ):
        table = kernel.Table(method, values.astype(float), scale, (ones, ones), (ones, ones))
        state = kernel.start_state(rng, table, theta, phi)
        rngs = rng.spawn(kernel.block_count(size, size))
        for threads in (1, 2):
            found[name, threads] = lambda table=table, state=state, rngs=rngs, threads=threads: (
                kernel.sweep(rngs, table, state, pool, threads)
            )
    return found


def measure(size: int, components: int, pool) -> tuple[dict, dict]:
    """Return CPU ns (one thread) and wall ns a cell a sweep: medians over rounds of all in turn."""
    functions = sweeps(size, components, pool)
    count = 40 if size == 100 else 4
    cpu: dict = {name: [] for name in functions}
    wall: dict = {name: [] for name in functions}
    for function in functions.values():
        function()  # compiled after this
    for _ in range(ROUNDS):
        for name, function in functions.items():
            began, began_cpu = time.perf_counter(), time.thread_time()
            for _ in range(count):
                function()
            per_cell = 1e9 / count / size**2
            wall[name].append((time.perf_counter() - began) * per_cell)
            cpu[name].append((time.thread_time() - began_cpu) * per_cell)
    return cpu, wall


def main(console: Console) -> None:
    """Print the table."""
    table = Table(title=f"Poisson factorization, α = {ALPHA}: ns a cell a sweep")
    for column in (
        "table", "K", "counts", "CPU, 1 thread", "plain / ours", "wall, 1", "wall, 2", "1 / 2",
    ):  # fmt: skip
        table.add_column(column, justify="right")
    with ThreadPoolExecutor(1) as pool:
        for size, components in SIZES:
            cpu, wall = measure(size, components, pool)
            plain = "published, plain"
            rows = [plain, *(name for name in cpu if isinstance(name, tuple) and name[1] == 1)]
            for name in rows:
                method = name if name == plain else name[0]
                one = [f"{size} x {size}", f"{components}", method, f"{np.median(cpu[name]):.0f}"]
                ratio = np.median(np.divide(cpu[plain], cpu[name]))
                one += [f"{ratio:.2f}", f"{np.median(wall[name]):.0f}"]
                if name != plain:
                    two = wall[method, 2]
                    one += [f"{np.median(two):.0f}", f"{np.median(np.divide(wall[name], two)):.2f}"]
                table.add_row(*one)
    console.print(table)
