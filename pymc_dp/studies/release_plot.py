"""A picture of releases: published values beside their predictions and confidential values."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import arviz_base
import numpy as np
import pymc as pm
import xarray as xr
from arviz_plots import PlotCollection, visuals
from arviz_plots.plot_collection import backend_from_object
from xarray import DataTree

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.draws import per_draw
from pymc_dp.graphs.values import known_value
from pymc_dp.laws.integrated import all_releases
from pymc_dp.laws.sum_law import change
from pymc_dp.mechanisms.release import PrivateReleaseRV
from pymc_dp.reading.groups import record_groups
from pymc_dp.reading.kept import kept
from pymc_dp.reading.model import mechanism_of, release_statistic, releases

# Height within a row, and color, of each kind of mark.
_KINDS = {
    "prior predictive": (0.3, "gray"),
    "posterior predictive": (0.1, "C0"),
    "confidential": (-0.1, "C1"),
    "published": (0.0, "C3"),
}


def plot_release(
    idata: DataTree,
    *,
    model: pm.Model | None = None,
    var_names: str | Sequence[str] | None = None,
    coords: Mapping[str, Any] | None = None,
    prob: float | None = None,
    most: int = 60,
    backend: str | None = None,
    **pc_kwargs: Any,
) -> PlotCollection:
    r"""Draw published values beside what a model says of them, a row for each entry.

    A diamond is the published value :math:`z`; "(withheld)" stands beside the label of an entry
    that was not published, with how often the posterior predictive withholds it. Lines are
    central intervals, with a dot at the median, of

    - the prior predictive :math:`p(z)`, of group ``prior_predictive``;
    - the posterior predictive :math:`p(\tilde z \mid z)`, of group ``posterior_predictive``;
    - the confidential value that noise was added to, :math:`p(s \mid z)`, of group ``posterior``.

    What `idata` does not hold is not drawn. The predictive of an entry that may be withheld is
    that of the values that are published.

    Parameters
    ----------
    idata : DataTree
        Result of `sample`, with ``observed_data``.
    model : pm.Model, optional
        The model that was sampled. It says which variables are releases, and what the confidential
        value is where `recover` has statistics of the records, ``x_mean`` say. Without it all that
        was observed is drawn, and ``<release>_confidential``.
    var_names : str or sequence of str, optional
        Releases to draw; all of them by default.
    coords : mapping, optional
        Labels of some dims, those to draw: entries of one scale, say.
    prob : float, optional
        Mass of the intervals; ArviZ's ``rcParams["stats.ci_prob"]`` by default.
    most : int, default 60
        Most entries that are drawn.
    backend : str, optional
        Plotting backend of ArviZ.
    **pc_kwargs
        Further arguments of `arviz_plots.PlotCollection.grid`.

    Returns
    -------
    arviz_plots.PlotCollection
        A panel for each release, in the units of its values. A list of unlike statistics, as a mean
        and a variance, has a panel for each of them.

    Raises
    ------
    TypeError
        `idata` is no DataTree.
    ValueError
        There is nothing to draw, a release that is not there, or too many entries.

    Examples
    --------
    >>> import pymc as pm, pymc_dp as dp
    >>> with pm.Model() as model:
    ...     x = pm.Normal("x", pm.Normal("mu", 50, 10), 8, shape=100)
    ...     z = dp.PrivateObservation("z", x.mean(), dp.GaussianMechanism(1.0), observed=47.9)
    >>> short = {"draws": 100, "tune": 100, "chains": 2, "progressbar": False}
    >>> idata = dp.recover(model, dp.sample(model, random_seed=1, **short), random_seed=2)
    >>> figure = dp.plot_release(idata, model=model)
    >>> figure.viz["interval"]["z"]["kind"].values.tolist()
    ['confidential', 'published']

    With the predictions, too:

    >>> more = {"extend_inferencedata": True, "progressbar": False, "random_seed": 3}
    >>> idata = pm.sample_posterior_predictive(idata, model, **more)
    >>> figure = dp.plot_release(idata, model=model)
    """
    prob = arviz_base.rcParams["stats.ci_prob"] if prob is None else prob
    if not 0 < prob < 1:
        raise ValueError(f"prob={prob}: the mass of an interval is between 0 and 1")
    if not isinstance(idata, DataTree):
        raise TypeError(f"idata must be the result of dp.sample, a DataTree; got {type(idata)}")
    held = {str(group): node.to_dataset() for group, node in idata.children.items()}
    observed = held.get("observed_data", xr.Dataset())
    withheld = {} if model is None else _withheld(model)
    read = model is not None and "posterior" in held
    statistics = _statistics(model, held["posterior"]) if read else {}
    names = [name for name in map(str, observed) if model is None or name in withheld]
    if var_names is not None:
        wanted = [var_names] if isinstance(var_names, str) else list(var_names)
        unknown = [name for name in wanted if name not in names]
        if unknown:
            known = ", ".join(map(repr, names)) or "none"
            raise ValueError(f"var_names: there is no release {unknown[0]!r} in idata, but {known}")
        names = wanted
    if not names:
        raise ValueError(
            "idata has no published values: its group observed_data, as dp.sample makes it, has to "
            "hold a release"
        )
    known_dims = {dim for name in names for dim in observed[name].dims}
    if unknown := [dim for dim in coords or {} if dim not in known_dims]:
        known = ", ".join(sorted(map(repr, known_dims))) or "none"
        raise ValueError(f"coords: the releases have no dim {unknown[0]!r}, but {known}")
    drawn: dict[str, xr.Dataset] = {}
    for name in names:
        value = observed[name]
        panel = xr.Dataset(_intervals(held, name, value, statistics.get(name), prob))
        hidden = value.copy(data=withheld.get(name, np.isnan(value.to_numpy())))
        panel = panel.assign({"published": value.where(~hidden), "withheld": hidden})
        here = {dim: label for dim, label in (coords or {}).items() if dim in value.dims}
        panel = panel.sel({d: [x] if np.ndim(x) == 0 else x for d, x in here.items()})
        drawn |= _panels(name, panel)
    count = sum(panel["published"].size for panel in drawn.values())
    if count > most:
        raise ValueError(
            f"{count} entries are more than most={most}: choose some by var_names= or "
            f"coords={{dim: labels}}, or write most={count}"
        )
    kinds = [kind for kind in _KINDS if any(kind in panel for panel in drawn.values())]
    if kinds == ["published"]:
        raise ValueError(
            f"idata has no more than the published values of {', '.join(map(repr, names))}. Add "
            f"what is drawn beside them: pm.sample_posterior_predictive(idata, model=model, "
            f"extend_inferencedata=True), or idata = dp.recover(model, idata), and write "
            f"model=model, which says how a statistic is computed from the records"
        )
    return _picture(drawn, kinds, backend, pc_kwargs)


def _withheld(model: pm.Model) -> dict[str, np.ndarray]:
    """Return which entries of releases were withheld."""
    observed = [rv for rv in all_releases(model) if rv in model.observed_RVs]
    values = {rv: known_value(model.rvs_to_values[rv]) for rv in observed}
    return {
        str(rv.name): np.full(v.shape, known_value(mechanism_of(rv).is_withheld(v)), bool)
        for rv, v in values.items()
        if v is not None
    }


def _statistics(model: pm.Model, posterior: xr.Dataset) -> dict[str, np.ndarray]:
    """Return posterior draws of the confidential statistic of each release."""
    statistics: dict[str, np.ndarray] = {}
    with kept(model) as reading:
        written = [(rv.name, rv) for rv in releases(reading.model)]
        for group in record_groups(reading):
            with suppress(Declined, ValueError):  # the records have no named statistics
                on = change(reading, group, "statistics")
                for name, (rv, _) in {**on.transforms, **on.added}.items():
                    rv.name = name
                written += [(old.name, rv) for old, rv in on.replaced.items()]
        for name, rv in written:
            op = rv.owner.op
            if isinstance(op, PrivateReleaseRV) and not op.mechanism.statistic_ndim:
                with suppress(ValueError):  # the posterior lacks a variable of the statistic
                    statistics[name] = per_draw(posterior, release_statistic(rv))
    return statistics


def _intervals(
    held: dict[str, xr.Dataset],
    name: str,
    value: xr.DataArray,
    statistic: np.ndarray | None,
    prob: float,
) -> dict[str, xr.DataArray]:
    """Return the ends of intervals and the medians, by kind, and the share that is withheld."""
    draws: dict[str, np.ndarray] = {} if statistic is None else {"confidential": statistic}
    for kind, group, variable in (
        ("prior predictive", "prior_predictive", name),
        ("posterior predictive", "posterior_predictive", name),
        ("confidential", "posterior", f"{name}_confidential"),
    ):
        if variable in held.get(group, ()):
            draws[kind] = held[group][variable].to_numpy()
    intervals = {}
    for kind, sample in draws.items():
        sample = sample.reshape(-1, *value.shape).astype("float64")
        with warnings.catch_warnings():  # all draws of an entry may be withheld
            warnings.filterwarnings("ignore", message="All-NaN")
            ends = np.nanquantile(sample, [(1 - prob) / 2, 0.5, (1 + prob) / 2], axis=0)
        intervals[kind] = xr.DataArray(ends, value.coords, ("end", *value.dims))
        if kind == "posterior predictive":
            intervals["share"] = value.copy(data=np.isnan(sample).mean(axis=0))
    return intervals


def _panels(name: str, panel: xr.Dataset) -> dict[str, xr.Dataset]:
    """Return the panels of a release: one for each entry if unlabelled widths differ greatly."""
    dims = panel["published"].dims
    ends = [panel[kind].to_numpy() for kind in _KINDS if kind != "published" and kind in panel]
    if ends and len(dims) == 1 and str(dims[0]).startswith(f"{name}_dim_"):
        widths = np.max([high - low for low, _, high in ends], axis=0)
        if widths.max() > 20 * widths.min():
            entries = ((i, panel.sel({dims[0]: i}, drop=True)) for i in panel[dims[0]].values)
            return {f"{name}[{i}]": entry for i, entry in entries}
    return {name: panel}


def _picture(
    drawn: dict[str, xr.Dataset], kinds: list[str], backend: str | None, pc_kwargs: dict[str, Any]
) -> PlotCollection:
    axes = {"kind": kinds, "plot_axis": ["x", "y"]}
    lines, points, sizes = xr.Dataset(coords=axes), xr.Dataset(coords=axes), []
    for name, panel in drawn.items():
        row = -np.arange(panel["published"].size, dtype="float64")
        sizes.append(row.size + 1)
        gap = np.full(row.size, np.nan)
        line = np.full((len(kinds), 2, 3 * row.size), np.nan)
        point = np.full((len(kinds), 2, row.size), np.nan)
        for i, kind in enumerate(kinds):
            if kind in panel:
                ends = panel[kind].to_numpy().reshape(-1, row.size)
                low, middle, high = (gap, *ends, gap) if kind == "published" else ends
                height = row + _KINDS[kind][0]
                # One line for all entries, with gaps.
                line[i] = np.stack([low, high, gap], 1).ravel(), height.repeat(3)
                point[i] = middle, height
        lines[name] = ("kind", "plot_axis", f"{name} line"), line
        points[name] = ("kind", "plot_axis", f"{name} point"), point
    figure: dict[str, Any] = {"height_ratios": sizes, "figsize": (8.0, 1.0 + 0.35 * sum(sizes))}
    if (backend or arviz_base.rcParams["plot.backend"]) == "matplotlib":
        figure["layout"] = "constrained"  # legends are placed outside the axes
    look = {
        "aes": {"color": ["kind"], "marker": ["kind"]},
        "color": [_KINDS[kind][1] for kind in kinds],
        "marker": ["D" if kind == "published" else "o" for kind in kinds],
        "figure_kwargs": figure | pc_kwargs.pop("figure_kwargs", {}),
    }
    pc = PlotCollection.grid(lines, rows=["__variable__"], backend=backend, **(look | pc_kwargs))
    pc.map(visuals.line_xy, "interval", data=lines, width=2, ignore_aes={"marker"})
    pc.map(visuals.scatter_xy, "point", data=points)
    for name, panel in drawn.items():
        target = pc.get_target(name, {})
        plot = backend_from_object(target)
        dims = map(str, panel["published"].dims)
        named = ", ".join(dim for dim in dims if not dim.startswith(f"{name}_dim_"))
        ticks = {-i: label for i, label in enumerate(_labels(panel)) if label}
        plot.yticks(list(ticks), list(ticks.values()), target)
        plot.ylim((0.6 - panel["published"].size, 0.6), target)
        plot.title(f"{name} ({named})" if named else name, target)
    pc.add_legend("kind", title="")
    return pc


def _labels(panel: xr.Dataset) -> list[str]:
    """Return the labels of a release's entries."""
    hidden = panel["withheld"]
    entries = itertools.product(*(hidden[dim].to_numpy() for dim in hidden.dims))
    share = panel.get("share", xr.full_like(hidden, np.nan, float)).to_numpy().ravel()
    labels = []
    for entry, is_hidden, s in zip(entries, hidden.to_numpy().ravel(), share, strict=True):
        said = "" if np.isnan(s) else f", {s:.0%} predicted"
        labels.append(", ".join(map(str, entry)) + f" (withheld{said})" * bool(is_hidden))
    return labels
