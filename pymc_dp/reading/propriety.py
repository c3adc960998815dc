"""Refuse priors that are known to make the posterior improper.

For a single vector of records see theorems 4 and 5 of Kazan & Reiter.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
from pymc.distributions.continuous import FlatRV, HalfFlatRV
from pytensor.graph.basic import Variable
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.powers import power_law
from pymc_dp.graphs.shapes import entry_of
from pymc_dp.graphs.values import PLAIN_MODE, depends_on, known_value, nearest_rvs
from pymc_dp.mechanisms import GaussianMechanism, LaplaceMechanism
from pymc_dp.mechanisms.postprocessed import ClippedMechanism, layers
from pymc_dp.mechanisms.release import record_bounds
from pymc_dp.mechanisms.suppressed import ThresholdedMechanism
from pymc_dp.reading.checks import check_transform
from pymc_dp.reading.column_sums import RowRelease
from pymc_dp.reading.columns import Link, Rows
from pymc_dp.reading.model import Reading, as_published, children
from pymc_dp.reading.normal_column import NormalColumn
from pymc_dp.reading.sums.polynomials import Polynomial, constant, degree, read_polynomial


def check_possible(reading: Reading, read: NormalColumn) -> None:
    """Refuse, when a release is declared, posteriors that no further release makes proper."""
    _check(reading, read, complete=False)


def check_proper(reading: Reading, read: NormalColumn) -> None:
    """Refuse improper posteriors, when all releases of the records are known."""
    _check(reading, read, complete=True)


def _told(reading: Reading, release: RowRelease) -> set[str]:
    """Return the moments of which a noisy number was published, not clipped and not withheld."""
    mechanism = release.mechanism
    cut = (ClippedMechanism, ThresholdedMechanism)
    if any(isinstance(layer, cut) for layer in layers(mechanism)):
        return set()
    value = reading.model.rvs_to_values.get(release.rv)
    known = known_value(as_published(value)) if mechanism.withholds and value is not None else None
    withheld = np.zeros(1, bool)
    if known is not None:
        withheld = np.ravel(mechanism.is_withheld(known).eval(mode=PLAIN_MODE))
    both = {"mean", "variance"}
    try:
        entries = release.mean_and_variance()
    except Declined:  # an entry that is not linear in them depends on both
        return set() if withheld.all() else both
    gone = np.broadcast_to(withheld, len(entries))
    seen = [entry for entry, is_gone in zip(entries, gone, strict=True) if not is_gone]
    return {which for which in both if any(getattr(entry, which) for entry in seen)}


def _check(reading: Reading, read: NormalColumn, *, complete: bool) -> None:
    """Compare the tails of prior and likelihood in the variance v of the records' law.

    For v -> 0 the likelihood tends to a positive constant. For v -> inf it falls like
    v^(-d/2), d = n - 1 for a released variance, one more for a released mean if the mean has a
    proper prior; a clipped or withheld number does not make it fall, and does not count. A flat
    prior on w, v = c w^k, has density v^(1/k - 1) in v.

    Other data on a parameter may make its posterior proper: it counts as a proper prior then.
    """
    known = {read.rv, read.mean, *(release.rv for release in read.releases)}
    told = set().union(*(_told(reading, release) for release in read.releases))
    uses_mean, uses_variance = "mean" in told, "variance" in told

    def has_other_data(parameter):
        return any(child not in known for child in children(reading, parameter))

    mean_is_flat = (
        read.mean.owner is not None
        and isinstance(read.mean.owner.op, FlatRV)
        and not has_other_data(read.mean)
    )
    if complete and mean_is_flat and not uses_mean and read.bounds is None:
        raise ValueError(
            f"the posterior is improper: {read.mean.name!r} has a flat prior and no release "
            f"of {read.name!r} depends on their mean. Give {read.mean.name!r} a proper prior such "
            f"as pm.Normal"
        )
    sources = nearest_rvs([read.variance])
    if len(sources) != 1 or not isinstance(sources[0].owner.op, FlatRV | HalfFlatRV):
        return
    [spread] = sources
    law = power_law(read.variance, spread)
    if law is None or has_other_data(spread):
        return
    _, k = law
    if k <= 0 or math.isinf(k):
        raise ValueError(
            f"the posterior is improper: a flat prior on {spread.name!r} puts the density 1/v (or "
            f"more) on the variance v of {read.name!r} near zero, where a noisy release does not "
            f"rule anything out. Use a uniform prior on the variance (pm.HalfFlat, n >= 4) "
            f"or a proper one such as pm.InverseGamma"
        )
    if read.bounds is not None:
        return  # the feasible region is bounded
    informed_by_mean = not mean_is_flat and (uses_mean or not complete)
    d = (read.n - 1 if uses_variance or not complete else 0) + informed_by_mean
    if d <= 2 / k:
        needed = math.floor(2 / k) + 2 - informed_by_mean
        remedy = (
            f"n >= {needed} records with a released variance"
            if not (uses_variance and complete)
            else f"n >= {needed} records"
        )
        raise ValueError(
            f"the posterior is improper: the flat prior on {spread.name!r} needs {remedy}; "
            f"{read.name!r} has n = {read.n}. Give {spread.name!r} a proper prior such as "
            f"pm.InverseGamma, or state bounds=; if other data inform it, declare them before the "
            f"release"
        )


# --- Regressions ----------------------------------------------------------------------------------


def check_proper_rows(reading: Reading, rows: Rows) -> None:
    """Refuse improper posteriors of regressions, where the released sums of y show them.

    If y is in them to the first power only, K sums of y and of its products with other columns
    depend on its coefficients through K linear forms, given the other columns, and their density
    falls like v^(-K/2) in the variance v of y.

    Entries that are not linear in sums, bounds of the records, and other data on them or on a
    parameter may make the posterior proper: nothing is refused then.
    """
    known = {*rows.records, *(release.rv for release in rows.releases)}
    if any(record_bounds(release.rv, rows.records) for release in rows.releases) or any(
        child not in known for rv in rows.records for child in children(reading, rv)
    ):
        return
    try:
        released = [entry for release in rows.releases for entry in release.linear()]
    except Declined:
        return
    starts = itertools.accumulate((link.width for link in rows.links), initial=0)
    for link, column in zip(rows.links, starts, strict=False):
        if any(child in rows.records for child in children(reading, link.rv)):
            continue  # another column depends on it
        with_column = [
            monomials for entry in released if (monomials := {m for m in entry if column in m})
        ]
        powers = set().union(*with_column)
        if any(power.count(column) > 1 for power in powers):
            continue
        if link.coefficients is not None and link.sigma is not None:
            forms = min(len(powers), len(with_column))
            _check_coefficients(reading, rows, link, column, powers, forms)
            _check_spread(reading, link, forms)


def _is_flat(reading: Reading, rv: TensorVariable, link: Link, laws: type | tuple) -> bool:
    """Whether a variable has a flat prior, and the law of these records alone depends on it."""
    try:
        check_transform(reading.model, rv)  # a transform may bound a flat variable
    except NotImplementedError:
        return False
    return isinstance(rv.owner.op, laws) and children(reading, rv) == [link.rv]


def _check_coefficients(
    reading: Reading, rows: Rows, link: Link, column: int, powers: set, forms: int
) -> None:
    """Refuse flat coefficients along which the likelihood falls too slowly.

    With more coefficients than linear forms it is constant along a line. A single form n a + b S,
    S a sum of a Normal column, leaves a flat b the density 1/b: noise does not rule out S = 0.
    """
    assert link.coefficients is not None
    sources = nearest_rvs([c for c in link.coefficients if isinstance(c, Variable)])
    flat = [
        rv
        for rv in sources
        if _is_flat(reading, rv, link, FlatRV) and not depends_on(link.sigma, rv)
    ]
    entries: list[tuple[TensorVariable, tuple[int, ...]]] = []
    try:
        polynomials = [_in_entries(c, flat, entries) for c in link.coefficients]
    except Declined:
        return
    if not entries or any(degree(p) > 1 for p in polynomials):
        return
    touched = [k for k, p in enumerate(polynomials) if degree(p)]
    if len(entries) == forms == 1:
        # The column whose sum multiplies the only flat coefficient.
        [power] = powers if len(powers) == 1 else [()]
        factors = [j - 1 for j in touched if j] + [j for j in power if j != column]
        mechanisms = {type(release.mechanism) for release in rows.releases}
        normal = mechanisms <= {LaplaceMechanism, GaussianMechanism} and power and len(touched) == 1
        if not normal or len(factors) != 1 or not _is_normal(rows, factors[0]):
            return
    elif len(entries) <= forms:
        return
    y = link.rv.name
    names = ", ".join(repr(_entry_name(*entry)) for entry in entries)
    needed = [tuple(sorted((*([k - 1] if k else []), column))) for k in touched]
    missing = [" · ".join(rows.labels[j] for j in power) for power in needed if power not in powers]
    advice = (
        f"Release the sum of {' and that of '.join(missing)} too"
        if missing
        else f"Release more sums of {y!r} and its products"
    )
    raise ValueError(
        f"the posterior is improper: the coefficients {names} of {y!r} have flat priors, and the "
        f"releases say too little of them. {advice}, or give a proper prior such as pm.Normal to "
        f"{names}"
    )


def _in_entries(coefficient, flat: Sequence[TensorVariable], entries: list) -> Polynomial:
    """Read a coefficient as a polynomial in entries of flat variables; append new `entries`."""

    def leaf(variable: Variable) -> Polynomial | None:
        if not set(flat) & set(nearest_rvs([variable])):
            return constant(variable)
        entry = entry_of(variable)
        if entry is None or entry[0] not in flat:
            return None
        if entry not in entries:
            entries.append(entry)
        return {(entries.index(entry),): 1.0}

    if not isinstance(coefficient, Variable):
        return constant(coefficient)
    return read_polynomial(coefficient, leaf)


def _entry_name(rv: TensorVariable, index: tuple[int, ...]) -> str:
    return f"{rv.name}[{', '.join(map(str, index))}]" if index else str(rv.name)


def _is_normal(rows: Rows, column: int) -> bool:
    """Whether a column of a row is Normal, given those before it."""
    ends = itertools.accumulate(link.width for link in rows.links)
    link = next(link for link, end in zip(rows.links, ends, strict=True) if column < end)
    return link.root is not None


def _check_spread(reading: Reading, link: Link, forms: int) -> None:
    """Refuse a flat spread: the likelihood of K forms falls like v^(-K/2) in the variance v."""
    assert link.sigma is not None
    variance = link.sigma**2
    sources = nearest_rvs([variance])
    if len(sources) != 1 or not _is_flat(reading, sources[0], link, (FlatRV, HalfFlatRV)):
        return
    positive = isinstance(sources[0].owner.op, HalfFlatRV)
    law = power_law(variance, sources[0], positive=positive)
    if law is None:
        return
    scale_free = law[1] <= 0 or math.isinf(law[1])  # the density 1/v near zero, as in `_check`
    if scale_free or forms <= 2 / law[1]:
        y = link.rv.name
        remedy = "" if scale_free else f", or release ({y}**2).sum() too"
        raise ValueError(
            f"the posterior is improper: {sources[0].name!r} in the variance of {y!r} has a flat "
            f"prior, and no release holds a sum of {y} · {y}. Give {sources[0].name!r} a proper "
            f"prior such as pm.InverseGamma{remedy}"
        )
