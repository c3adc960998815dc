"""Draws of the tables of a log-linear model given noisy margins, as a step of PyMC."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pymc.logprob.abstract import _logprob
from pymc.step_methods.compound import Competence
from pytensor.graph.basic import Constant
from pytensor.tensor.type import TensorType
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.compiled import Piece, from_code, from_numbers
from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.values import is_random, known_value, uncast
from pymc_dp.kernels import jit
from pymc_dp.mechanisms.base import Mechanism, kind_of
from pymc_dp.mechanisms.postprocessed import layers
from pymc_dp.mechanisms.release import PrivateReleaseRV
from pymc_dp.plugins.log_linear.kernels import Release, extend, make_sweep
from pymc_dp.plugins.log_linear.layout import (
    concentrations,
    draw_tables,
    fit_margins,
    joint,
    make_layout,
    row_law,
)
from pymc_dp.plugins.log_linear.tables import CliqueTablesRV, Margin, number_of_rows
from pymc_dp.plugins.log_linear.weights import WeightedTablesRV
from pymc_dp.reading.model import Reading, children, mechanism_of, release_statistic
from pymc_dp.step_methods.base import DPStep, in_a_row, point_function, unusable
from pymc_dp.step_methods.registry import STEPS

_log = logging.getLogger("pymc.dp")

_FAR = 8.0  # standard deviations of a total
_APPROACH = 20  # sweeps towards what was published
_LINES = 10  # in a sweep, for each cell of a clique


@jit
def _bell(z, count, scale):
    return -0.5 * ((z - count) / scale) ** 2


@STEPS.register(order=10)
class CliqueGibbs(DPStep):
    r"""Update the tables of a `LogLinear` model, whose margins were released with noise.

    A sweep draws along random lines of tables that agree on their separators: an exchange of any
    number of people within a clique, and people who move from one level of a column to another in
    all cliques that hold it. Each is drawn from its conditional on the whole line. Now and then
    people resettle: what follows in other cliques is drawn from the prior. Cell probabilities are
    integrated out; `LogLinear.probabilities` draws them. With
    ``weights=`` they are given. Where the number of rows is a variable, people come and go as well,
    in one row of all columns at a time.

    Parameters
    ----------
    vars : list of TensorVariable
        The variable of one `LogLinear`, and its number of rows where that is a variable.
    model : pm.Model, optional
        The model of the context by default.

    Raises
    ------
    ValueError
        Naming what else than a release depends on the tables or on their number of rows.

    Examples
    --------
    >>> import pymc as pm, pymc_dp as dp
    >>> with pm.Model() as model:
    ...     rows = dp.LogLinear("rows", {"job": 2, "income": 2}, [("job", "income")], 40)
    ...     noise = dp.LaplaceMechanism(2.0)
    ...     z = dp.PrivateObservation("z", rows.margin("job"), noise, observed=[28.0, 13.0])
    >>> step = dp.CliqueGibbs([rows.rv], model=model, rng=1)
    >>> point, _ = step.step(model.initial_point())
    >>> point["rows"].sum()
    np.int64(40)
    """

    name = "dp_cliques"

    @classmethod
    def claims(cls, reading, left):
        """Claim the tables of each log-linear model: no other step moves them."""
        tables = [rv for rv in left if isinstance(rv.owner.op, CliqueTablesRV)]
        return [[rv, *(n for n in [number_of_rows(rv)] if n in left)] for rv in tables]

    @classmethod
    def draws_exactly(cls, reading, rv):
        """See `registry.exact_draw`."""
        for tables in reading.model.free_RVs:
            if isinstance(tables.owner.op, CliqueTablesRV):
                n = number_of_rows(tables)
                if n is not None and rv in (tables, n):
                    return tables, n
        return ()

    @classmethod
    def competence(cls, var, has_grad=None):
        """IDEAL for the tables of a log-linear model, and their number of rows."""
        if isinstance(getattr(var.owner, "op", None), CliqueTablesRV):
            return Competence.IDEAL
        return super().competence(var, has_grad)

    def _prepare(self, reading, initial_point):
        model = reading.model
        try:
            [rv] = [v for v in self.model_rvs if isinstance(v.owner.op, CliqueTablesRV)]
            released, varying = read_margins(reading, rv), number_of_rows(rv)
            if {*self.model_rvs} != {rv, varying} - {None}:
                raise Declined(
                    f"vars= are {rv.name!r} and its number of rows, if that is a variable"
                )
            prior = None if varying is None else density_of(reading, varying)
        except (Declined, ValueError) as error:
            names = ", ".join(repr(rv.name) for rv in self.model_rvs)
            raise ValueError(f"CliqueGibbs cannot update {names}: {error}") from None
        op = rv.owner.op
        n, law = op.dist_params(rv.owner)
        n = known_value(n)
        self._n, self._tree = None if n is None else int(n), op.tree
        self._margins = [margin.columns for _, margin in released]
        mechanisms = [mechanism_of(release) for release, _ in released]
        self._shapes = [margin.shape for _, margin in released]
        self._widths = [_width_of(m) for m in mechanisms]
        self._unbiased = [m.rates is not None for m in mechanisms]
        noise, self._kinds = noise_of_all(mechanisms, prior)
        parts = []
        for (release, margin), mechanism in zip(released, mechanisms, strict=True):
            cells = [model.rvs_to_values[release], *mechanism.parameters]
            parts += [pt.broadcast_to(part, margin.shape) for part in cells]
        self._rows_name = None
        if prior is not None:  # first, as a release of the number of rows
            self._margins, self._shapes = [(), *self._margins], [(), *self._shapes]
            self._widths = [max(self._widths), *self._widths]
            self._rows_name = model.rvs_to_values[varying].name
            parts = [varying, *prior[0], *parts]
        self._width = 1 + max(count for _, count in self._kinds)
        self._noise = noise.function
        self._sweep = make_sweep(noise.function, self._width)
        self._layout = make_layout(op.tree, self._margins, prior is not None)
        self._given = None  # the logs of the cells' probabilities given separators
        if isinstance(op, WeightedTablesRV):
            self._given = point_function(model, law)
        total = max(map(op.tree.size, op.tree.cliques)) if self._given else known_value(law)
        self._weights = concentrations(self._layout, float(np.asarray(total)))
        self._lines = _LINES * sum(map(op.tree.size, op.tree.cliques))
        self._values = point_function(model, in_a_row(parts))
        self._name, self._law, self._fresh = model.rvs_to_values[rv].name, None, False

    def setup_chain(self, rng, tune, draws):
        """Begin a chain near what was published."""
        super().setup_chain(rng, tune, draws)
        self._fresh = tune > 0

    def step(self, point):
        """Sweep over the tables."""
        release, published = self._release(self._values(point))
        tables = np.array(point[self._name], dtype=np.int64)
        if self._law is None or self._fresh:
            fitted = fit_margins(self._tree, published)
            self._law = row_law(self._layout, fitted)
            if self._fresh:
                tables = self._start(fitted, release)
            self._fresh = False
        cells, integrated = self._weights, self._given is None
        if self._given is not None:
            cells = self._probabilities(np.exp(self._given(point)))
        self._sweep(
            self.rng, tables, self._layout, self._law, cells, integrated, release, self._lines
        )
        drawn = {self._name: tables.astype(point[self._name].dtype)}
        if self._rows_name is not None:
            n = tables[: self._layout.first[1]].sum()
            drawn[self._rows_name] = np.asarray(n, dtype=point[self._rows_name].dtype)
        return {**point, **drawn}, [{}]

    def _probabilities(self, conditional: np.ndarray) -> np.ndarray:
        """Return the probabilities of the cells of all tables."""
        own, layout = np.concatenate(joint(self._tree, conditional)), self._layout
        if not np.isfinite(own).all():
            raise unusable(self._name)
        found = np.append(own, np.zeros(layout.first[-1] - own.size))
        np.add.at(found, layout.targets, own.repeat(np.diff(layout.targets_first)))
        return found

    def _start(self, fitted: list[np.ndarray], release: Release) -> np.ndarray:
        """Draw tables near what was published; where they cannot be, move them closer."""
        n = self._n
        if n is not None:
            self._compare_totals(n, release)
        if n is None:
            n = self._rows_near(release)
            release.z[0] = n  # what follows is drawn to it; the density of n does not use it
        tables = draw_tables(self.rng, self._tree, fitted, n)
        if self._is_possible(tables, release):
            return tables
        pull = Release(np.nan_to_num(release.z), release.spread[:, None], release.spread)
        closer = make_sweep(_bell, 1)
        for width in (0.5, 0.25, 0.1):
            near = pull._replace(noise=width * pull.noise)
            rest = (self._layout, self._law, self._weights, True, near)
            closer(self.rng, tables, *rest, _APPROACH * self._lines)
            if self._is_possible(tables, release):
                return tables
        raise ValueError(
            f"{self._name!r}: no counts were found that can lead to what was published. Check the "
            f"number of rows, the noise and the units of the releases"
        )

    def _totals(self, release: Release) -> list[tuple[float, float]]:
        """Return the noisy total of each margin, and about its standard deviation."""
        parts = np.split(release.z, np.cumsum([np.prod(s, dtype=int) for s in self._shapes])[:-1])
        return [(z.sum(), w * z.size**0.5) for z, w in zip(parts, self._widths, strict=True)]

    def _compare_totals(self, n: int, release: Release) -> None:
        """Warn where a margin's noisy total is far from the number of rows."""
        for columns, (total, sd), unbiased in zip(
            self._margins, self._totals(release), self._unbiased, strict=True
        ):
            if unbiased and abs(total - n) > _FAR * sd:
                _log.warning(
                    "%r: the noisy counts of %s sum to %.0f, with a standard deviation of about "
                    "%.2g, and n=%d: is that the number of rows?",
                    self._name, ", ".join(columns), total, sd, n,
                )  # fmt: skip

    def _rows_near(self, release: Release) -> int:
        """Return the total with the least noise; the number of the point where it cannot be."""
        (now, _), *totals = self._totals(release)
        known = [(sd, total) for total, sd in totals if np.isfinite(total)]  # all is published
        n = max(0, round(min(known)[1])) if known else int(now)
        return n if self._noise(0.0, float(n), *release.noise[0]) > -np.inf else int(now)

    def _is_possible(self, tables: np.ndarray, release: Release) -> bool:
        counts = extend(tables, self._layout)[-release.z.size :]
        cells = zip(release.z, counts, release.noise, strict=True)
        return all(self._noise(z, float(c), *noise) > -np.inf for z, c, noise in cells)

    def _release(self, values: np.ndarray) -> tuple[Release, dict]:
        z, noise, spread, at = np.empty(0), np.empty((0, self._width)), np.empty(0), 0
        published = {}
        for columns, shape, kind, width in zip(
            self._margins, self._shapes, self._kinds, self._widths, strict=True
        ):
            size, (code, count) = int(np.prod(shape)), kind
            block = values[at : at + size * (1 + count)].reshape(1 + count, size)
            at += size * (1 + count)
            if np.isnan(block[1:]).any():
                raise unusable(self._name)
            rows = np.zeros((size, self._width))
            rows[:, 0], rows[:, 1 : 1 + count] = code, block[1:].T
            z, noise = np.append(z, block[0]), np.vstack([noise, rows])
            spread = np.append(spread, np.full(size, width))
            published[columns] = np.nan_to_num(block[0]).reshape(shape)
        return Release(z, noise, spread), published


def read_margins(reading: Reading, rv: TensorVariable) -> list[tuple[TensorVariable, Margin]]:
    """Return the releases of the tables, and the margin of each; decline all else.

    Releases of a number of rows that varies have the margin of no columns.
    """
    released, n = [], number_of_rows(rv)
    if n is not None and n not in reading.model.free_RVs:
        raise Declined(
            f"its number of rows, {n.name or n!r}, is no free variable of the model: where it is "
            f"observed, write n= with the number"
        )
    known = [(rv, child) for child in children(reading, rv)]
    if n is not None:
        known += [(n, child) for child in children(reading, n) if child is not rv]
    for source, child in known:
        is_release = isinstance(getattr(child.owner, "op", None), PrivateReleaseRV)
        statistic = uncast(release_statistic(child)) if is_release else None
        if source is n:
            if statistic is not n:
                raise Declined(
                    f"{child.name!r} depends on its number of rows, {n.name!r}, and is no release "
                    f"of it: write {n.name} itself as the statistic of a release, or n= with a "
                    f"number"
                )
            margin = Margin(rv.owner.op.key, ())
        elif statistic is None or not isinstance(margin := statistic.owner.op, Margin):
            raise Declined(
                f"{child.name!r} depends on it, and is no release of a margin: write "
                f"rows.margin(...) itself as the statistic"
            )
        if child.owner.op.bounds is not None or child not in reading.model.observed_RVs:
            raise Declined(f"the release {child.name!r} has no observed value, or has bounds=")
        released.append((child, margin))
    if not released:
        raise Declined("no margin of it is released")
    return released


def density_of(reading: Reading, n: TensorVariable) -> tuple[list[TensorVariable], Piece]:
    """Return the numbers that the law of n depends on, and its log density of n and these."""
    inputs = n.owner.inputs
    given = [x for x in inputs if isinstance(x.type, TensorType) and not isinstance(x, Constant)]
    known = reading.model.basic_RVs
    if any(x.type.ndim or (is_random(x) and x not in known) for x in given):
        raise Declined(
            f"the law of {n.name!r} has parameters that are no numbers: write one such as "
            f"pm.Poisson, pm.NegativeBinomial or pm.DiscreteUniform"
        )
    value, *numbers = (pt.dscalar() for _ in range(1 + len(given)))
    put = {x: number.astype(x.dtype) for x, number in zip(given, numbers, strict=True)}
    logp = _logprob(n.owner.op, (value.astype(n.dtype),), *[put.get(x, x) for x in inputs])
    return given, from_numbers([value, *numbers], logp.astype("float64"))


def noise_of_all(
    mechanisms: Sequence[Mechanism], prior: tuple[list, Piece] | None = None
) -> tuple[Piece, list[tuple[int, int]]]:
    """Compile the log density of a released cell; return for each release its code, and a width.

    The function takes a release, a count, the code of a mechanism and its parameters. `prior` is
    `density_of` a number of rows, which comes first.
    """
    most = max([*(len(m.parameters) for m in mechanisms), len(prior[0]) if prior else 0])
    names = [f"p{i}" for i in range(most)]
    code, pieces = "", {}
    if prior is not None:
        pieces["prior"] = prior[1]
        given = ", ".join(["y", *names[: len(prior[0])]])
        code += f"if code == -1.0:\n    return prior({given})\n"
    numbers: dict[Any, int] = {}
    for mechanism in mechanisms:
        if kind_of(mechanism) in numbers:
            continue
        k = numbers[kind_of(mechanism)] = len(numbers)
        z, y = pt.dscalars("z", "y")
        parameters = [pt.dscalar() for _ in mechanism.parameters]
        logp = mechanism.with_parameters(*parameters).logp(z, y)
        pieces[f"noise{k}"] = from_numbers([z, y, *parameters], logp)
        given = ", ".join(["z", "y", *names[: len(parameters)]])
        code += f"if code == {k}.0:\n    return noise{k}({given})\n"
    kinds = [(-1, len(prior[0]))] if prior is not None else []
    kinds += [(numbers[kind_of(m)], len(m.parameters)) for m in mechanisms]
    arguments = ", ".join(["z", "y", "code", *names])
    return from_code(
        "log_noise", arguments, code + "return -np.inf", np=Piece(np, "numpy"), **pieces
    ), kinds


def _width_of(mechanism: Mechanism) -> float:
    """Return about how wide noise is: a wrong width only costs time."""
    inner = layers(mechanism)[-1]
    if inner.rates is None:
        return 1.0
    lam, tau = (float(np.mean(np.asarray(known_value(rate)))) for rate in inner.rates)
    return float(min(1.5 / lam if lam > 0 else np.inf, tau**-0.5 if tau > 0 else np.inf))
