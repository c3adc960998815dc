"""Marginals of many values of one law, evaluated at few releases and interpolated between them."""

from __future__ import annotations

import numpy as np
from pytensor.tensor.basic import Alloc
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.variable import TensorVariable

_DEGREE = 7
_PANELS = 24  # of a thousand releases
_LEAST = 2  # releases for each node: with fewer, all are evaluated


def number_of_all(v: TensorVariable) -> TensorVariable | None:
    """Return the number that all entries of a variable are, where its graph shows it."""
    while v.type.ndim and not all(v.type.broadcastable):
        if v.owner is None or not isinstance(v.owner.op, Alloc | DimShuffle):
            return None
        v = v.owner.inputs[0]
    return v.reshape(()) if v.type.ndim else v


class Grid:
    """Releases at which a function is evaluated, and its interpolation at all of them, if smooth.

    Attributes
    ----------
    nodes : releases at which the function is evaluated.
    """

    def __init__(self, value: np.ndarray, *, smooth: bool = True):
        flat = value.ravel()
        distinct, where = np.unique(flat, return_inverse=True)
        panels = max(8, round(_PANELS * (flat.size / 1000.0) ** 0.25))
        self._shape, self._weights = value.shape, None
        if not smooth or distinct.size <= _LEAST * panels * (_DEGREE + 1):
            self.nodes, self._where = distinct, where
            return
        edges = np.linspace(distinct[0], distinct[-1], panels + 1)
        x = np.cos(np.pi * np.arange(_DEGREE, -1, -1) / _DEGREE)  # from edge to edge
        low, width = edges[:-1, None], np.diff(edges)[:, None]
        self.nodes = (low + 0.5 * width * (1.0 + x)).ravel()
        panel = np.clip(np.searchsorted(edges, flat, side="right") - 1, 0, panels - 1)
        t = 2.0 * (flat - edges[panel]) / np.diff(edges)[panel] - 1.0
        signs = (-1.0) ** np.arange(_DEGREE + 1)
        signs[[0, -1]] *= 0.5
        with np.errstate(divide="ignore", invalid="ignore"):  # the barycentric formula
            weights = signs / (t[:, None] - x)
            weights = weights / weights.sum(axis=1, keepdims=True)
        at_node = np.isnan(weights)
        weights[at_node.any(axis=1)] = 0.0
        weights[at_node] = 1.0
        self._weights = weights
        self._where = panel[:, None] * (_DEGREE + 1) + np.arange(_DEGREE + 1)

    def at_all(self, at_nodes: TensorVariable) -> TensorVariable:
        """Return the function at all releases, from its values at the nodes."""
        there = at_nodes[self._where]
        if self._weights is not None:
            there = (self._weights * there).sum(axis=1)
        return there.reshape(self._shape)
