"""Marginals of many values of one law, evaluated at few releases and interpolated between them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pytensor.gradient import disconnected_type
from pytensor.graph.basic import Apply
from pytensor.tensor.basic import Alloc
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.variable import TensorVariable

from pymc_dp.laws.kernel_call import KernelCall, doubles
from pymc_dp.plugins.single_values import kernels

_DEGREE = 7
_PANELS = 14  # of a thousand releases
_LEAST = 2  # releases for each node: with fewer, all are evaluated


def number_of_all(v: TensorVariable) -> TensorVariable | None:
    """Return the number that all entries of a variable are, where its graph shows it."""
    while v.type.ndim and not all(v.type.broadcastable):
        if v.owner is None or not isinstance(v.owner.op, Alloc | DimShuffle):
            return None
        v = v.owner.inputs[0]
    return v.reshape(()) if v.type.ndim else v


class Gather(KernelCall):
    """Weighted sums of consecutive values, see `kernels.gather`."""

    __props__ = ()

    def make_node(self, at_nodes, first, weights):
        """Apply to values, where the first of each sum is, and a row of weights for each sum."""
        inputs = doubles(at_nodes, first, weights)
        return Apply(self, inputs, [inputs[1].type()])

    def call(self):
        """See `KernelCall.call`."""
        kernel = kernels.gather

        def gather(at_nodes, first, weights):
            return kernel(at_nodes, first, weights)

        return gather

    def pullback(self, inputs, outputs, cotangents):
        """Return the gradient of the values."""
        at_nodes, first, weights = inputs
        back = Scatter()(cotangents[0], first, weights, at_nodes)
        return [back, disconnected_type(), disconnected_type()]

    def connection_pattern(self, node):
        """Connect the values."""
        return [[True], [False], [False]]


class Scatter(KernelCall):
    """The transpose of `Gather`, see `kernels.scatter`."""

    __props__ = ()

    def make_node(self, gradient, first, weights, values):
        """Apply to a gradient, the places and weights of `Gather`, and what these were of."""
        inputs = doubles(gradient, first, weights, values)
        return Apply(self, inputs, [inputs[-1].type()])

    def call(self):
        """See `KernelCall.call`."""
        kernel = kernels.scatter

        def scatter(gradient, first, weights, values):
            return kernel(gradient, first, weights, values.size)

        return scatter


class Grid:
    """Releases at which a function is evaluated, and its values at all of them.

    A `smooth` function is interpolated between nodes where there are many releases, apart on either
    side of `bends`; at what was released more than once, or withheld, it is evaluated.

    Attributes
    ----------
    nodes : releases at which the function is evaluated.
    """

    def __init__(self, value: np.ndarray, *, smooth: bool, bends: Sequence[float] = ()):
        flat = value.ravel()
        self._shape = value.shape
        distinct, where, times = np.unique(flat, return_inverse=True, return_counts=True)
        panels = max(8, round(_PANELS * (flat.size / 1000.0) ** 0.25))
        single = (times == 1) & np.isfinite(distinct)
        if not smooth or single.sum() <= _LEAST * panels * (_DEGREE + 1):
            self.nodes, self._first, self._weights = distinct, where, np.ones((flat.size, 1))
            return
        edges = np.linspace(distinct[single][0], distinct[single][-1], panels + 1)
        inside = [b for b in bends if edges[0] < b < edges[-1]]
        edges = np.unique(np.concatenate([edges, inside]))
        x = np.cos(np.pi * np.arange(_DEGREE, -1, -1) / _DEGREE)  # from edge to edge
        low, width = edges[:-1, None], np.diff(edges)[:, None]
        exact = distinct[~single]
        self.nodes = np.concatenate([exact, (low + 0.5 * width * (1.0 + x)).ravel()])
        between = single[where]
        z = np.where(between, flat, edges[0])
        panel = np.clip(np.searchsorted(edges, z, side="right") - 1, 0, edges.size - 2)
        t = 2.0 * (z - edges[panel]) / np.diff(edges)[panel] - 1.0
        signs = (-1.0) ** np.arange(_DEGREE + 1)
        signs[[0, -1]] *= 0.5
        with np.errstate(divide="ignore", invalid="ignore"):  # the barycentric formula
            weights = signs / (t[:, None] - x)
            weights = weights / weights.sum(axis=1, keepdims=True)
        at_node = np.isnan(weights)
        weights[at_node.any(axis=1)] = 0.0
        weights[at_node] = 1.0
        weights[~between] = np.eye(_DEGREE + 1)[0]
        self._weights = weights
        first = exact.size + panel * (_DEGREE + 1)
        self._first = np.where(between, first, (np.cumsum(~single) - 1)[where])

    def at_all(self, at_nodes: TensorVariable) -> TensorVariable:
        """Return the function at all releases, from its values at the nodes."""
        return Gather()(at_nodes, self._first, self._weights).reshape(self._shape)
