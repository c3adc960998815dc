"""`explain`: what the package reads in a model, and how it would sample it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from html import escape

import pymc as pm
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.values import nearest_rvs
from pymc_dp.ladder.collapse import collapsed, dropped_deterministics, what_goes
from pymc_dp.laws.integrated import IntegratedReleaseRV
from pymc_dp.laws.sum_law import LAWS, law_of, notes
from pymc_dp.mechanisms.html import html_table
from pymc_dp.mechanisms.release import record_bounds
from pymc_dp.reading.factors import read_block
from pymc_dp.reading.fits import check_fits
from pymc_dp.reading.frozen import as_model
from pymc_dp.reading.groups import blocks, record_groups
from pymc_dp.reading.kept import kept
from pymc_dp.reading.model import Reading, mechanism_of, privatized, release_statistic, releases
from pymc_dp.reading.record_lengths import record_length, size_of
from pymc_dp.reading.records import looked_up
from pymc_dp.reading.tags import is_tagged
from pymc_dp.routes import Plan, Route, routes
from pymc_dp.routes.compiling import by_preference, compiling_seconds
from pymc_dp.routes.latent_gaussian import unnormalised
from pymc_dp.step_methods import choose_steps, with_present_tags

_AFRESH = "computed afresh"


@dataclass
class Explanation:
    """Tables that print as text, in rich, and as HTML in Jupyter.

    Attributes
    ----------
    tables : list of (title, columns, rows)
        The content, as strings.
    notes : list of str
        Sentences that stand below the tables.
    """

    tables: list[tuple[str, list[str], list[list[str]]]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render with rich."""
        for title, columns, rows in self.tables:
            table = Table(title=title, title_justify="left")
            for column in columns:
                table.add_column(column, overflow="fold")
            for row in rows:
                table.add_row(*(Text(cell) for cell in row))
            yield table
        yield from map(Text, self.notes)

    def __str__(self) -> str:
        """Render as plain text, whatever the console: Jupyter asks for the text beside the HTML."""
        console = Console(width=110, color_system=None, force_terminal=False, force_jupyter=False)
        with console.capture() as capture:
            console.print(self)
        return capture.get()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        parts = [html_table(title, rows, columns) for title, columns, rows in self.tables]
        return "".join(parts + [f"<p>{escape(note)}</p>" for note in self.notes])


def explain(
    model: pm.Model | None = None, *, details: bool = False, rules: bool = False
) -> Explanation:
    """Explain a model: its releases, the routes to sample it, and the steps of its variables.

    Nothing as long as the records is evaluated.

    Parameters
    ----------
    model : pm.Model, optional
        The model of the context by default.
    details : bool, default False
        Whether to list every route, and the steps. By default only two routes are listed: the one
        that `dp.sample` takes, and of the faster ones that are shut the one nearest to open.

    rules : bool, default False
        Whether to list the laws of what is released of records, in the order in which they are
        asked, and which records each takes. No model is needed for that.

    Returns
    -------
    Explanation
        Tables: releases (the statistic as it was read, noise, bounds), routes of `dp.sample` (open
        or why not, cost of a sweep; densities are computed when a route is taken, and may shut
        it); with `details`, or where `dp.sample` takes them, the steps of `dp.steps` on the rungs
        with latent variables.

    Raises
    ------
    ValueError
        No release in the model.

    Examples
    --------
    >>> import pymc as pm, pymc_dp as dp
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu", 30, 20)
    ...     lead = pm.Normal("lead", mu, 17, shape=43)
    ...     z = dp.PrivateObservation("z", lead.mean(), dp.LaplaceMechanism(9.3), observed=34.3)
    >>> said = dp.explain(model)
    >>> [title for title, columns, rows in said.tables]
    ['Releases', 'Routes']
    >>> said.tables[0][2]
    [['z', 'mean of lead (n = 43)', 'LaplaceMechanism(scale=9.3)', '-']]
    """
    if rules:
        return _rules()
    with kept(with_present_tags(as_model(model, "dp.explain(model)"))) as reading:
        return _explained(reading, details)


def _rules() -> Explanation:
    result = Explanation()
    rows = [
        [phase.name.lower().replace("_", " "), law.__name__, "; or ".join(map(str, takes))]
        for (phase, law), takes in LAWS.items()
    ]
    result.tables.append(("Laws of released statistics", ["phase", "law", "records"], rows))
    return result


def _explained(reading: Reading, details: bool) -> Explanation:
    model = reading.model
    check_fits(map(release_statistic, releases(model)))
    result = Explanation()
    rows = [_release_row(reading, release) for release in releases(model)]
    for rv in model.basic_RVs:
        if isinstance(rv.owner.op, IntegratedReleaseRV):
            integrated = ", ".join(rv.owner.op.law.names) or "the records"
            rows.append([rv.name, f"integrated out: {integrated}", _short(mechanism_of(rv)), "-"])
    if not rows:
        raise ValueError("there is nothing to explain: the model has no dp.PrivateObservation")
    result.tables.append(("Releases", ["release", "statistic", "mechanism", "bounds"], rows))

    plans, taken = routes(reading), None
    if not all(isinstance(plan, Declined) for _, plan in plans) or privatized(reading):
        table = [
            (route, 0.0, str(plan))
            if isinstance(plan, Declined)
            else (route, route.priority(plan.rate), "")
            for route, plan in plans
        ]
        ordered = by_preference([(p, r) for r, p in plans if not isinstance(p, Declined)])
        plan_taken, taken = ordered[0] if ordered else (None, None)
        takes = "open, dp.sample takes it"
        if plan_taken and taken and (seconds := compiling_seconds(taken, plan_taken)):
            takes += f": compiles once, for some {seconds:.0f} s"
        rows = []
        told_reasons: dict[str, str] = {}
        slow = any(_AFRESH in row[1] for row in result.tables[0][2])
        listed = [route for route, _, _ in table]
        if not details:
            better = nearest_better(plans, plan_taken.rate if plan_taken else 0.0)
            listed = [route for route in (taken, better) if route is not None] or listed
        for route, _, reason in sorted(table, key=lambda entry: -entry[1]):
            if route not in listed:
                continue
            state = reason if reason else (takes if route is taken else "open")
            if reason in told_reasons:
                state = f"as for {told_reasons[reason]}"
            elif reason:
                told_reasons[reason] = route.name
            cost = "does not depend on n"
            if route.rung == "records":
                cost = "grows with n²" if slow else "grows with n"
            rows.append([route.rung, route.name, state, cost])
        if unlisted := len(table) - len(rows):
            rows.append(
                ["", f"{unlisted} others", "dp.explain(model, details=True) lists them", ""]
            )
        result.tables.append(("Routes", ["rung", "route", "state", "cost of a sweep"], rows))
        for route, plan in plans:
            if isinstance(plan, Declined) or route is not taken:
                continue
            if names := ", ".join(map(repr, plan.moved())):
                result.notes.append(
                    f"The variables of the model stay as they are written, and dp.sample moves "
                    f"{names} in other coordinates, which suit the data, so that it does not "
                    f"matter whether they are written centred or not: see "
                    f"docs/reference/latent_gaussian.md"
                )

    rows = []
    rungs = {"records" if privatized(reading) else "as written": reading}
    if privatized(reading):
        with suppress(Declined, ValueError):  # the table of routes has the reason
            rungs["statistics"] = collapsed(reading, "statistics")
    for name, on in rungs.items():
        chosen = choose_steps(on)
        rows += [
            [name, rv.name, chosen[rv].__name__ if rv in chosen else "NUTS"]
            for rv in on.model.free_RVs
        ]
    if details or taken is None or taken.steps:
        result.tables.append(("Steps of dp.steps", ["rung", "variable", "step"], rows))

    if effects := looked_up(reading):
        result.notes.append(
            f"Parameters, not records: {', '.join(repr(rv.name) for rv in effects)}. Each released "
            f"entry looks up one of their entries by an index; a record has a released entry to "
            f"itself, or a part in a sum. Where a table speaks of records of these variables, it "
            f"means their entries."
        )
    result.notes += [*notes(reading), *unnormalised(reading)]
    with suppress(Declined, ValueError):  # the table of routes has the reason
        result.notes += what_goes(reading)
    dropped = dropped_deterministics(reading)
    if dropped:
        result.notes.append(
            "Collapsed models drop these Deterministics of the records: "
            + ", ".join(d.name for d in dropped)
        )
    return result


def nearest_better(
    plans: Sequence[tuple[Route, Plan | Declined]], rate: float = 0.0
) -> Route | None:
    """Return the shut route that is nearest to open, among those that are usually faster."""
    faster = [
        (plan.near, route.usual_rate, route)
        for route, plan in plans
        if isinstance(plan, Declined) and plan.near >= 1 and route.usual_rate > rate
    ]
    return max(faster, key=lambda entry: entry[:2], default=(0, 0.0, None))[2]


def _release_row(reading, release) -> list[str]:
    statistic = _statistic(reading, release)
    records = [rv for group in record_groups(reading) for rv in group.records]
    stated = record_bounds(release, records)
    bounds = ", ".join(f"{rv.name} in [{a:g}, {b:g}]" for rv, (a, b) in stated.items()) or "-"
    return [release.name, statistic, _short(mechanism_of(release)), bounds]


def _statistic(reading: Reading, release) -> str:
    """Describe the statistic of a release: by the law of its records, else by its sums."""
    sources = nearest_rvs([release_statistic(release)])
    names = ", ".join(rv.name for rv in sources)
    for group in record_groups(reading):
        if sources and set(sources) <= set(group.records):
            with suppress(Declined, ValueError):
                description = law_of(reading, group).describe(release)
                with suppress(ValueError):
                    return f"{description} (n = {record_length(group.records[0])})"
                return description
    tagged = tuple(rv for rv in reading.model.free_RVs if is_tagged(rv) and size_of(rv) is None)
    parts = []
    for block in blocks(reading, tagged):
        if release not in block.factors:
            continue
        single = replace(block, factors=(release,))
        try:
            count = len(read_block(reading, single).maps)
            what = f"a function of {count} sum{'s' if count > 1 else ''} over the records"
        except Declined as error:
            what = f"{_AFRESH} for every record, because {error}"
        parts.append(f"of {block.name}: {what} (n = {block.n})")
    return "; ".join(parts) or f"a statistic of {names}"


def _short(mechanism) -> str:
    """Write a mechanism with four significant digits."""
    return re.sub(r"\d+\.\d{4,}(e[-+]\d+)?", lambda m: f"{float(m[0]):.4g}", repr(mechanism))
