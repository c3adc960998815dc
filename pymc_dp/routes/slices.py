"""Slice sampling of the parameters and proposals for groups, on the marginal: one compiled loop.

It moves the coordinates of `routes.coordinates`, in which latent Normal variables are
nearly independent of the parameters and of each other; `kernels.slices` has the moves.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pymc.initial_point import make_initial_point_fn
from xarray import DataTree

from pymc_dp.graphs.compiled import Filling
from pymc_dp.graphs.declined import once
from pymc_dp.graphs.draws import without_remarks
from pymc_dp.graphs.interrupts import Pieces
from pymc_dp.graphs.shapes import lengths
from pymc_dp.graphs.stages import stage
from pymc_dp.kernels.pointers import call
from pymc_dp.kernels.slices import Mixed, Tuned, advance, fill_rows
from pymc_dp.ladder.collapse import collapsed, try_densities
from pymc_dp.reading.model import Reading
from pymc_dp.routes import ROUTES, Plan, Route
from pymc_dp.routes.chain import ARGUMENTS, by_name, run
from pymc_dp.routes.nuts import density_cost
from pymc_dp.routes.slice_layout import Places, layout
from pymc_dp.routes.starts import NotFinite
from pymc_dp.step_methods.base import in_a_row

_log = logging.getLogger("pymc.dp")

# Sweeps of the surrogate to a proposal: the more entries by inversion, the longer the exact density
# takes, and the more sweeps it is worth.
_MOST_INNER, _ENTRIES = 4, 4  # one more for so many entries
# Sweeps to a draw of a model without surrogates and with at most `_SHORT` entries.
_SWEEPS, _SHORT = 4, 1_000
_STARTS = 100  # points that are tried for a start
_CHECKED, _SHOWN = 20, 4  # points near the draws of the warm-up; entries of one in a message
_WINDOWS = 0.1, 0.2, 0.4, 0.7, 1.0  # shares of the warm-up at which the moves are tuned
_ALONE = 0.4  # share of the warm-up that runs on the surrogate alone, without its correction
_FEW = 0.4  # share of accepted proposals, below which they become shorter
_SHORTEST = 5  # sweeps for each parameter, in a window that tunes the moves
_CLEAR = 0.3  # share of the variance that a bend has to explain
_ROUNDING = 1e-6  # allowed relative error of a log density
_NARROWEST = 1e-6  # least standard deviation of draws


@dataclass
class State:
    """The state of a chain: the vector, tuned moves, sweeps of the surrogate to a proposal."""

    q: np.ndarray
    tuned: Tuned
    inner: int


class SliceChain:
    """The chain for one model; see `routes.chain.Chain`.

    Parameters
    ----------
    places : the layout of the model.
    names : names of the variables to return.
    sweeps : sweeps to a draw.
    """

    def __init__(self, places: Places, names: Sequence[str], sweeps: int = 1):
        self.layout, self.sweeps = places, sweeps
        self._lost: list[int] = []
        self._shapes = {name: lengths(places.model[name]) for name in names}
        q = pt.vector("q", shape=(places.size,), dtype="float64")
        graphs = places.model.replace_rvs_by_values([places.model[name] for name in names])
        self._lock = Lock()  # `_initial` has generators of its own, which threads must not share
        self._initial = make_initial_point_fn(model=places.model, return_transformed=True)
        density = Filling(q, *places.density(q))
        values = Filling(q, pt.zeros(()), in_a_row(places.replaced(q, graphs)))
        noise = correction = density  # placeholders, which are not called
        parts, kinds = [], []
        first = int(places.ends[-1]) + places.anew
        for release in places.mixed:
            noise_inputs = places.noise(q, release)
            size = math.prod(lengths(release))
            kinds.append(
                (
                    first,
                    size,
                    noise_inputs[-1].type.shape[-1] if noise_inputs[-1].type.ndim > 1 else 0,
                )
            )
            parts += noise_inputs
            first += size
        if parts:
            noise = Filling(q, pt.zeros(()), in_a_row(parts))
        if places.corrections:
            graphs = places.model.replace_rvs_by_values(places.corrections)
            correction = Filling(q, sum(places.replaced(q, graphs)), pt.zeros(places.size))
        self._fillings = density, noise, correction, values
        self._mixed = Mixed(*np.array(kinds, dtype=np.int64).reshape(-1, 3).T.copy())

        self._read_data()

    def _read_data(self) -> None:
        *self._functions, self._values = (filling.function for filling in self._fillings)
        self._density, _, self._correction = self._functions

    def renewed(self) -> SliceChain:
        """Return the chain for the data as they are now."""
        chain = copy(self)
        chain._lost = []
        chain._read_data()
        return chain

    def begin(self, rng: np.random.Generator, tune: int, *, pieces: Pieces) -> State:
        """Return a state, after the sweeps that tune it."""
        count, size = int(self.layout.ends[0]), self.layout.size
        straight = np.zeros((count, 3, count))
        tuned = Tuned(np.eye(count), straight, np.ones(count), np.zeros(size), np.ones(size))
        state, first, tune = State(self._start(rng), tuned, 0), 0, tune * self.sweeps
        most = min(_MOST_INNER, 1 + self.layout.inverted // _ENTRIES)
        for share in _WINDOWS:
            window = np.empty((int(share * tune) - first, size))
            adapt, accepted = 0.5 if first else 1.0, 0
            for piece in pieces.of(len(window)):
                accepted += self._run(rng, state, adapt, 1, window[piece])[0]
            if share < 1.0 and len(window) >= _SHORTEST * (count + 1):
                state.tuned = _tuned(window, count)
            if self.layout.inverted and share >= _ALONE:
                refused = state.inner and accepted < _FEW * len(window)
                state.inner = max(state.inner // 2, 1) if refused else state.inner or most
            first += len(window)
        self._check_finite(state)
        return state

    def _check_finite(self, state: State) -> None:
        """Raise `NotFinite` where the density has no value near the draws of the warm-up."""
        moved = np.arange(state.q.size) < self.layout.ends[-1]
        rng, tuned = np.random.default_rng(0), state.tuned
        for _ in range(_CHECKED):
            around = tuned.means + tuned.spreads * rng.standard_normal(state.q.size)
            # Means are 0 where no window was long enough to tune the moves.
            q = np.where(moved & (tuned.means != 0.0), around, state.q)
            if any(np.isnan(call(f, q, np.empty_like(q))) for f in self._densities()):
                raise NotFinite(f"its log density has no value at {q[moved][:_SHOWN]}, ...")

    def _densities(self) -> list[tuple[int, np.ndarray]]:
        """Return the log density, and its correction if there is a surrogate."""
        return [self._density, *([self._correction] if self.layout.corrections else [])]

    def advance(self, rng: np.random.Generator, state: State, draws: int):
        """Return the next state, and a row for each draw."""
        rows = np.empty((draws, self.layout.size))
        _, lost = self._run(rng, state, 0.0, self.sweeps, rows)
        self._lost.append(lost)
        out = np.empty((draws, sum(math.prod(shape) for shape in self._shapes.values())))
        fill_rows(self._values, rows, out)
        if np.isnan(out).any():
            raise ValueError(f"one of {', '.join(self._shapes)} is NaN at a draw")
        return state, out

    def _run(self, rng, state: State, adapt: float, thin: int, rows: np.ndarray) -> tuple[int, int]:
        moves = self.layout.ends, self.layout.anew, self._mixed, state.tuned
        return advance(rng, *self._functions, state.q, *moves, adapt, thin, state.inner, rows)

    def _start(self, rng: np.random.Generator) -> np.ndarray:
        with self._lock:
            point = self._initial(int(rng.integers(2**30)))
        center = np.concatenate([np.ravel(point[v.name]) for v in self.layout.values])
        moved = np.arange(center.size) < self.layout.ends[-1]
        for _ in range(_STARTS):
            q = center + moved * rng.uniform(-1.0, 1.0, size=center.size)
            if all(np.isfinite(call(f, q, np.empty_like(q))) for f in self._densities()):
                if self.layout.anew:
                    self._check_what_is_drawn_anew(q)
                return q
        raise NotFinite("no starting point with a finite log density was found near PyMC's own")

    def _check_what_is_drawn_anew(self, q: np.ndarray) -> None:
        """Check by two log densities that entries with exact draws are standard Normal."""
        first = int(self.layout.ends[-1])
        u = np.sin(np.arange(1.0, self.layout.anew + 1.0))
        ends = q.copy(), q.copy()
        for end, coordinates in zip(ends, (0.0 * u, u), strict=True):
            end[first : first + u.size] = coordinates
        before, after = (call(self._density, end, np.empty_like(end)) for end in ends)
        allowed = _ROUNDING * (1.0 + abs(before) + u @ u)
        if not abs(after - before + 0.5 * u @ u) <= allowed:  # true for NaN, too
            raise RuntimeError(
                "coordinates with exact draws are not standard Normal, which is a bug of pymc_dp: "
                "please report the model, and sample with nuts_sampler='pymc'"
            )

    def posterior(self, rows: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return draws by name; warn where the density by inversion missed its tolerance."""
        if lost := sum(self._lost[1:]):  # the first is that of the draw that is tried before
            names = ", ".join(repr(graph.name) for graph in self.layout.corrections)
            _log.warning(
                "The density by inversion (%s) missed its tolerance at %d of the proposed points, "
                "which were rejected: the posterior may be cut off there. Sample with "
                "rung='records'",
                names,
                lost,
            )
            del self._lost[1:]  # warn once
        return by_name(rows, self._shapes)


def _tuned(window: np.ndarray, count: int) -> Tuned:
    """Return moves that suit the covariance, and the bends, of the draws of a window."""
    window = window[len(window) // 3 :]
    means, spreads = window.mean(axis=0), np.maximum(window.std(axis=0), _NARROWEST)
    directions = np.diag(spreads[:count])  # a row each
    bends = np.zeros((count, 3, count))
    if count > 1:  # along uncorrelated directions, then along each parameter
        values, vectors = np.linalg.eigh(np.cov(window[:, :count], rowvar=False))
        along = vectors * np.sqrt(np.maximum(values, _NARROWEST**2))
        z = np.linalg.solve(along, (window[:, :count] - means[:count]).T).T
        bends = np.concatenate([[bend @ along.T for bend in _bends(z)], bends])
        directions = np.concatenate([along.T, directions])
    return Tuned(directions, bends, np.full(len(directions), 2.0), means, spreads)


def _bends(z: np.ndarray) -> np.ndarray:
    """Return how each column bends with each other, as a cubic; 0 where that explains little."""
    bends = np.zeros((z.shape[1], 3, z.shape[1]))
    for bend, c in zip(bends, z.T, strict=True):
        powers = np.stack([np.ones(len(z)), c, c**2, c**3], axis=1)
        linear = z - powers[:, :2] @ np.linalg.lstsq(powers[:, :2], z)[0]
        bent = np.linalg.lstsq(powers, linear)[0]
        residual = ((linear - powers @ bent) ** 2).mean(axis=0)
        clear = (c != z.T).any(axis=1) & (residual < (1.0 - _CLEAR) * (linear**2).mean(axis=0))
        bend[:, clear] = bent[1:, clear]
    return bends


def _plan(reading: Reading) -> Plan:
    places = layout(reading)
    sweeps = _SWEEPS if not places.corrections and places.size <= _SHORT else 1
    density = density_cost(collapsed(reading, "marginal").model)
    cost = {"slices": float(places.ends[0])} | {f"slices, {k}": x for k, x in density.items()}
    return Plan.costing(cost, partial(_sample, reading, sweeps), lambda: places.moved)


@once
def _chain(reading: Reading, sweeps: int) -> SliceChain:
    stage("Compiling")
    marginal = collapsed(reading, "marginal")
    try_densities(marginal)
    names = [rv.name for rv in marginal.model.free_RVs]
    with without_remarks():
        return SliceChain(layout(reading), names, sweeps)


def _sample(reading: Reading, sweeps: int, **kwargs: Any) -> DataTree:
    chain = _chain(reading, sweeps).renewed()
    return run(reading, "slices on the marginal", chain, "sweeps", **kwargs)


ROUTES.add(Route("slices on the marginal", "marginal", _plan, ARGUMENTS))
