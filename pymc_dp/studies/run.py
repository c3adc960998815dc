"""The replicates of a study: seeds, batches, joblib, checkpoints, the result."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache, partial
from importlib.metadata import version
from threading import Lock
from typing import Any

import cloudpickle
import numpy as np
import pymc as pm
import xarray as xr
from joblib import Parallel, delayed
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.draws import entry_labels
from pymc_dp.laws.integrated import all_releases
from pymc_dp.routes import routes
from pymc_dp.studies.checkpoint import Batch, Checkpoint
from pymc_dp.studies.engines import (
    Compiled,
    GivenSimulator,
    ModelSimulator,
    compiled,
    model_sampler,
    parameters,
    with_anything_released,
)
from pymc_dp.studies.fingerprint import object_fingerprint, study_fingerprint, without_addresses
from pymc_dp.studies.settings import Cell, Settings, StudyPlan
from pymc_dp.studies.summaries import FIELDS, summarize

_log = logging.getLogger("pymc.dp")

# Variables and dims of the result, which no axis of the grid may be called.
_MORE = "coverage coverage_se length length_se bias bias_se rmse posterior_sd failures ks ks_pvalue"
RESERVED = {*FIELDS, *_MORE.split(), "replicate", "parameter", "quantity", "seed", "error"}
_QUIET = ("pymc", "pymc.dp", "nutpie")
_COMPILATION = 3.0  # seconds that dp.sample takes for the model of a replicate


class Replicates:
    """The replicates of one cell of the grid."""

    def __init__(self, plan: StudyPlan, cell: Cell):
        settings = plan.settings
        model = built(plan.build, cell)
        truth = true_values(plan, cell)
        self.fingerprint = study_fingerprint(model, cell, truth, plan.simulate)
        names = parameters(model, settings.var_names)
        self._settings = settings
        self.reason, kernel = "", None
        if settings.use_compiled is not False and not settings.sampler:
            demanded = settings.use_compiled or settings.thin or settings.min_ess
            try:
                kernel = compiled(model, names)
                if not demanded:
                    self._check_speed(model, kernel)
            except NotImplementedError as error:
                if demanded:
                    raise
                self.reason, kernel = str(error), None
        self._simulate = (
            ModelSimulator(model, names, truth, kernel)
            if plan.simulate is None
            else GivenSimulator(model, names, truth, plan.simulate, cell)
        )
        self._sample = (kernel.sampler if kernel else partial(model_sampler, model))(
            names, settings
        )
        self.labels = entry_labels(self._simulate.shapes)

    def _check_speed(self, model: pm.Model, kernel: Compiled) -> None:
        """Refuse a kernel that is slower than `dp.sample`, compilation included."""
        size = self._settings.draws * self._settings.chains
        if size / kernel.rate < _COMPILATION:
            return
        table = routes(with_anything_released(model))
        plans = [(plan.rate, route) for route, plan in table if not isinstance(plan, Declined)]
        rate, best = max(plans, key=lambda entry: entry[0], default=(0.0, None))
        if best is not None and size / kernel.rate > size / rate + _COMPILATION:
            raise NotImplementedError(
                f"dp.sample has a faster route, {best.name}; compiled=True takes the kernel anyway"
            )

    def draws(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Simulate and sample; returns the true values and (chains, draws, parameters)."""
        truth, released = self._simulate(rng)
        return truth, self._sample(released, rng)

    def run(self, rng: np.random.Generator) -> np.ndarray:
        """Summarize one replicate: a row of `FIELDS` for each parameter."""
        truth, draws = self.draws(rng)
        wrong = ~np.isfinite(draws).all(axis=(0, 1))
        if wrong.any():
            raise FloatingPointError(f"draws of {self.labels[np.argmax(wrong)]!r} are not finite")
        return summarize(draws, truth, self._settings.prob, self._settings.interval, rng)


def true_values(plan: StudyPlan, cell: Cell) -> Mapping[str, Any]:
    """Return the true values of a cell."""
    return (plan.truth(dict(cell)) if callable(plan.truth) else plan.truth) or {}


def built(build: Callable[..., pm.Model], cell: Cell) -> pm.Model:
    """Build the model of a cell, and check it."""
    model = build(**cell)
    if not isinstance(model, pm.Model):
        raise TypeError(f"build must return a pm.Model, and returned {model!r}")
    release_rvs = all_releases(model)
    if not release_rvs:
        raise ValueError("build: the model has no private release: declare a PrivateObservation")
    for release in release_rvs:
        if release in model.observed_RVs:
            raise ValueError(
                f"build: the release {release.name!r} has an observed value, and a study simulates "
                f"it: leave observed= out"
            )
    return model


class _Quiet:
    """Silences the loggers of samplers; several threads may enter it together."""

    def __init__(self) -> None:
        self._lock, self._inside, self._levels = Lock(), 0, [0] * len(_QUIET)

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                self._levels = [logging.getLogger(name).level for name in _QUIET]
                for name in _QUIET:
                    logging.getLogger(name).setLevel(logging.CRITICAL)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                for name, level in zip(_QUIET, self._levels, strict=True):
                    logging.getLogger(name).setLevel(level)


_quiet = _Quiet()


# One process works on few cells at a time, and a cell's model may take a minute to compile.
@lru_cache(maxsize=2)
def _replicates(packed: bytes, cell: tuple[tuple[str, Any], ...], expected: str) -> Replicates:
    # The pickle lacks the state of the user's modules, which `expected` tells apart in the cache.
    return Replicates(cloudpickle.loads(packed), dict(cell))


def run_batch(
    packed: bytes,
    number: int,
    cell: tuple[tuple[str, Any], ...],
    expected: str,
    start: int,
    seeds: np.ndarray,
) -> tuple[Batch, str]:
    """Run a batch of replicates of a cell, and record failures; also return why no kernel is used.

    `expected` is the fingerprint of the cell in the process that began the study.
    """
    stop = start + len(seeds)
    with _quiet:
        try:
            replicates = _replicates(packed, cell, expected)
        except Exception as error:
            rows = np.empty((len(seeds), 0, len(FIELDS)))
            return Batch(number, start, stop, rows, [_said(error)] * len(seeds), [], ""), ""
        if replicates.fingerprint != expected:
            raise ValueError(
                f"a worker made another model, truth or simulation of {dict(cell)} than the "
                f"process that began the study: build, truth and simulate must not depend on what "
                f"a session changed in a module (write it in them), nor draw random numbers"
            )
        rows = np.full((len(seeds), len(replicates.labels), len(FIELDS)), np.nan)
        errors = [""] * len(seeds)
        rng = np.random.default_rng()
        for k, seed in enumerate(seeds.tolist()):
            try:
                rows[k] = replicates.run(reseeded(rng, seed))
            except Exception as error:
                errors[k] = _said(error)
    batch = Batch(number, start, stop, rows, errors, replicates.labels, replicates.fingerprint)
    return batch, replicates.reason


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def read_grid(grid: Mapping[str, Sequence[Any]] | None) -> list[Cell]:
    """Return all cells of a grid, the last axis fastest."""
    if grid is not None and not grid:
        raise ValueError("grid: it is empty; leave it out, or name arguments of build")
    grid = {} if grid is None else grid
    for name, values in grid.items():
        if name in RESERVED:
            raise ValueError(f"grid: {name!r} is a name in the result: rename build's argument")
        if isinstance(values, str) or len(values) == 0:
            raise ValueError(f"grid: {name!r} has no values: write a list, {name}=[...]")
        wrong = [v for v in values if not isinstance(v, int | float | str | np.number)]
        if wrong:
            raise TypeError(
                f"grid: {name!r} holds {wrong[0]!r}; write numbers or strings, from which "
                f"build makes what it needs"
            )
        if len(set(values)) < len(values):
            raise ValueError(f"grid: {name!r} holds a value twice")
    plain = {n: [v.item() if isinstance(v, np.number) else v for v in g] for n, g in grid.items()}
    return [dict(zip(plain, cell, strict=True)) for cell in itertools.product(*plain.values())]


def seeds(entropy: int, cell: int, count: int) -> np.ndarray:
    """Return the seeds of a cell's replicates; a larger count begins with the same seeds."""
    state = np.random.SeedSequence(entropy, spawn_key=(cell,)).generate_state(count, np.uint64)
    return (state >> np.uint64(1)).astype(np.int64)


def reseeded(rng: np.random.Generator, seed: int) -> np.random.Generator:
    """Put a generator of NumPy's default kind into the state of ``np.random.default_rng(seed)``.

    Compiled code takes much longer to begin with a new generator than to go on with a known one.
    """
    rng.bit_generator.state = np.random.PCG64(seed).state
    return rng


def _packed(plan: StudyPlan) -> bytes:
    try:
        return cloudpickle.dumps(plan)
    except Exception as error:
        parts = [getattr(plan, role) for role in ("build", "truth", "simulate")]
        parts.append(plan.settings.sampler)
        for role, argument in zip(("build", "truth", "simulate", "sampler"), parts, strict=True):
            try:
                cloudpickle.dumps(argument)
            except Exception:
                raise ValueError(
                    f"{role}= cannot be sent to other processes ({_said(error)}): write a function "
                    f"that makes what it needs itself, and holds no open file, lock or generator"
                ) from None
        raise


def run_study(
    plan: StudyPlan,
    grid: Mapping[str, Sequence[Any]] | None,
    *,
    replicates: int,
    random_seed: int | None,
    path: str | os.PathLike[str] | None,
    n_jobs: int | None,
    batch: int | None,
    progressbar: bool,
) -> xr.Dataset:
    """Run all replicates, or those that the checkpoint lacks; return them as a Dataset."""
    cells = read_grid(grid)
    if replicates < 1:
        raise ValueError(f"replicates={replicates}: at least 1")
    if path is not None and random_seed is None:
        raise ValueError("path= needs random_seed=, so that a study goes on with the same numbers")
    if random_seed is not None and (
        not isinstance(random_seed, int | np.integer) or random_seed < 0
    ):
        raise ValueError(f"random_seed={random_seed!r}: a whole number, 0 or more")
    if batch is not None and batch < 1:
        raise ValueError(f"batch={batch!r}: replicates of a task, at least 1")
    entropy = int(np.random.SeedSequence(random_seed).entropy)  # type: ignore[arg-type]
    packed = _packed(plan)

    @cache
    def expected(c: int) -> str:
        """Return the fingerprint of a cell, empty if it cannot be built: each replicate fails."""
        try:
            return _fingerprint(plan, cells[c])
        except Exception:
            return ""

    probe = next((c for c in range(len(cells)) if expected(c)), 0)
    if _fingerprint(plan, cells[probe]) != expected(probe):  # raises if no cell can be built
        raise ValueError(
            f"build (or truth, or simulate for the same generator) returned something else when "
            f"called a second time with {cells[probe]}: it must not draw random numbers of its own "
            f"or change anything; data belong into simulate="
        )
    done: list[Batch] = []
    store = None
    if path is not None:
        manifest = {
            "grid": [list(cell.items()) for cell in cells],
            "random_seed": entropy,
            "settings": {k: without_addresses(repr(v)) for k, v in vars(plan.settings).items()},
            "sampler_digest": object_fingerprint(plan.settings.sampler),
            "pymc_dp": version("pymc_dp"),
        }
        store = Checkpoint(path, manifest)
        done = store.batches()
        for number in sorted({b.cell for b in done if b.fingerprint != expected(b.cell)}):
            raise ValueError(
                f"path={str(path)!r} holds another study: build, truth or simulate was changed "
                f"since its replicates of {cells[number] or 'the study'} ran. Name a new folder"
            )
    numbers = [seeds(entropy, c, replicates) for c in range(len(cells))]
    tasks = _tasks(done, len(cells), replicates, batch or max(1, replicates // 20))
    if not done:
        with _quiet:  # wrong arguments raise here
            _replicates(packed, tuple(cells[probe].items()), expected(probe))
    calls = (
        delayed(run_batch)(packed, c, tuple(cells[c].items()), expected(c), a, numbers[c][a:b])
        for c, a, b in tasks
    )
    columns = (
        TextColumn("Replicates"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    reasons: set[str] = set()
    with Progress(*columns, disable=not progressbar) as progress:
        total = len(cells) * replicates
        bar = progress.add_task("", total=total, completed=total - sum(b - a for _, a, b in tasks))
        for finished, reason in Parallel(
            n_jobs=n_jobs, return_as="generator_unordered", batch_size=1
        )(calls):
            _check_labels(finished, done, cells)
            # A cell that could not be built is not stored, so that the next call tries it again.
            if store is not None and finished.labels:
                store.write(finished)
            if reason and reason not in reasons:
                _log.info("dp.sample for every replicate: %s", reason)
            reasons.add(reason)
            done.append(finished)
            progress.advance(bar, len(finished.errors))
    return _joined(grid, cells, replicates, numbers, done, plan.settings, entropy)


def _fingerprint(plan: StudyPlan, cell: Cell) -> str:
    with _quiet:
        model = built(plan.build, cell)
        return study_fingerprint(model, cell, true_values(plan, cell), plan.simulate)


def _check_labels(batch: Batch, done: Sequence[Batch], cells: list[Cell]) -> None:
    labels = next((b.labels for b in done if b.labels), batch.labels)
    if batch.labels and batch.labels != labels:
        raise ValueError(
            f"build: the parameters of {cells[batch.cell]} are {', '.join(batch.labels)}, those of "
            f"other cells {', '.join(labels)}: name common ones in var_names="
        )


def _tasks(
    done: Sequence[Batch], cells: int, replicates: int, batch: int
) -> list[tuple[int, int, int]]:
    """Return (cell, start, stop) of the batches that are left to run."""
    left = np.ones((cells, replicates), bool)
    for finished in done:
        left[finished.cell, finished.start : finished.stop] = False
    tasks = []
    for c in range(cells):
        edges = np.flatnonzero(np.diff(np.concatenate([[False], left[c], [False]]).astype(int)))
        for a, b in edges.reshape(-1, 2).tolist():
            tasks += [(c, first, min(first + batch, b)) for first in range(a, b, batch)]
    return tasks


def _joined(
    grid: Mapping[str, Sequence[Any]] | None,
    cells: list[Cell],
    replicates: int,
    numbers: list[np.ndarray],
    done: Sequence[Batch],
    settings: Settings,
    entropy: int,
) -> xr.Dataset:
    labels = next((b.labels for b in done if b.labels), [])
    rows = np.full((len(cells), replicates, len(labels), len(FIELDS)), np.nan)
    errors = np.full((len(cells), replicates), "", dtype=object)
    for batch in done:
        stop = min(batch.stop, replicates)
        count = stop - batch.start
        if count <= 0:
            continue
        if batch.labels:
            rows[batch.cell, batch.start : stop] = batch.rows[:count]
        errors[batch.cell, batch.start : stop] = batch.errors[:count]
    failed = int((errors != "").sum())
    if failed:
        c, k = np.argwhere(errors != "")[0]
        _log.warning(
            "%d of %d replicates failed; the first with seed %d of %s: %s",
            failed, errors.size, numbers[c][k], cells[c] or "the study", errors[c, k],
        )  # fmt: skip
    axes = dict(grid or {})
    shape = tuple(len(values) for values in axes.values())
    dims = (*axes, "replicate")
    data = {
        field: ((*dims, "parameter"), rows[..., j].reshape(*shape, replicates, len(labels)))
        for j, field in enumerate(FIELDS)
    }
    return xr.Dataset(
        {
            **data,
            "seed": (dims, np.stack(numbers).reshape(*shape, replicates)),
            "error": (dims, errors.astype(str).reshape(*shape, replicates)),
        },
        coords={**{k: list(v) for k, v in axes.items()}, "parameter": labels},
        attrs={
            "prob": settings.prob,
            "interval": settings.interval,
            "random_seed": str(entropy),  # may be too large for a file format's integers
            **settings.size,
            "inference_library": "pymc_dp",
            "inference_library_version": version("pymc_dp"),
        },
    )
