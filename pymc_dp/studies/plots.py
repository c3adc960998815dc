"""Pictures of studies, in ArviZ's style: each returns an `arviz_plots.PlotCollection`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import arviz_base
import arviz_plots
import numpy as np
import xarray as xr
from arviz_plots import PlotCollection, visuals

_TITLES = {
    "coverage": "coverage",
    "length": "mean interval length",
    "posterior_sd": "mean posterior sd",
    "rmse": "RMSE",
    "bias": "bias",
}
_AES = ("color", "linestyle", "marker")


def plot_coverage(
    study: xr.Dataset,
    *,
    x: str | None = None,
    quantities: Sequence[str] = ("coverage", "length", "rmse"),
    var_names: Sequence[str] | None = None,
    backend: str | None = None,
    **pc_kwargs: Any,
) -> PlotCollection:
    """Draw the results of a study against one axis of its grid.

    Bands are plus and minus two Monte Carlo standard errors, the grey line in the row of coverage
    is the nominal one.

    Parameters
    ----------
    study : xarray.Dataset
        Of `coverage` or `privacy_utility`.
    x : str, optional
        The axis, of numbers; the longest such axis if None. The others take color and linestyle.
    quantities : sequence of str
        The rows: "coverage", "length", "rmse", "posterior_sd" or "bias".
    var_names : sequence of str, optional
        The columns: entries of ``study.parameter``.
    backend : str, optional
        Plotting backend of ArviZ.
    **pc_kwargs
        Further arguments of `arviz_plots.PlotCollection.grid`.

    Returns
    -------
    PlotCollection
        Of ArviZ; ``.show()`` and ``.savefig(file)``.

    Raises
    ------
    ValueError
        A grid without an axis of numbers, an `x`, quantity or parameter that the study has not, or
        more than three axes besides `x`.

    Examples
    --------
    As `coverage` returns it, of one parameter at three levels:

    >>> import numpy as np
    >>> import xarray as xr
    >>> import pymc_dp as dp
    >>> levels = {"epsilon": [0.1, 1.0, 10.0], "parameter": ["mu"]}
    >>> names = ["coverage", "length", "rmse", "posterior_sd"]
    >>> numbers = np.array([[0.95], [0.9], [1.0]])
    >>> study = xr.Dataset({n: (tuple(levels), numbers) for n in names}, levels, {"prob": 0.95})
    >>> figure = dp.studies.plot_coverage(study)
    >>> dict(figure.viz["plot"].sizes)
    {'quantity': 3, 'parameter': 1}
    """
    axes = [str(d) for d in study["coverage"].dims if d != "parameter"]
    numeric = [d for d in axes if np.issubdtype(study[d].dtype, np.number) and study.sizes[d] > 1]
    if x is None and not numeric:
        raise ValueError(f"the grid of the study has no axis of numbers to draw against: {axes}")
    x = max(numeric, key=study.sizes.__getitem__) if x is None else x
    if x not in axes:
        raise ValueError(f"x={x!r}: the grid of the study has {', '.join(map(repr, axes))}")
    unknown = [q for q in quantities if q not in _TITLES]
    if unknown:
        raise ValueError(f"quantities: {unknown[0]!r} is none of {', '.join(_TITLES)}")
    if var_names is not None:
        unknown = [name for name in var_names if name not in study["parameter"]]
        if unknown:
            known = ", ".join(study["parameter"].values)
            raise ValueError(f"var_names: the study has no {unknown[0]!r}, but {known}")
        study = study.sel(parameter=list(var_names))
    further_axes = [d for d in axes if d != x and study.sizes[d] > 1]
    if len(further_axes) > len(_AES):
        raise ValueError(
            f"too many axes besides {x!r}: select values of {further_axes[-1]!r} first"
        )
    study = study.squeeze([d for d in axes if d not in (x, *further_axes)], drop=True).sortby(x)
    value = study[list(quantities)].to_dataarray("quantity")
    errors = {q: study.get(f"{q}_se", xr.zeros_like(study[q])) for q in quantities}
    error = xr.Dataset(errors).to_dataarray("quantity")
    pc_kwargs.setdefault("aes", dict(zip(_AES, ([d] for d in further_axes), strict=False)))
    figure = {"sharex": True} | pc_kwargs.pop("figure_kwargs", {})
    figure.setdefault("figsize", (4.2 * study.sizes["parameter"] + 1.5, 2.4 * len(quantities)))
    pc = PlotCollection.grid(
        xr.Dataset({"value": value}),
        cols=["parameter"],
        rows=["quantity"],
        backend=backend,
        figure_kwargs=figure,
        **pc_kwargs,
    )
    levels = study[x]
    plain = {} if further_axes else {"color": "C0"}
    low, high = value - 2 * error, value + 2 * error
    share = value["quantity"] == "coverage"
    low, high = low.where(~share, low.clip(min=0.0)), high.where(~share, high.clip(max=1.0))
    if "coverage" in quantities:
        nominal_level = xr.full_like(study["parameter"], study.attrs["prob"], dtype=float)
        nominal = xr.Dataset({"value": nominal_level})
        pc.map(
            visuals.hline, "nominal", data=nominal, coords={"quantity": "coverage"},
            ignore_aes="all", color="gray", alpha=0.6,
        )  # fmt: skip
    pc.map(
        visuals.fill_between_y, "band", x=levels, y_bottom=low, y_top=high, alpha=0.2,
        ignore_aes={"linestyle", "marker"}, **plain,
    )  # fmt: skip
    pc.map(visuals.line_xy, "line", x=levels, ignore_aes={"marker"}, **plain)
    pc.map(visuals.scatter_xy, "point", x=levels, ignore_aes={"linestyle"}, **plain)
    spread = float(levels.max() / levels.min()) if float(levels.min()) > 0 else 0.0
    if spread >= 10:
        pc.map(visuals.set_xscale, "scale", scale="log", ignore_aes="all", store_artist=False)
    for quantity in quantities:
        first = {"quantity": quantity, "parameter": study["parameter"].values[0]}
        pc.map(
            visuals.labelled_y, f"y_{quantity}", coords=first, text=_TITLES[quantity],
            ignore_aes="all",
        )  # fmt: skip
    for parameter in study["parameter"].values:
        top = {"quantity": quantities[0], "parameter": parameter}
        bottom = {"quantity": quantities[-1], "parameter": parameter}
        pc.map(visuals.labelled_title, f"t_{parameter}", coords=top, text=parameter, ignore_aes="all")  # fmt: skip  # noqa: E501
        pc.map(visuals.labelled_x, f"x_{parameter}", coords=bottom, text=x, ignore_aes="all")
    if further_axes:
        pc.add_legend(further_axes)
    return pc


def plot_privacy(study: xr.Dataset, **kwargs: Any) -> PlotCollection:
    """Draw interval width, error and coverage against the level of privacy.

    Parameters
    ----------
    study : xarray.Dataset
        Of `dp.studies.privacy_utility`.
    **kwargs
        As for `plot_coverage`.

    Returns
    -------
    PlotCollection
        Of ArviZ; ``.show()`` and ``.savefig(file)``.

    Raises
    ------
    ValueError
        As `plot_coverage`.

    Examples
    --------
    As `privacy_utility` returns it, of one parameter at three levels:

    >>> import numpy as np
    >>> import xarray as xr
    >>> import pymc_dp as dp
    >>> levels = {"epsilon": [0.1, 1.0, 10.0], "parameter": ["mu"]}
    >>> names = ["coverage", "length", "rmse", "posterior_sd"]
    >>> numbers = np.array([[0.95], [0.9], [1.0]])
    >>> study = xr.Dataset({n: (tuple(levels), numbers) for n in names}, levels, {"prob": 0.95})
    >>> figure = dp.plot_privacy(study)
    >>> figure.viz["plot"].sizes["quantity"]
    3
    """
    kwargs.setdefault("x", study.attrs.get("level"))
    kwargs.setdefault("quantities", ("length", "rmse", "coverage"))
    return plot_coverage(study, **kwargs)


plot_privacy_utility = plot_privacy


def plot_calibration(study: xr.Dataset, **kwargs: Any) -> PlotCollection:
    """Draw how far the ECDF of the probability integral transforms is from that of a uniform law.

    The p-value of ArviZ's test of uniformity is in the corner; points that speak against it are
    marked.

    Parameters
    ----------
    study : xarray.Dataset
        Of `calibration`; select a cell first if the grid has several.
    **kwargs
        Of `arviz_plots.plot_ecdf_pit`.

    Returns
    -------
    PlotCollection
        Of ArviZ; ``.show()`` and ``.savefig(file)``.

    Raises
    ------
    ValueError
        A study of another function, or of several cells.

    References
    ----------
    .. [1] S. Talts, M. Betancourt, D. Simpson, A. Vehtari, A. Gelman (2018). Validating Bayesian
       inference algorithms with simulation-based calibration.

    Examples
    --------
    As `calibration` returns it, of one parameter:

    >>> import numpy as np
    >>> import xarray as xr
    >>> import pymc_dp as dp
    >>> shares = (np.arange(50) + 0.5) / 50
    >>> data = {"pit": (("replicate", "parameter"), shares[:, None]), "ks": ("parameter", [0.01])}
    >>> study = xr.Dataset(data, {"parameter": ["mu"]})
    >>> figure = dp.studies.plot_calibration(study)
    >>> type(figure).__name__
    'PlotCollection'
    """
    if "ks" not in study:
        raise ValueError("a study of dp.studies.calibration is needed: it draws the truth")
    axes = [d for d in study["pit"].dims if d not in ("replicate", "parameter")]
    several = [d for d in axes if study.sizes[d] > 1]
    if several:
        raise ValueError(f"select one value of {several[0]!r}: study.sel({several[0]}=...)")
    pit = study["pit"].squeeze(axes, drop=True).transpose("replicate", "parameter")
    pit = pit.dropna("replicate")
    shares = {
        str(name): pit.sel(parameter=name).to_numpy()[None] for name in pit["parameter"].values
    }
    return arviz_plots.plot_ecdf_pit(arviz_base.from_dict({"prior_sbc": shares}), **kwargs)
