"""A release of a function of a value, as a mechanism for the value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pytensor
import pytensor.scalar as ps
import pytensor.tensor as pt
from pytensor.graph.replace import vectorize_graph
from pytensor.graph.traversal import ancestors
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.shapes import known_shape, require_entry_each
from pymc_dp.graphs.substitution import simplified
from pymc_dp.graphs.values import (
    PLAIN_MODE,
    depends_on,
    keeps_values,
    known_value,
    nearest_rvs,
    read_cast,
)
from pymc_dp.laws.inverse import bending, edges, jumps, solved
from pymc_dp.mechanisms.arguments import as_float
from pymc_dp.mechanisms.base import Mechanism, has_continuous_rates
from pymc_dp.mechanisms.postprocessed import PostProcessed


@dataclass(frozen=True, eq=False)
class Function:
    """A function of a number x, and of further numbers; both are scalars of `graph`."""

    x: TensorVariable
    further: tuple[TensorVariable, ...]
    graph: TensorVariable

    def at(self, x: TensorVariable, further) -> TensorVariable:
        """Return the function at arrays."""
        return self.put(self.graph, further, {self.x: as_float(x)})

    def put(self, graph: TensorVariable, further, given=None) -> TensorVariable:
        """Return a graph with arrays in the place of `further`, and of others, `given`."""
        given = dict(zip(self.further, further, strict=True)) | (given or {})
        return vectorize_graph(graph, given) if given else graph

    @cached_property
    def slope(self) -> TensorVariable | None:
        """The slope of an affine function, in terms of `further`; None for others."""
        if jumps(self.graph):
            return None
        x = pt.scalar(dtype="float64")
        try:
            value = as_float(self.at(x, self.further))
            [slope] = simplified([pytensor.grad(value, x, disconnected_inputs="ignore")])
        except NotImplementedError:
            return None
        return None if x in ancestors([slope]) else slope

    def roots(self, value: TensorVariable, further) -> list[TensorVariable]:
        """Return where the function has a value, NaN where it has none; see `solved`."""
        slope = self.slope_at(further)
        if slope is None:
            level = pt.scalar(dtype="float64")
            given = {level: as_float(value)}
            return [self.put(x, further, given) for x in solved(self.graph, self.x, level)]
        return [(value - as_float(self.at(pt.zeros(()), further))) / slope]

    def slope_at(self, further) -> TensorVariable | None:
        """Return the slope of an affine function at arrays."""
        return None if self.slope is None else self.put(self.slope, further)


def read_function(
    statistic: TensorVariable, rv: TensorVariable, given: Sequence[TensorVariable] = ()
) -> tuple[Function, list[TensorVariable]]:
    """Read a statistic whose entries are of one entry of `rv` each, and of other variables `given`.

    Returns
    -------
    function, further
        The function of an entry, and arrays of its further arguments.

    Raises
    ------
    Declined
        Another statistic.
    """
    x, further = pt.scalar(rv.name, dtype="float64"), dict[TensorVariable, TensorVariable]()
    require_entry_each(statistic, [rv])
    shape = known_shape(statistic)
    if None in shape or shape != known_shape(rv):
        raise Declined("it is no function of each value by itself", near=-1)

    def read(v: TensorVariable) -> TensorVariable:
        if v is rv:
            return pt.neq(x, 0) if rv.dtype == "bool" else x
        if not depends_on(v, rv):
            number = known_value(v, fixed=True)
            if number is not None and number.size == 1:
                return pt.constant(number.ravel()[0], dtype=v.dtype)
            if not {*nearest_rvs([v])} <= {*given}:
                require_entry_each(statistic, nearest_rvs([statistic]))
                raise Declined
            return further.setdefault(v, pt.scalar(dtype=v.dtype))
        node = v.owner
        given_to = list(map(read, node.inputs))
        if isinstance(op := getattr(node.op, "scalar_op", node.op), ps.Cast):
            function = read_cast(op, node.inputs[0]) or (lambda y: y)
            return function(as_float(given_to[0]) if op.o_type.dtype != "bool" else given_to[0])
        if keeps_values(op, node.inputs[0]):
            return given_to[0]
        try:
            [entry] = Elemwise(op)(*given_to, return_list=True)
        except (TypeError, ValueError):  # an op of integers alone, or of several results
            raise Declined(f"`{op}` has no value for numbers of any kind", near=1) from None
        return entry

    graph = read(statistic)
    return Function(x, tuple(further.values()), graph), list(further)


@dataclass(frozen=True, eq=False, repr=False)
class OfFunction(PostProcessed):
    """A release of ``function(x)`` by `inner`, as a mechanism for x.

    `further` are further arguments of the function; they are parameters of the mechanism.
    """

    function: Function
    further: tuple[TensorVariable, ...] = ()

    @property
    def parameters(self) -> tuple[TensorVariable, ...]:
        """Further arguments of the function, then the parameters of `inner`."""
        return (*self.further, *self.inner.parameters)

    @property
    def log_concave(self) -> bool:
        """That of `inner` for an affine function, of whole slope where noise is discrete."""
        slope = self.function.slope_at(self._further)
        if slope is None or not self.inner.log_concave:
            return False
        value = known_value(slope)
        return not self.inner.is_discrete or bool(
            value is not None and np.all(value == np.round(value))
        )

    def _with(self, parameters):
        count = len(self.further)
        inner = self.inner.with_parameters(*parameters[count:])
        return OfFunction(inner, self.function, tuple(map(pt.as_tensor, parameters[:count])))

    def at(self, x) -> TensorVariable:
        """Return the function at arrays."""
        return as_float(self.function.at(x, self._further))

    @property
    def _further(self) -> list[TensorVariable]:
        return [v.astype(w.dtype) for v, w in zip(self.further, self.function.further, strict=True)]

    def of_numbers(self, x: np.ndarray) -> np.ndarray:
        """Return the function at numbers, where its further arguments are known."""
        return self.at(pt.constant(x)).eval(mode=PLAIN_MODE)

    def noise_sample(self, rng, statistic):
        """See `ReleaseLaw.noise_sample`."""
        return self.inner.noise_sample(rng, self.at(statistic))

    def logp(self, value, statistic=0.0):
        """See `ReleaseLaw.logp`."""
        return self.inner.logp(value, self.at(as_float(statistic)))

    def log_interval(self, lower, upper, statistic=0.0):
        """See `ReleaseLaw.log_interval`."""
        return self.inner.log_interval(lower, upper, self.at(as_float(statistic)))

    def support_point(self, statistic):
        """See `ReleaseLaw.support_point`."""
        return self.inner.support_point(self.at(statistic))

    def typical_statistic(self, value):
        """See `Mechanism.typical_statistic`."""
        typical = self.inner.typical_statistic(value)
        first, *others = self.function.roots(as_float(typical), self._further)
        for x in others:
            first = pt.switch(pt.isnan(first) | pt.isinf(first), x, first)
        return first

    def bends(self) -> list[TensorVariable]:
        """Return values of x at which the function is not smooth."""
        f = self.function
        return [f.put(x, self._further) for x in bending(f.graph, f.x)]

    def edges(self, x) -> list[TensorVariable]:
        """Return the ends of the cells around values x between which steps are constant."""
        f = self.function
        return [f.put(e, self._further, {f.x: x}) for e in edges(f.graph, f.x)]

    def kinks(self, value):
        """See `Mechanism.kinks`: where the function has these values."""
        points = dict.fromkeys([*self.inner.kinks(value), self.inner.typical_statistic(value)])
        return [root for p in points for root in self.function.roots(p, self._further)]


def plain(mechanism: Mechanism, value) -> tuple[Mechanism, TensorVariable, TensorVariable | float]:
    """Return additive noise of an affine function of x as noise of x.

    The value changes with it. The last item is log of the slope, which the log density loses.
    """
    if isinstance(mechanism, OfFunction) and has_continuous_rates(mechanism.inner):
        function, further = mechanism.function, mechanism._further
        if (slope := function.slope_at(further)) is not None:
            scale = abs(slope)
            noise = mechanism.inner.with_parameters(
                *(p / scale for p in mechanism.inner.parameters)
            )
            return noise, function.roots(as_float(value), further)[0], pt.log(scale)
    return mechanism, value, 0.0


def of_multiple(mechanism: Mechanism, factor, constant) -> OfFunction:
    """Return a release of ``factor * x + constant`` as a mechanism for x."""
    x, a, b = (pt.scalar(dtype="float64") for _ in range(3))
    given = (as_float(factor), as_float(constant))
    return OfFunction(mechanism, Function(x, (a, b), a * x + b), given)
