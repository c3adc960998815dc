"""Functions of many values at a time, with draws of their own for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.shape_utils import change_dist_size
from pymc.pytensorf import reseed_rngs
from pytensor.graph.replace import vectorize_graph
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.draws import compile_draws, python_is_meant
from pymc_dp.graphs.values import PLAIN_MODE, is_random


def many(variable: TensorVariable) -> TensorVariable:
    """Return a variable for many values of another, along a first axis."""
    return pt.TensorType(variable.dtype, (None, *variable.type.shape))()


class Vectorized:
    """The function of many values of `inputs`, along a first axis that `outputs` then have, too."""

    def __init__(self, inputs: Sequence[TensorVariable], outputs: Sequence[TensorVariable]):
        self._inputs, self._outputs = inputs, outputs
        self._of_all: tuple[Callable, list] | None = None
        self._of_one: tuple[Callable, list] | None = None
        with suppress(NotImplementedError, ValueError):
            self._of_all = self._compiled()

    def _compiled(self) -> tuple[Callable, list]:
        """Return the function of all values at once, with its generators."""
        count, replaced = pt.lscalar(), {v: many(v) for v in self._inputs}
        arguments = [count, *replaced.values()]
        for rv in filter(is_random, ancestors(self._outputs, blockers=self._inputs)):
            varies = any(is_random(v) or v in replaced for v in ancestors(rv.owner.inputs))
            if rv not in replaced and not varies:  # it would be drawn once for all
                replaced[rv] = change_dist_size(rv, (count,), expand=True)
        pairs = zip(self._outputs, vectorize_graph(self._outputs, replaced), strict=True)
        outputs = [
            new if new.ndim > v.ndim else pt.broadcast_to(new, (count, *new.shape))
            for v, new in pairs
        ]
        return compile_draws(arguments, outputs, mode=PLAIN_MODE)

    def __call__(self, count: int, rows, rng: np.random.Generator | None = None) -> list:
        """Return an array for each output; values one by one where their shapes differ."""
        if self._of_all is not None:
            with suppress(ValueError):  # shapes that are not known before do not broadcast
                return _seeded(self._of_all, rng)(count, *rows)
            self._of_all = None
        self._of_one = self._of_one or compile_draws(self._inputs, self._outputs)
        function = _seeded(self._of_one, rng)
        with python_is_meant():
            found = [function(*(row[k] for row in rows)) for k in range(count)]
        each = zip(*found, strict=True)
        return [np.stack(x) if len({*map(np.shape, x)}) == 1 else x for x in each]


def _seeded(compiled: tuple[Callable, list], rng: np.random.Generator | None) -> Callable:
    function, generators = compiled
    if rng is not None:
        reseed_rngs(generators, int(rng.integers(2**63)))
    return function
