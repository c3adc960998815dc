"""Chains of compiled kernels: run in threads, and returned as PyMC returns its own."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from pymc.stats.convergence import log_warnings, run_convergence_checks
from pymc.util import get_random_generator
from pytensor.tensor.variable import TensorVariable
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from xarray import DataTree

from pymc_dp.graphs.draws import result
from pymc_dp.ladder.collapse import dropped_deterministics
from pymc_dp.reading.model import Reading
from pymc_dp.step_methods.base import point_function

# The arguments of `pm.sample` that chains of compiled kernels take.
ARGUMENTS = frozenset(
    {
        "draws",
        "tune",
        "chains",
        "cores",
        "random_seed",
        "progressbar",
        "quiet",
        "compute_convergence_checks",
    }
)


def run_chains(
    begin: Callable[[np.random.Generator], Any],
    advance: Callable[[np.random.Generator, Any, int], tuple[Any, np.ndarray]],
    *,
    draws: int = 1000,
    chains: int | None = None,
    cores: int | None = None,
    random_seed=None,
    progressbar: bool = True,
    quiet: bool = False,
) -> tuple[np.ndarray, float]:
    """Run chains side by side, in threads.

    Parameters
    ----------
    begin : callable
        ``(rng) -> state``, tuned.
    advance : callable
        ``(rng, state, draws) -> state, rows``: a row for each draw.

    Returns
    -------
    array of shape (chains, draws, width), float
        The draws, and the seconds that they took, tuning included.
    """
    cores = cores or min(4, _available_cores())
    chains = chains or 4  # they are cheap, and four make the diagnostics robust
    rngs = get_random_generator(random_seed).spawn(chains)
    began = time.perf_counter()
    with Progress(
        TextColumn("Chain {task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} draws"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        disable=not progressbar or quiet,
    ) as progress:
        tasks = [progress.add_task(str(c), total=draws) for c in range(chains)]

        def run(c: int) -> np.ndarray:
            state = begin(rngs[c])
            chunk = max(draws // 20, 1)
            parts = []
            for first in range(0, draws, chunk):
                state, rows = advance(rngs[c], state, min(chunk, draws - first))
                parts.append(rows)
                progress.advance(tasks[c], len(rows))
            return np.concatenate(parts)

        with ThreadPoolExecutor(max_workers=cores) as pool:
            found = np.stack(list(pool.map(run, range(chains))))
    return found, time.perf_counter() - began


def _available_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def as_tree(
    reading: Reading,
    posterior: dict[str, np.ndarray],
    stats: dict[str, np.ndarray],
    released: Sequence[TensorVariable],
    attributes: dict[str, Any],
    *,
    checks: bool,
) -> DataTree:
    """Return draws as PyMC does: with the observed values, deterministics and convergence checks.

    Parameters
    ----------
    posterior : dict
        Draws by name, of shape (chains, draws, ...).
    stats : dict
        Statistics of the sampler by name.
    released : sequence of TensorVariable
        The releases.
    attributes : dict
        Attributes of the posterior.
    """
    model = reading.model
    observed = {rv.name: point_function(model, model.rvs_to_values[rv])[0]() for rv in released}
    dropped = dropped_deterministics(reading)
    deterministics = [d for d in model.deterministics if d not in dropped]
    tree = result(model, posterior, stats, observed, attributes, deterministics)
    if checks:
        log_warnings(run_convergence_checks(tree, model))
    return tree
