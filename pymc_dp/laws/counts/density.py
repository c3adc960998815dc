"""The density of releases, compiled as a function of the counts in their statistics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import graph_inputs
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.compiled import Piece, from_graph, from_source
from pymc_dp.kernels import joined, key_of
from pymc_dp.kernels.counts import exchanges as kernels
from pymc_dp.reading.counts import is_concave, probes

_SMALL = 16  # entries: a larger constant is passed to the compiled code as data


@dataclass(frozen=True)
class CompiledNoise:
    """The log density of releases as a compiled function of the counts.

    Attributes
    ----------
    log_eta : ``(counts, rows, *data)`` to a float; see `kernels.counts.exchanges`.
    sweep : a sweep over a table of counts, with `data` as its last arguments.
    data : further inputs of `log_eta`: shared variables, large constants, values of the point.
    slopes : as the sweep of the kernel takes them; all states, where `listed`.
    source : the arguments that it was compiled from.
    listed : whether `sweep` draws from a list of all states.
    key : the key of the code of `sweep`.
    """

    log_eta: Callable
    sweep: Callable
    data: tuple[Variable, ...]
    slopes: np.ndarray
    source: tuple
    listed: bool = False
    key: str | None = None

    def __reduce__(self):
        """Pickle the graphs: other processes cannot load compiled code."""
        return compile_noise, self.source

    def read(self, point: dict[str, np.ndarray]) -> tuple[np.ndarray, ...]:
        """Return the values of `data`; those of variables of the model are in the point."""
        return tuple(
            np.asarray(
                v.data
                if isinstance(v, Constant)
                else v.get_value()
                if isinstance(v, SharedVariable)
                else point[v.name],
                order="C",
            )
            for v in self.data
        )

    def draw(self, rng, counts, weights, integrated, concave, data, rounds=1) -> bool:
        """Draw the counts in place; False if no counts explain the releases."""
        return self.sweep(rng, counts, self.slopes, weights, integrated, concave, rounds, *data)

    def is_concave(self, cells: int, n: int, data: Sequence[np.ndarray]) -> bool:
        """Whether the log density looks concave on moves of all n records to the next cell.

        It is no proof: it finds noise on whole numbers around statistics that are not whole.
        """
        slopes = self.slopes
        for k in range(1, cells):
            rows = np.flatnonzero(slopes[:, k - 1] != slopes[:, k])
            if len(slopes) and not rows.size:
                continue

            def log_density(points, k=k, rows=rows):
                densities = np.empty(points.size)
                for i, c in enumerate(points):
                    counts = np.zeros(cells)
                    counts[k - 1], counts[k] = n - c, c
                    densities[i] = self.log_eta(counts, rows, *data)
                return densities

            if not is_concave(*probes(n, log_density)):
                return False
        return True


def compile_noise(
    log_eta: TensorVariable,
    counts: TensorVariable,
    rows: TensorVariable,
    slopes: np.ndarray,
    listed: bool = False,
    directions: np.ndarray | None = None,
) -> CompiledNoise:
    """Compile a log density of entries `rows`, or of all, as a function of `counts`."""
    source = log_eta, counts, rows, slopes, listed, directions
    data = [
        v
        for v in graph_inputs([log_eta])
        if v not in (counts, rows) and not (isinstance(v, Constant) and np.size(v.data) <= _SMALL)
    ]
    data_inputs = [v.type() for v in data]
    if data:
        [log_eta] = graph_replace([log_eta], dict(zip(data, data_inputs, strict=True)))
    inner = from_graph([counts, rows, *data_inputs], [log_eta.astype("float64")])
    piece = from_source("log_eta", "k, rows, *data", "inner(k, rows, *data)[0].item()", inner=inner)
    along = kernels.NO_DIRECTIONS if directions is None else directions
    make = kernels.make_table_draw if listed else kernels.make_table_sweep
    made = make(piece.function) if listed else make(piece.function, along)
    key = joined(key_of(make), piece.key, along.tobytes().hex())
    names = ", ".join(f"d{i}" for i in range(len(data)))
    arguments = "rng, counts, slopes, weights, integrated, concave, rounds"
    sweep = from_source(
        "sweep",
        f"{arguments}, {names}",
        f"kernel({arguments}, ({names}{',' if data else ''}))",
        kernel=Piece(made, key),
    )
    pieces = piece.function, sweep.function, tuple(data)
    return CompiledNoise(*pieces, slopes, source, listed, sweep.key)
