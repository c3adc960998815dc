"""The density of releases, averaged over draws of what they are made of."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pymc as pm
from pymc.logprob.utils import ParameterValueError
from pymc.pytensorf import reseed_rngs
from pytensor.graph.replace import graph_replace, vectorize_graph
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.variable import TensorVariable
from scipy.special import logsumexp

from pymc_dp.graphs.draws import compile_draws
from pymc_dp.graphs.shapes import known_shape
from pymc_dp.graphs.values import PLAIN_MODE, is_random, nearest_rvs, plain_function
from pymc_dp.ladder.check.means import BLOCKS, Means
from pymc_dp.ladder.check.parts import find_parts
from pymc_dp.ladder.check.vectorized import Vectorized, many
from pymc_dp.laws.integrated import all_releases
from pymc_dp.mechanisms.release import release_rv

SIGMAS, ROUNDING = 5.0, 1e-6  # a difference of log densities that is none: errors, and beside them
SIMULATED = 24  # releases, in whose mean narrow noise is wide
_FIRST = 50  # draws of a block at first
_ENTRIES, _LARGEST = 4_000_000, 10_000_000  # records that are drawn at a time; that can be drawn
_PRECISE, _LEAST = 0.01, 20_000  # an error that is enough, with so many draws


class Releases:
    """The density of the releases of a model given some variables, over draws of all others.

    With `written`, that of values whose law was integrated out at once is of what was written.

    Attributes
    ----------
    rvs : list of TensorVariable
        The releases.
    given : list of TensorVariable
        The variables of these names, and the releases that others depend on.
    drawn : list of TensorVariable
        The random variables that the releases are computed from, given these.
    inputs : list of TensorVariable
        What the laws of the releases take.
    is_drawn : bool
        Whether there is something to draw.
    """

    def __init__(self, model: pm.Model, names: Sequence[str], *, written: bool):
        self.rvs = [rv for rv in all_releases(model) if rv in model.observed_RVs]
        self._published = [model.rvs_to_values[rv] for rv in self.rvs]
        self._theta = [model[name] for name in names]
        self._released = [_as_written(rv, model) if written else rv for rv in self.rvs]
        self.parameters = [
            [v for v in rv.owner.inputs if not isinstance(v.type, RandomType)]
            for rv in self._released
        ]
        self.inputs = list(dict.fromkeys(v for own in self.parameters for v in own))
        # A release may be an input of another, whose noise it scales say: its value is given.
        reached = set(ancestors(self.inputs))
        self._known = [k for k, rv in enumerate(self.rvs) if rv in reached]
        self.given = [*self._theta, *(self.rvs[k] for k in self._known)]
        self.drawn = [v for v in nearest_rvs(self.inputs) if v not in self.given]
        self.is_drawn = bool(self.drawn)
        random = filter(is_random, ancestors(self.inputs, blockers=self.given))
        self._size = sum(math.prod(n or 1 for n in known_shape(v)) for v in random)
        if self._size > _LARGEST:
            raise ValueError(
                f"{self._size:,} records are too many to be drawn again and again: check the model "
                f"with fewer"
            )
        self._parts: list[np.ndarray] = []
        self.by_release = self._density()
        if self.is_drawn:
            self._draw = Vectorized(self.given, self.drawn)
            self._inputs_of = Vectorized([*self.given, *self.drawn], self.inputs)
        else:
            self._fixed = plain_function(self.given, self.inputs)

    def _density(self) -> Callable:
        """Return the function of inputs and values that is the log densities of each release."""
        fresh, values = {v: v.type() for v in self.inputs}, [rv.type() for rv in self._released]
        logs = []
        for rv, value in zip(self._released, values, strict=True):
            own = rv.owner.clone_with_new_inputs([fresh.get(v, v) for v in rv.owner.inputs])
            logs.append(pm.logp(own.outputs[rv.index], value).ravel().astype("float64"))
        inputs = list(fresh.values())
        if self.is_drawn:
            batches = [many(v) for v in inputs]
            logs = vectorize_graph(logs, dict(zip(inputs, batches, strict=True)))
            inputs = batches
        return plain_function([*inputs, *values], logs)

    def observed(self) -> list[np.ndarray]:
        """Return the published values."""
        return plain_function([], self._published)()

    def simulated(self, points, rng: np.random.Generator) -> list[list[np.ndarray]]:
        """Return releases that are simulated at points in turn."""
        function, generators = compile_draws(self._theta, self._released, mode=PLAIN_MODE)
        reseed_rngs(generators, int(rng.integers(2**63)))
        return [function(*points[i % len(points)]) for i in range(SIMULATED)]

    def draw(self, rng: np.random.Generator, point, count: int) -> tuple[list, list]:
        """Return what the laws take, and what it is computed from, of many draws at a point."""
        rows = [np.broadcast_to(v, (count, *np.shape(v))) for v in point]
        drawn = self._draw(count, rows, rng)
        return self.inputs_of(rows, drawn), drawn

    def inputs_of(self, point: Sequence[Any], drawn: Sequence[Any]) -> list[np.ndarray]:
        """Return what the laws take, from values of `given` and of `drawn`.

        All arrays have a first axis for the draws. For releases of which something `is_drawn`.
        """
        return self._inputs_of(len(drawn[0]), [*point, *drawn])

    def logs(self, inputs: Sequence[np.ndarray], value: Sequence[np.ndarray]) -> np.ndarray:
        """Return the log densities of all entries, a row for each draw of the inputs."""
        with np.errstate(all="ignore"):
            return np.concatenate(self.by_release(*inputs, *value), axis=-1)

    def log_density(
        self, point, values, rng, seconds: float, expected: float | None = None
    ) -> tuple[float, float]:
        """Return the log of the mean density of values, and its standard error.

        All the time is taken where the mean differs from what is `expected`.
        """
        given = [[*point, *(value[k] for k in self._known)] for value in values]
        if not self.is_drawn:
            return self._exact(given, values), 0.0
        size = self._most(_FIRST)
        if not self._parts:
            self._parts = find_parts(self, given[0], values[0], rng, BLOCKS * size)
        means, began = Means(len(values), len(self._parts)), time.perf_counter()
        while True:
            round_began = time.perf_counter()
            for k, value in enumerate(values):
                if not k or self._known:
                    inputs, _ = self.draw(rng, given[k], BLOCKS * size)
                means.add(k, self._by_part(inputs, value))
            found, error = means.log()
            none = SIGMAS * error + ROUNDING  # a difference that is no difference
            if expected is not None and expected > found + none and len(values) == 1:
                # Records of this probability may not have been drawn, and may be what is lacking.
                rare = self._peaks(inputs, values[0]) + np.log(3.0 / means.draws)
                if expected <= found + np.logaddexp(0.0, rare - means.of_parts()[0]).max():
                    error = np.inf
            as_expected = expected is None or abs(found - expected) <= none
            enough = error < _PRECISE and means.draws >= _LEAST and as_expected
            now = time.perf_counter()
            if enough or now - began + (now - round_began) > seconds:
                return found, error
            size = self._most(2 * size)

    def _exact(self, given, values) -> float:
        """Return the log of the mean density of values where nothing is drawn."""
        pairs = zip(given, values, strict=True)
        try:
            logs = [self.logs(self._fixed(*point), value).sum() for point, value in pairs]
        except ParameterValueError:
            return -np.inf
        return float(logsumexp(logs) - np.log(len(logs)))

    def _by_part(self, inputs, value) -> np.ndarray:
        """Return the log densities of parts, a column for each."""
        logs = np.nan_to_num(self.logs(inputs, value), nan=-np.inf, neginf=-np.inf)
        return np.stack([logs[:, part].sum(axis=1) for part in self._parts], axis=1)

    def _peaks(self, inputs, value) -> np.ndarray:
        """Return the log density of each part where the statistic is what was released."""
        at = {v: x[:1] for v, x in zip(self.inputs, inputs, strict=True)}
        for (statistic, *_), z in zip(self.parameters, value, strict=True):
            if at[statistic].shape[1:] == np.shape(z):
                at[statistic] = np.asarray(z, dtype=at[statistic].dtype)[None]
        return self._by_part(list(at.values()), value)[0]

    def _most(self, size: int) -> int:
        """Return a number of draws of each block that memory has room for."""
        return max(1, min(size, _ENTRIES // (BLOCKS * self._size)))


def _as_written(release: TensorVariable, model: pm.Model) -> TensorVariable:
    """Return the release around what the user wrote, of the variables of this model.

    Copies of a model keep the tag, whose variables are those of the first.
    """
    if not hasattr(release.tag, "dp_written"):
        return release
    written = release_rv(*release.tag.dp_written)
    others = {v: model[v.name] for v in ancestors([written]) if v.name in model.named_vars}
    [own] = graph_replace([written], others, strict=False)
    return own
