"""Chains of compiled kernels: run in threads, and returned as PyMC returns its own."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, CancelledError, ThreadPoolExecutor, wait
from typing import Any, Protocol

import numpy as np
import pymc as pm
from pymc.stats.convergence import log_warnings, run_convergence_checks
from pymc.util import get_random_generator
from pytensor.tensor.variable import TensorVariable
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from xarray import DataTree

from pymc_dp.graphs.declined import Declined, notice
from pymc_dp.graphs.draws import result
from pymc_dp.graphs.interrupts import Pieces
from pymc_dp.graphs.stages import DRAWING, stage
from pymc_dp.graphs.values import public_data
from pymc_dp.ladder.collapse import dropped_deterministics
from pymc_dp.mechanisms.base import has_continuous_rates
from pymc_dp.reading.model import Reading, releases
from pymc_dp.routes.interrupted import longest
from pymc_dp.step_methods.base import observed_values

_log = logging.getLogger("pymc.dp")

_WAIT = 0.2  # seconds


def by_name(rows: np.ndarray, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Return draws by name, of rows with the entries of variables one after the other."""
    ends = np.cumsum([math.prod(shape) for shape in shapes.values()])
    parts = np.split(rows, ends[:-1], axis=-1)
    pairs = zip(shapes.items(), parts, strict=True)
    return {name: part.reshape(*rows.shape[:-1], *shape) for (name, shape), part in pairs}


class Chain(Protocol):
    """A compiled chain for one model and what was released, of all its variables."""

    @property
    def sweeps(self) -> int:
        """The number of sweeps to a recorded draw, where its states have none of their own."""

    def begin(self, rng: np.random.Generator, tune: int, *, pieces: Pieces) -> Any:
        """Return a state, after the draws or steps that tune it, which are made in pieces."""

    def advance(self, rng: np.random.Generator, state: Any, draws: int) -> tuple[Any, np.ndarray]:
        """Return the next state, and a row for each draw: the same ones in whatever pieces."""

    def posterior(self, rows: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return draws by name, of parameters and of what else the result has."""


def notice_starts(model: pm.Model) -> None:
    """Say that what is made of a model depends on the data from which its variables start."""
    notice(*public_data([i for rv in model.free_RVs for i in rv.owner.inputs]))


def check_releases(model: pm.Model, released: Sequence[TensorVariable]) -> None:
    """Refuse what chains do not cover: other data, releases without a value, some mechanisms."""
    others = [rv for rv in (*model.observed_RVs, *model.potentials) if rv not in released]
    if others:
        raise Declined(f"it does not cover {others[0].name!r}")
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
    """Run chains side by side, in threads.

    Parameters
    ----------
    reading, route, chain : a model, the name of the route, the chain that covers the model.
    unit : what to call the chain's sweeps, to say how many are made.

    Notes
    -----
    The other parameters are those of `pm.sample`. Interrupted, it returns the draws so far.
    """
    cores = cores or min(4, available_cores())
    chains = chains or 4  # they are cheap, and four make the diagnostics robust
    rngs = get_random_generator(random_seed).spawn(chains)
    stage("" if progressbar else DRAWING)
    began = time.perf_counter()
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
        pieces = Pieces()

        sweeps = [chain.sweeps] * chains

        def draw(c: int) -> None:
            state = chain.begin(rngs[c], tune, pieces=pieces)
            sweeps[c] = getattr(state, "sweeps", chain.sweeps)
            progress.update(tasks[c], description=f"{c}, drawing")
            for piece in pieces.of(draws):
                state, rows = chain.advance(rngs[c], state, piece.stop - piece.start)
                parts[c].append(rows)
                progress.advance(tasks[c], len(rows))

        futures = []
        interrupted = False
        with ThreadPoolExecutor(max_workers=cores) as pool:
            try:
                futures += [pool.submit(draw, c) for c in range(chains)]
                # In short waits, which a signal ends everywhere.
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
    lengths = [sum(map(len, own)) for own in parts]
    kept, length = longest(lengths) if interrupted else (range(chains), draws)
    found = np.stack([np.concatenate(parts[c])[:length] for c in kept])
    seconds = time.perf_counter() - began
    if unit:
        made = " to ".join(f"{k}" for k in dict.fromkeys([min(sweeps), max(sweeps)]))
        _log.info("%s to a draw: %s; %.2f seconds", unit.capitalize(), made, seconds)
    rng = get_random_generator(random_seed).spawn(chains + 1)[-1]  # none of the chains'
    return as_tree(
        reading,
        chain.posterior(found, rng),
        np.reshape([sweeps[c] for c in kept], (-1, 1)),
        {"route": route, "sampling_time": seconds, "tuning_steps": tune},
        checks=compute_convergence_checks,
    )


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
    """Return draws as PyMC does: with the observed values, deterministics and convergence checks.

    Parameters
    ----------
    values : dict
        Draws by name, of shape (chains, draws, ...).
    sweeps : int, or array of shape (chains, 1)
        Those to a draw.
    attributes : dict
        Attributes of the posterior.
    """
    model = reading.model
    posterior = {rv.name: values[rv.name] for rv in model.free_RVs if rv.name in values} | values
    size = next(iter(posterior.values())).shape[:2]
    released = releases(model)
    values_of = observed_values(model, *released)({})
    observed = {rv.name: x for rv, x in zip(released, values_of, strict=True)}
    dropped = dropped_deterministics(reading)
    deterministics = [d for d in model.deterministics if d not in dropped]
    stats = {"sweeps": np.full(size, sweeps)}
    tree = result(model, posterior, stats, observed, attributes, deterministics)
    if checks:
        log_warnings(run_convergence_checks(tree, model))
    return tree
