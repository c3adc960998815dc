"""Draw new rows of several columns from the posterior predictive."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import scipy
import xarray as xr
from numpy.typing import ArrayLike

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.draws import per_draw
from pymc_dp.graphs.registry import Registry
from pymc_dp.mechanisms.release import record_bounds
from pymc_dp.reading.columns import Link, read_links
from pymc_dp.reading.groups import Records
from pymc_dp.reading.model import parents, releases

NEW_ROWS: Registry[type, Callable[..., xr.Dataset]] = Registry()
"""What draws rows of a variable that stands for them, by its op: ``(rv, posterior, size, rng)``."""


def draw_normal(rng, mean, sd, shape, bounds=None) -> np.ndarray:
    """Draw from a Normal, truncated to bounds where there are any."""
    if bounds is None:
        return mean + sd * rng.standard_normal(shape)
    low, high = ((b - mean) / sd for b in bounds)
    return scipy.stats.truncnorm.rvs(low, high, loc=mean, scale=sd, size=shape, random_state=rng)


def predict_rows(
    model: pm.Model,
    block: Records,
    posterior: xr.Dataset,
    size: int | None,
    fixed: Mapping[str, ArrayLike],
    rng: np.random.Generator,
) -> xr.Dataset:
    """Draw the variables of new rows one after the other, each given the variables before it.

    A variable with bounds is a Normal truncated to them.
    """
    links = read_links(block)
    bounds = _bounds(model, block)
    held, size = _held(links, size, fixed, bounds)
    dims = posterior.sizes["chain"], posterior.sizes["draw"]
    before = np.empty((*dims, size, 0))
    drawn = {}
    coords: dict[str, Any] = {"chain": posterior["chain"], "draw": posterior["draw"]}
    for link in links:
        name = link.rv.name
        row_dims = (
            ["new_record"] if link.rv.type.ndim == 1 else ["new_record", _column(model, link)]
        )
        if name in held:
            values = held[name]
            shown = values[:, 0] if len(row_dims) == 1 else values
            coords[name] = xr.DataArray(shown, dims=row_dims)
        else:
            values = _draw(link, posterior, before, bounds.get(name), rng)
            shown = values[..., 0] if len(row_dims) == 1 else values
            drawn[name] = (["chain", "draw", *row_dims], shown)
        if len(row_dims) > 1 and row_dims[1] in model.coords:
            coords[row_dims[1]] = list(model.coords[row_dims[1]])
        values = np.broadcast_to(values, (*dims, size, link.width))
        before = np.concatenate([before, values], axis=-1)
    return xr.Dataset(drawn, coords)


def _column(model: pm.Model, link: Link) -> str:
    """Return the name of the second dimension of a matrix variable."""
    variable_dims = model.named_vars_to_dims.get(link.rv.name)
    return (variable_dims[1] if variable_dims else None) or f"{link.rv.name}_dim_1"


def _bounds(model: pm.Model, block: Records) -> dict[str, tuple[float, float]]:
    """Return the bounds that releases state, by the name of the variable."""
    bounds: dict[str, tuple[float, float]] = {}
    for release in releases(model):
        stated_bounds = record_bounds(release, block.records)
        bounds |= {rv.name: ends for rv, ends in stated_bounds.items()}
    return bounds


def _draw(link: Link, posterior: xr.Dataset, before: np.ndarray, bounds, rng) -> np.ndarray:
    """Draw one variable of new rows given the columns before it."""
    if link.intercept is None or link.slope is None or link.root is None:
        law = type(link.rv.owner.op).__name__.removesuffix("RV")
        raise Declined(
            f"the records {link.rv.name!r} follow {law}: only Normal records are drawn. Write "
            f"given={{{link.rv.name!r}: values}} for new rows with these values"
        )
    width, q = link.width, before.shape[-1]
    parts = [link.intercept, link.slope.ravel(), link.root.ravel()]
    numbers = per_draw(posterior, pt.concatenate(parts)).reshape(*before.shape[:2], -1)
    intercept, slope, root = np.split(numbers, [width, width * (1 + q)], axis=-1)
    slope = slope.reshape(*before.shape[:2], width, q)
    root = root.reshape(*before.shape[:2], width, width)
    mean = intercept[:, :, None] + before @ np.swapaxes(slope, -1, -2)
    if bounds is not None:  # there is a single column
        return draw_normal(rng, mean, np.abs(root), mean.shape, bounds)
    return mean + rng.standard_normal(mean.shape) @ np.swapaxes(root, -1, -2)


def _held(
    links: tuple[Link, ...],
    size: int | None,
    fixed: Mapping[str, ArrayLike],
    bounds: Mapping[str, tuple[float, float]],
) -> tuple[dict[str, np.ndarray], int]:
    """Check the fixed values; return them, (rows, width) each, and the number of new rows."""
    by_name = {link.rv.name: link for link in links}
    unknown = [name for name in fixed if name not in by_name]
    if unknown:
        raise ValueError(
            f"given= names {unknown[0]!r}: the variables of a row are "
            f"{', '.join(repr(name) for name in by_name)}"
        )
    if len(fixed) == len(links):
        raise ValueError("given= holds every variable of a row: nothing is left to draw")
    lengths = {} if size is None else {"size": size}
    held = {}
    for name, value in fixed.items():
        link = by_name[name]
        for parent in parents(link.rv):
            if parent.name in by_name and parent.name not in fixed:
                raise Declined(
                    f"given= holds {name!r}, which depends on {parent.name!r}: variables are drawn "
                    f"given those that they depend on, so give {parent.name!r} too"
                )
        values = np.asarray(value, dtype="float64")
        core = link.rv.type.ndim - 1
        if values.ndim not in (core, core + 1) or (core and values.shape[-1] != link.width):
            wanted = f"(rows, {link.width}) or ({link.width},)" if core else "(rows,) or a number"
            raise ValueError(
                f"given= holds {name!r} with shape {values.shape}: its shape has to be {wanted}"
            )
        if not np.isfinite(values).all():
            raise ValueError(f"given= holds {name!r} with values that are not finite")
        low, high = bounds.get(name, (-np.inf, np.inf))
        if np.any((values < low) | (values > high)):
            raise ValueError(f"given= holds {name!r} outside of its bounds [{low:g}, {high:g}]")
        if values.ndim > core:
            lengths[f"given {name!r}"] = len(values)
        held[name] = values if core else values[..., None]
    if len(set(lengths.values())) > 1:
        lengths_in_words = ", ".join(f"{name}: {length}" for name, length in lengths.items())
        raise ValueError(
            f"the number of new rows is not clear ({lengths_in_words}): write the same"
        )
    rows = next(iter(lengths.values()), 1)
    held = {name: np.broadcast_to(v, (rows, by_name[name].width)) for name, v in held.items()}
    return held, rows
