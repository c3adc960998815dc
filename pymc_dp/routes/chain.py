"""Chains of compiled kernels, which run in threads; the result is that of `pm.sample`."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import (
    FIRST_EXCEPTION,
    CancelledError,
    Future,
    ThreadPoolExecutor,
    wait,
)
from contextvars import copy_context
from typing import Any, Protocol

import numpy as np
import pymc as pm
from pymc.stats.convergence import log_warnings, run_convergence_checks
from pymc.util import get_random_generator
from pytensor.tensor.variable import TensorVariable
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from xarray import DataTree

from pymc_dp.graphs.declined import Declined, notice
from pymc_dp.graphs.draws import draws_stay, result, try_deterministics
from pymc_dp.graphs.interrupts import Pieces
from pymc_dp.graphs.stages import DRAWING, stage
from pymc_dp.graphs.values import public_data
from pymc_dp.ladder.collapse import dropped_deterministics
from pymc_dp.mechanisms.base import has_continuous_rates
from pymc_dp.reading.model import Reading, releases
from pymc_dp.routes.convergence import have_mixed
from pymc_dp.routes.interrupted import longest
from pymc_dp.step_methods.base import observed_values

_log = logging.getLogger("pymc.dp")

CHAINS = 4  # chains are cheap, and with four the diagnostics are robust
_WAIT = 0.2  # seconds between looks for Ctrl-C
_LONGEST = 60.0  # CPU seconds in which a chain that mixes slowly is drawn on


def by_name(rows: np.ndarray, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Split rows, which have the entries of the variables side by side, into draws by name."""
    ends = np.cumsum([math.prod(shape) for shape in shapes.values()])
    parts = np.split(rows, ends[:-1], axis=-1)
    pairs = zip(shapes.items(), parts, strict=True)
    return {name: part.reshape(*rows.shape[:-1], *shape) for (name, shape), part in pairs}


class Chain(Protocol):
    """A compiled chain that moves all variables of one model, for its released values."""

    @property
    def sweeps(self) -> int:
        """The sweeps to a recorded draw, for chains whose states have no ``sweeps``."""

    def begin(self, rng: np.random.Generator, tune: int, *, pieces: Pieces) -> Any:
        """Return a state after the warm-up, which is made in pieces so that Ctrl-C stops it."""

    def advance(self, rng: np.random.Generator, state: Any, draws: int) -> tuple[Any, np.ndarray]:
        """Return the next state, and a row for each draw: they do not depend on the pieces."""

    def posterior(self, rows: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return draws by name, of all variables of the result."""


def notice_starts(model: pm.Model) -> None:
    """Note that what is being built depends on the data from which the variables start."""
    notice(*public_data([i for rv in model.free_RVs for i in rv.owner.inputs]))


def check_releases(model: pm.Model, released: Sequence[TensorVariable]) -> None:
    """Decline other data, potentials, releases without a value, and noise of other kinds."""
    uncovered = [rv for rv in (*model.observed_RVs, *model.potentials) if rv not in released]
    if uncovered:
        raise Declined(f"it does not cover {uncovered[0].name!r}")
    for rv in released:
        if rv not in model.observed_RVs:
            raise Declined("a release has no observed value")
        if not has_continuous_rates(mechanism := rv.owner.op.mechanism):
            raise Declined(f"it does not cover {type(mechanism).__name__} (in {rv.name!r})")


def run(
    reading: Reading,
    route: str,
    chain: Chain,
    unit: str = "",
    *,
    draws: int = 1000,
    tune: int = 1000,
    chains: int | None = None,
    cores: int | None = None,
    random_seed=None,
    progressbar: bool = True,
    quiet: bool = False,
    compute_convergence_checks: bool = True,
) -> DataTree:
    """Run chains side by side, in threads, until they have mixed.

    Where the draws do not stand for the posterior yet, every second one is kept and the sweeps to a
    draw are doubled, as long as that takes less than a minute of CPU time.

    Parameters
    ----------
    reading, route, chain : the model, the name of the route, and its chain for the model.
    unit : name of the chain's sweeps in the log; nothing is logged if it is empty.

    Notes
    -----
    The other parameters are those of `pm.sample`. Ctrl-C returns the draws so far.
    """
    cores = cores or min(4, available_cores())
    chains = chains or CHAINS
    rngs = get_random_generator(random_seed).spawn(chains)
    # What is computed after sampling is tried before, on one draw.
    trial_rng = np.random.default_rng(0)
    _, rows = chain.advance(trial_rng, chain.begin(trial_rng, 1, pieces=Pieces()), 1)
    trial = chain.posterior(rows[None], trial_rng)
    try_deterministics(trial, _computed_after(reading, trial))
    stage("" if progressbar else DRAWING)
    rng = get_random_generator(random_seed).spawn(chains + 1)[-1]  # not the generator of a chain
    names = [str(rv.name) for rv in reading.model.free_RVs]
    began, began_cpu = time.perf_counter(), time.process_time()
    with Progress(
        TextColumn("Chain {task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} draws"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        disable=not progressbar or quiet,
    ) as progress:
        tasks = [progress.add_task(f"{c}, tuning", total=draws) for c in range(chains)]

        parts: list[list[np.ndarray]] = [[] for _ in range(chains)]
        states: list[Any] = [None] * chains
        sweeps, thin, drawing = [chain.sweeps] * chains, 1, [0.0] * chains
        kept: Sequence[int] = range(chains)

        def draw(c: int, pieces: Pieces) -> None:
            if states[c] is None:
                states[c] = chain.begin(rngs[c], tune, pieces=pieces)
                sweeps[c] = getattr(states[c], "sweeps", chain.sweeps)
                progress.update(tasks[c], description=f"{c}, drawing")
            before = time.thread_time()
            for piece in pieces.of(draws - sum(map(len, parts[c]))):
                apart = thin * (piece.stop - piece.start)
                states[c], rows = chain.advance(rngs[c], states[c], apart)
                parts[c].append(rows[thin - 1 :: thin].copy())  # a view would hold all rows
                progress.update(tasks[c], completed=sum(map(len, parts[c])))
            drawing[c] += time.thread_time() - before

        while True:
            interrupted = _in_threads(draw, chains, cores)
            if interrupted:
                kept, length = longest([sum(map(len, rows)) for rows in parts])
                recorded = np.stack([np.concatenate(parts[c])[:length] for c in kept])
            else:
                recorded = np.stack([np.concatenate(rows) for rows in parts])
            values = chain.posterior(recorded, rng)
            # To draw as often again takes as long as all draws so far.
            spent = time.process_time() - began_cpu
            if interrupted or spent + sum(drawing) > _LONGEST or have_mixed(values, names):
                break
            # Every second draw is kept, and as many are drawn anew, as far from each other.
            parts[:], thin = [[rows[1::2]] for rows in recorded], 2 * thin
    seconds = time.perf_counter() - began
    sweeps = [thin * number for number in sweeps]
    if unit:
        made = " to ".join(f"{k}" for k in dict.fromkeys([min(sweeps), max(sweeps)]))
        _log.info("%s to a draw: %s; %.2f seconds", unit.capitalize(), made, seconds)
    return as_tree(
        reading,
        values,
        np.reshape([sweeps[c] for c in kept], (-1, 1)),
        {"route": route, "sampling_time": seconds, "tuning_steps": tune},
        checks=compute_convergence_checks,
    )


def _in_threads(work: Callable[[int, Pieces], None], chains: int, cores: int) -> bool:
    """Call ``work(chain, pieces)`` for each chain, side by side; return whether Ctrl-C came."""
    futures: list[Future] = []
    pieces, interrupted = Pieces(), False
    with ThreadPoolExecutor(max_workers=cores) as pool:
        try:
            # Threads see what this one has set, `quiet` say.
            futures += [pool.submit(copy_context().run, work, c, pieces) for c in range(chains)]
            # In short waits: on every system a signal is seen between them.
            while (state := wait(futures, _WAIT, FIRST_EXCEPTION)).not_done:
                if any(future.exception() for future in state.done):
                    break
        except KeyboardInterrupt:
            interrupted = True
        finally:
            pieces.stop.set()
    for future in futures:
        if (error := future.exception()) and not isinstance(error, CancelledError):
            raise error
    return interrupted


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# The arguments of `pm.sample` that chains of compiled kernels take.
ARGUMENTS = frozenset(run.__kwdefaults__ or ())


def as_tree(
    reading: Reading,
    values: dict[str, np.ndarray],
    sweeps: np.ndarray | int,
    attributes: dict[str, Any],
    *,
    checks: bool,
) -> DataTree:
    """Return the tree of `pm.sample`: draws, observed values, deterministics; check convergence.

    Parameters
    ----------
    values : dict
        Draws by name, of shape (chains, draws, ...).
    sweeps : int, or array of shape (chains, 1)
        Sweeps to a draw.
    attributes : dict
        Attributes of the posterior.
    """
    model = reading.model
    posterior = {rv.name: values[rv.name] for rv in model.free_RVs if rv.name in values} | values
    size = next(iter(posterior.values())).shape[:2]
    released = releases(model)
    values_of = observed_values(model, *released)({})
    observed = {rv.name: x for rv, x in zip(released, values_of, strict=True)}
    deterministics = _computed_after(reading, values)
    stats = {"sweeps": np.full(size, sweeps)}
    tree = result(model, posterior, stats, observed, attributes, deterministics)
    if checks:
        with draws_stay("PyMC's convergence checks"):
            log_warnings(run_convergence_checks(tree, model))
    return tree


def _computed_after(reading: Reading, values: Mapping[str, Any]) -> list[TensorVariable]:
    """Return the deterministics that a chain has not recorded, and that need no records."""
    left_out = {d.name for d in dropped_deterministics(reading)} | {*values}
    return [d for d in reading.model.deterministics if d.name not in left_out]
