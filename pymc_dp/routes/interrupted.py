"""Ctrl-C returns the draws so far, from `pm.sample` and from compiled chains."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pymc as pm
from pymc.stats import log_density
from xarray import DataTree

from pymc_dp.graphs.draws import draws_stay
from pymc_dp.graphs.interrupts import Handler, is_beside_compiled
from pymc_dp.graphs.stages import DRAWING, stage
from pymc_dp.graphs.values import PLAIN_MODE

_log = logging.getLogger("pymc.dp")


def longest(lengths: Sequence[int]) -> tuple[list[int], int]:
    """Return the chains to keep, and a length to cut them to, so that most draws are kept.

    Raises
    ------
    KeyboardInterrupt
        No chain has a draw.
    """
    if not any(lengths):
        raise KeyboardInterrupt
    counts = np.asarray(lengths)
    length = max(lengths, key=lambda n: (n * int((counts >= n).sum()), -n))
    kept = np.flatnonzero(counts >= length).tolist()
    _log.warning(
        "Interrupted: %d draws of %d of %d chains are returned (they had %s)",
        length, len(kept), len(lengths), ", ".join(map(str, lengths)),
    )  # fmt: skip
    return kept, length


def sample(model: pm.Model, **kwargs: Any):
    """Call `pm.sample`; interrupted, return the draws so far.

    PyMC with cores=1 would go on to the next chain, and nutpie returns NaN for the missing draws.
    If there are no draws, KeyboardInterrupt is raised.
    """
    asked = kwargs.get("idata_kwargs") or {}
    densities = {k: asked[k] for k in ("log_likelihood", "log_prior") if asked.get(k)}
    if densities and kwargs.get("return_inferencedata", True):
        kwargs["idata_kwargs"] = {k: v for k, v in asked.items() if k not in densities} or None
        return _with_densities(model, kwargs, densities)
    theirs = kwargs.get("callback")
    is_ours = theirs is not None or _is_for_pymc(model, kwargs)
    handler = Handler(is_beside_compiled if is_ours else lambda _: False)
    drawn: Counter[int] = Counter()

    def after_each(trace, draw) -> None:
        if not drawn:
            stage(DRAWING if kwargs.get("progressbar") is False else "")
        drawn[draw.chain] += not draw.tuning  # an entry from the first call on
        if handler.came:
            raise KeyboardInterrupt
        if theirs is not None:
            theirs(trace=trace, draw=draw)

    if is_ours:
        kwargs["callback"] = after_each
    try:
        with handler:
            result = pm.sample(model=model, **kwargs)
    except ValueError as error:
        if handler.came and not any(drawn.values()):
            raise KeyboardInterrupt from error
        raise
    if not handler.came:
        return result
    if not is_ours:
        return made(result)
    if any(drawn.values()):  # else all draws are of the tuning, which the user asked to keep
        # PyMC has cut the chains already: this only logs their lengths.
        longest([drawn[c] for c in range(kwargs.get("chains") or max(drawn) + 1)])
    return result


def _with_densities(model: pm.Model, kwargs: dict[str, Any], groups: dict[str, Any]):
    """Sample, and add log densities by entry, which are tried at one point before."""
    for group, names in groups.items():
        of = model.observed_RVs if group == "log_likelihood" else model.free_RVs
        of = [rv for rv in of if names is True or rv.name in names]
        model.compile_logp(of, sum=False, mode=PLAIN_MODE)(model.initial_point())
    tree = sample(model, **kwargs)
    for group, names in groups.items():
        with draws_stay(group):
            compute = getattr(log_density, f"compute_{group}")
            names = None if names is True else names
            tree = compute(tree, var_names=names, model=model, progressbar=False)
    return tree


def _is_for_pymc(model: pm.Model, kwargs: dict[str, Any]) -> bool:
    """Whether PyMC's own sampler runs for sure: nutpie takes no callback."""
    return kwargs.get("nuts_sampler") == "pymc" or (
        kwargs.get("nuts_sampler") is None
        and (
            kwargs.get("step") is not None
            or any(hasattr(rv.tag, "dp_step") or rv.dtype[:5] != "float" for rv in model.free_RVs)
        )
    )


def made(tree: DataTree) -> DataTree:
    """Return the draws that an interrupted nutpie has made; others have NaN as log density."""
    stats = tree["sample_stats"].to_dataset() if "sample_stats" in tree else {}
    density = next((stats[name] for name in ("lp", "logp") if name in stats), None)
    if density is None:
        raise KeyboardInterrupt
    kept, length = longest((~np.isnan(density.to_numpy())).sum(axis=1).tolist())
    for name, group in tree.children.items():
        if {"chain", "draw"} <= set(group.dims) and not name.startswith("warmup"):
            cut = group.to_dataset().isel(chain=kept, draw=slice(length))
            tree[name] = DataTree(cut)
    return tree
