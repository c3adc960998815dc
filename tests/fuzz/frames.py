"""Public data of random models, groups and covariates, and parameters that are computed from it."""

from dataclasses import dataclass

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from tests.fuzz.grammar import Part

# --- Public data ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Frame:
    """Who is in which group, and covariates. Records are a vector, or one row or column a group."""

    layout: str
    groups: int
    group: np.ndarray
    other: np.ndarray
    """Another group of each record, crossed with the first or of several of these together."""
    x: np.ndarray
    offset: np.ndarray
    as_data: bool
    """Whether the group index is `pm.Data`."""

    @property
    def n(self):
        return self.group.size

    @property
    def shape(self):
        each = self.n // self.groups
        shapes = {"rows": (self.groups, each), "columns": (each, self.groups)}
        return shapes.get(self.layout, (self.n,))

    @property
    def members(self):
        """One row for each group, with ones where its records are."""
        return (np.arange(self.groups)[:, None] == self.group) * 1.0

    @property
    def sizes(self):
        return self.members.sum(1)

    def index(self):
        """Return the group index for PyTensor."""
        return pm.Data("g", self.group) if self.as_data else self.group


def random_frame(rng):
    layout = str(rng.choice(["vector", "vector", "vector", "rows", "columns"]))
    groups = int(rng.integers(1, 5))
    if layout == "vector":
        sizes = rng.integers(0, 5, groups)  # empty ones, and single records
        sizes[rng.integers(groups)] += 2
        group = np.repeat(np.arange(groups), sizes)
        group = group if rng.random() < 0.3 else rng.permutation(group)
    else:
        each = int(rng.integers(1, 5))
        group = np.indices((groups, each))[0]
        group = (group if layout == "rows" else group.T).ravel()
    n = group.size
    other = rng.integers(0, 2, n) if rng.random() < 0.5 else np.arange(groups)[group] % 2
    x = np.column_stack([np.ones(n), rng.normal(size=n).round(1)])
    if rng.random() < 0.2:
        x[:, 1] = rng.choice([0.0, 1.0, x[0, 1]]) * rng.integers(0, 2, n)  # few distinct rows
    offset, as_data = rng.normal(size=n).round(1), bool(rng.random() < 0.15)
    return Frame(layout, groups, group, other, x, offset, as_data and layout == "vector")


# --- Parameters of the records --------------------------------------------------------------------


def _theta(v, f):
    if f.layout == "vector":
        return v["theta"][f.index()]
    return v["theta"][:, None] if f.layout == "rows" else v["theta"]


def _shaped(graph, f):
    return graph if f.layout == "vector" else graph.reshape(f.shape)


PREDICTORS = (
    Part("theta[g]", _theta, lambda v, f: v["theta"][f.group]),
    Part("X @ b", lambda v, f: _shaped(f.x @ v["b"], f), lambda v, f: f.x @ v["b"]),
    Part(
        "X @ b + offset",
        lambda v, f: _shaped(pt.dot(f.x, v["b"]) + f.offset, f),
        lambda v, f: f.x @ v["b"] + f.offset,
    ),
    Part(
        "theta[g] + x b[1]",
        lambda v, f: _theta(v, f) + f.x[:, 1].reshape(f.shape) * v["b"][1],
        lambda v, f: v["theta"][f.group] + f.x[:, 1] * v["b"][1],
    ),
    Part(
        "theta[g] + b[other]",
        lambda v, f: _theta(v, f) + v["b"][f.other.reshape(f.shape)],
        lambda v, f: v["theta"][f.group] + v["b"][f.other],
    ),
    Part("b[0]", lambda v, f: v["b"][0], lambda v, f: np.full(f.n, v["b"][0])),
)
SPREADS = (
    Part("sigma", lambda v, f: v["sigma"], lambda v, f: np.full(f.n, v["sigma"])),
    Part("1.3", lambda v, f: 1.3, lambda v, f: np.full(f.n, 1.3)),
    Part(
        "sqrt(sigma)",
        lambda v, f: pt.sqrt(v["sigma"]),
        lambda v, f: np.full(f.n, v["sigma"] ** 0.5),
    ),
    Part(
        "spread[other]",
        lambda v, f: v["spread"][f.other.reshape(f.shape)],
        lambda v, f: v["spread"][f.other],
    ),
)  # fmt: skip
