"""The density of releases as a compiled function of the counts that they are computed from."""

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

_SMALL = 16  # constants larger than this are data of compiled code, not part of it


@dataclass(frozen=True)
class CompiledNoise:
    """The log density of releases as a compiled function of the counts.

    Attributes
    ----------
    log_eta : ``(counts, rows, *data)`` to a float; see `kernels.counts.exchanges`.
    sweep : the kernel's sweep over a table with it; it takes `data` one by one.
    data : what `log_eta` reads besides: shared variables, large constants, values of the point.
    slopes : as the kernel's sweep takes them; of a listed table, all of its states.
    source : what `compile_noise` made it from.
    listed : whether `sweep` draws from a list of all states.
    key : of the code of `sweep`.
    """

    log_eta: Callable
    sweep: Callable
    data: tuple[Variable, ...]
    slopes: np.ndarray
    source: tuple[TensorVariable, TensorVariable, TensorVariable]
    listed: bool = False
    key: str | None = None

    def __reduce__(self):
        """Pickle the graph, not what was compiled, which other processes cannot load."""
        return compile_noise, (*self.source, self.slopes, self.listed)

    def read(self, point: dict[str, np.ndarray]) -> tuple[np.ndarray, ...]:
        """Return the values of `data`, at the point for what belongs to it."""
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

        That is no proof, but finds what a mass on whole numbers makes of statistics between them.
        """
        slopes = self.slopes
        for k in range(1, cells):
            rows = np.flatnonzero(slopes[:, k - 1] != slopes[:, k])
            if len(slopes) and not rows.size:
                continue

            def log_density(points, k=k, rows=rows):
                found = np.empty(points.size)
                for i, c in enumerate(points):
                    counts = np.zeros(cells)
                    counts[k - 1], counts[k] = n - c, c
                    found[i] = self.log_eta(counts, rows, *data)
                return found

            if not is_concave(*probes(n, log_density)):
                return False
        return True


def compile_noise(
    log_eta: TensorVariable,
    counts: TensorVariable,
    rows: TensorVariable,
    slopes: np.ndarray,
    listed: bool = False,
) -> CompiledNoise:
    """Compile a log density in terms of `counts` and, where it looks at some entries, `rows`."""
    source = log_eta, counts, rows
    data = [
        v
        for v in graph_inputs([log_eta])
        if v not in (counts, rows) and not (isinstance(v, Constant) and np.size(v.data) <= _SMALL)
    ]
    own = [v.type() for v in data]
    if data:
        [log_eta] = graph_replace([log_eta], dict(zip(data, own, strict=True)))
    inner = from_graph([counts, rows, *own], [log_eta.astype("float64")])
    piece = from_source("log_eta", "k, rows, *data", "inner(k, rows, *data)[0].item()", inner=inner)
    make = kernels.make_table_draw if listed else kernels.make_table_sweep
    key = joined(key_of(make), piece.key)
    names = ", ".join(f"d{i}" for i in range(len(data)))
    arguments = "rng, counts, slopes, weights, integrated, concave, rounds"
    sweep = from_source(
        "sweep",
        f"{arguments}, {names}",
        f"kernel({arguments}, ({names}{',' if data else ''}))",
        kernel=Piece(make(piece.function), key),
    )
    return CompiledNoise(
        piece.function, sweep.function, tuple(data), slopes, source, listed, sweep.key
    )
