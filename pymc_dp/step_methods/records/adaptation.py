"""Tuning of random walks during warm-up."""

from __future__ import annotations

import numpy as np
from pymc.step_methods.state import DataClassState, WithSamplingState, dataclass_state

from pymc_dp.step_methods.base import DPStep, DPStepState

_TARGET = 0.44  # of moves along one direction (Gelman, Roberts & Gilks 1996)
_MOVES_EACH, _MAX_MOVES = 6, 12
_FIRST_WINDOW = 50
_MAX_PARAMETERS = 100  # with p parameters, all their axes take p^2 numbers
_MANY_MOVES = 8  # moves of one axis between two changes
_SHORT = 0.5  # steps this short, in units of the draws' spread, hardly help


@dataclass_state
class WalkState(DataClassState):
    """The state of a `WalkAdaptation`."""

    axes: np.ndarray
    scales: np.ndarray
    moves: int
    turn: int
    tried: np.ndarray
    draws: list[np.ndarray]
    window: int


class WalkAdaptation(WithSamplingState):
    """Axes and step sizes of random-walk moves along one direction at a time.

    The axes are the coordinates, which suit parameters of very different scales, and the principal
    axes of the draws, which suit correlated parameters and are computed anew after windows of
    doubling length. The step size of an axis follows its acceptance rate. Where the steps are short
    beside the spread of the draws, other updates move the parameters, and few moves are made. More
    than 100 parameters move along their coordinates only; `axes` then has no columns.

    Parameters
    ----------
    size : int
        Number of parameters.
    by_entry : bool
        Whether they move along their coordinates only.
    """

    _state_class = WalkState

    def __init__(self, size: int, by_entry: bool = False):
        self._is_large = by_entry or size > _MAX_PARAMETERS
        if self._is_large:
            self.axes = np.zeros((size, 0))
        else:
            self.axes = np.hstack([np.eye(size)] * (2 if size > 1 else 1))
        self.scales = np.full(self.axes.shape[1] or size, 0.5)
        self.moves = min(_MOVES_EACH * size, _MAX_MOVES)
        self.turn = 0
        self.tried = np.zeros(self.scales.size)
        self.draws: list[np.ndarray] = []
        self.window = _FIRST_WINDOW

    def update(self, theta: np.ndarray, tried: np.ndarray, taken: np.ndarray) -> None:
        """Learn from one draw or rows of them, and the moves tried and taken along each axis."""
        if not theta.size:
            return
        rate = taken / np.maximum(tried, 1)
        self.tried += tried
        gain = np.where(tried > 0, 3.0 / np.sqrt(1.0 + self.tried / 10.0), 0.0)
        # A chain far from the bulk of the posterior takes, or refuses, nearly all of many moves.
        gain[(tried >= _MANY_MOVES) & (np.abs(rate - 0.5) > 0.4)] = 3.0
        self.scales *= np.exp(np.clip(gain * (rate - _TARGET), -1.0, 1.0))
        if self._is_large:
            return
        self.draws += [*np.atleast_2d(theta)]
        if len(self.draws) >= self.window:
            self._learn(np.array(self.draws))
            self.draws, self.window = [], 2 * self.window

    def _learn(self, draws: np.ndarray) -> None:
        """Take the principal axes, and the number of moves, from the draws of a window."""
        size = draws.shape[1]
        covariance = np.atleast_2d(np.cov(draws.T))
        sd = np.sqrt(np.diag(covariance))
        if not np.all(np.isfinite(covariance)) or np.any(sd <= 0):
            return
        lengths = self.scales * np.linalg.norm(self.axes / sd[:, None], axis=0)
        each = _MOVES_EACH if lengths.max() > _SHORT else 1
        self.moves = min(each * size, _MAX_MOVES)
        if size == 1:
            return
        variances, directions = np.linalg.eigh(covariance / np.outer(sd, sd))
        principal = sd[:, None] * directions * np.sqrt(np.maximum(variances, 1e-10))
        self.axes = np.hstack([self.axes[:, :size], principal])
        # Steps keep their length, in units of the draws' spread.
        self.scales[size:] = np.clip(np.exp(np.mean(np.log(lengths[size:]))), 1e-3, 3.0)
        self.tried[size:] = 0.0


@dataclass_state
class WalkingState(DPStepState):
    """The state of the random walks of a step."""

    tune: bool
    walks: list[WalkState]


class WalkingStep(DPStep):
    """A step with random walks, `_walks`; `_reset` makes new ones."""

    _state_class = WalkingState
    _walks: list[WalkAdaptation]
    tune = True

    def _reset(self) -> None:
        raise NotImplementedError

    @property
    def walks(self) -> list[WalkState]:
        """The state of each random walk."""
        return [walk.sampling_state for walk in self._walks]

    @walks.setter
    def walks(self, states: list[WalkState]) -> None:
        for walk, state in zip(self._walks, states, strict=True):
            walk.sampling_state = state

    def setup_chain(self, rng, tune, draws):
        """Forget the last chain."""
        super().setup_chain(rng, tune, draws)
        self.tune = tune > 0
        self._reset()
