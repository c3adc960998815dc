"""Chains of NUTS that start near the released values, and start again if they get stuck."""

from __future__ import annotations

import dataclasses
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Any, NamedTuple, NoReturn

import numpy as np
import pymc as pm
import xarray as xr
from pymc.distributions.transforms import LogTransform
from pymc.util import get_random_generator
from pytensor.compile.mode import get_mode
from pytensor.gradient import NullTypeGradError
from pytensor.link.numba.linker import NumbaLinker
from pytensor.tensor.random.op import RandomVariable
from xarray import DataTree

from pymc_dp.graphs.interrupts import Handler, between
from pymc_dp.graphs.stages import stage
from pymc_dp.graphs.values import nearest_rvs, plain_function
from pymc_dp.reading.kept import made_once
from pymc_dp.reading.tags import is_tagged
from pymc_dp.routes import interrupted
from pymc_dp.routes.chain import available_cores
from pymc_dp.routes.starts import (
    Center,
    Density,
    SearchOver,
    check_finite,
    draw_start,
    find_centers,
)
from pymc_dp.step_methods.base import PointFunction, point_function

_log = logging.getLogger("pymc.dp")

# nutpie is run here with these arguments; with others, pm.sample runs it.
_ARGUMENTS = {
    "draws", "tune", "chains", "cores", "random_seed", "progressbar", "progressbar_theme", "quiet",
    "var_names", "discard_tuned_samples", "compute_convergence_checks", "nuts",
    "nuts_sampler", "backend",
}  # fmt: skip
# Arguments that equal PyMC's defaults are dropped.
_DEFAULTS = {"return_inferencedata": True, "idata_kwargs": {}, "init": "auto"}
# With these the caller has chosen starting values or steps: pm.sample runs unchanged.
_START_ARGUMENTS = "initvals", "init", "step"
_COLLAPSED = 1e-8  # step size, relative to the median of all chains
# CPU seconds of the search for a start: after the first the progress bar names it, after the second
# it ends. It may evaluate the density hundreds of times.
_LONG, _MOST_SECONDS = 2.0, 20.0
_FEW = 100  # draws of a chain, below which PyMC warns


class Sampler(NamedTuple):
    """A compiled model: its log density with the gradient, and a runner of chains."""

    density: Density
    draw: Callable[[list[Center], Sequence[np.random.Generator]], DataTree]


def sample_nuts(
    model: pm.Model,
    *,
    usual_accept: float | None = None,
    correlated: bool = False,
    **kwargs: Any,
) -> DataTree:
    """Sample a model by NUTS.

    Parameters
    ----------
    model : a model without records.
    usual_accept : default of `target_accept`.
    correlated : whether nutpie adapts to correlations, too, unless `nuts` has an adaptation.
    **kwargs : arguments of `pm.sample`.

    Raises
    ------
    NotFinite
        The log density or its gradient is NaN near the released values.
    """
    arguments = {k: x for k, x in kwargs.items() if k not in _DEFAULTS or x != _DEFAULTS[k]}
    _check_arguments(**arguments)
    # PyMC would write target_accept into the user's nuts={}, and refuse it in the next call.
    kwargs = {name: x for name, x in arguments.items() if name not in ("target_accept", "nuts")}
    target = arguments.get("target_accept") or usual_accept
    nuts = {"target_accept": target} if target else {}
    if nuts := nuts | (arguments.get("nuts") or {}):
        kwargs["nuts"] = nuts
    moved = [rv for rv in model.free_RVs if rv.dtype.startswith("float") and not _is_stepped(rv)]
    if not moved:
        return interrupted.sample(model, **arguments)
    if any(kwargs.get(name) is not None for name in _START_ARGUMENTS):
        return interrupted.sample(model, **kwargs)
    make_sampler = _of_nutpie if _takes_nutpie(model, moved, kwargs) else _of_pymc
    if correlated and make_sampler is _of_nutpie:
        kwargs["nuts"] = {"adaptation": "low_rank", **(kwargs.get("nuts") or {})}
    try:
        sampler = make_sampler(model, moved, **kwargs)
    except (NotImplementedError, NullTypeGradError) as error:
        why = str(error).strip().partition("\n")[0]
        _log.info("No density with a gradient (%s): PyMC chooses the steps", why)
        sampler_name = arguments.get("nuts_sampler") or "pymc"
        return interrupted.sample(model, **arguments | {"nuts_sampler": sampler_name})
    values = [model.rvs_to_values[rv] for rv in moved]
    first = model.initial_point(0)
    start = np.concatenate([np.ravel(first[value.name]).astype("float64") for value in values])
    shapes = {value.name: np.shape(first[value.name]) for value in values}
    names = [f"{v}[{i}]" if s else v for v, s in shapes.items() for i in range(math.prod(s))]
    with between(sampler.density) as density:
        if math.isnan(density(start)[0]):  # this compiles
            _raise_what_is_wrong(model, first)
        sizes = [math.prod(s) for s in shapes.values()]
        spreads = np.repeat([_is_spread(model, rv, moved) for rv in moved], sizes)
        centers = find_centers(_with_budget(density), start, sizes, spreads)
        if centers[0].log_density == -math.inf:
            _raise_no_start(model, first)
        for center in centers:
            check_finite(density, center, names)
    chains = kwargs.get("chains") or max(2, kwargs.get("cores") or min(4, available_cores()))
    rngs = get_random_generator(kwargs.get("random_seed")).spawn(2 * chains)
    tree = sampler.draw(centers, rngs[:chains])
    if not isinstance(tree, DataTree):
        return tree
    if _is_whole(tree, chains, draws := kwargs.get("draws", 1000)):
        tree = _without_standing_still(tree, sampler, centers, moved, rngs[chains:], draws)
    if kwargs.get("discard_tuned_samples", True):
        tree = tree.filter(lambda group: not (group.name or "").startswith("warmup_"))
    return tree


def _check_arguments(nuts=None, target_accept=None, random_seed=None, **_: Any) -> None:
    """Refuse what `pm.sample` refuses, before anything is compiled."""
    if target_accept is not None and "target_accept" in (nuts or {}):
        raise ValueError("target_accept is given twice: write it in nuts={...} or by itself")
    if isinstance(random_seed, int | np.integer) and random_seed < 0:
        raise ValueError(f"random_seed={random_seed} is negative: None leaves the seed open")


def _with_budget(density: Density) -> Density:
    """Show that a search takes long, once; end it after `_MOST_SECONDS` CPU seconds."""
    began, said = time.process_time(), False

    def limited(q):
        nonlocal said
        spent = time.process_time() - began
        if spent > _LONG and not said:
            said = True
            stage("Looking for where the data are, to begin the chains there")
        if spent > _MOST_SECONDS:
            _log.info("The search for a start took %.0f s: chains begin at the best so far", spent)
            raise SearchOver
        return density(q)

    return limited


def _is_whole(tree: DataTree, chains: int, draws: int) -> bool:
    """Whether all draws are there, so that sampling was not interrupted."""
    return dict(tree["posterior"].sizes).items() >= {"chain": chains, "draw": draws}.items()


def _without_standing_still(
    tree, sampler: Sampler, centers: list[Center], moved, rngs, draws: int
) -> DataTree:
    """Start chains again that stand still, once; warn of those that stand still again.

    Ctrl-C meanwhile keeps all chains as they were.
    """
    names = [rv.name for rv in moved]
    if again := standing_still(tree, names):
        _log.info("Begun anew, having stood still: %s", _in_words(again))
        still, why = again, "stood still, and to begin anew was interrupted"
        try:
            renewed = sampler.draw(centers, [rngs[c] for c in again])
        except KeyboardInterrupt:
            renewed = None
        if renewed is not None and _is_whole(renewed, len(again), draws):
            tree = _with_chains(tree, again, renewed)
            still, why = standing_still(tree, names), "stood still, and again when begun anew"
        if still:
            stats = tree["sample_stats"].to_dataset()
            stands = xr.DataArray(
                np.isin(stats["chain"], still), dims="chain", coords={"chain": stats["chain"]}
            )
            shape = stats["diverging"] if "diverging" in stats else stats["step_size"]
            stats["stands_still"] = stands.broadcast_like(shape)
            tree["sample_stats"] = DataTree(stats)
            _log.warning(
                "%s %s: leave them out (sample_stats has 'stands_still'), and please report the "
                "model",
                _in_words(still).capitalize(),
                why,
            )
    return tree


def _raise_what_is_wrong(model: pm.Model, point: Mapping[str, np.ndarray]) -> None:
    """Evaluate a density that is NaN once in Python, for its error: compiled code raises none."""
    values = [model.rvs_to_values[rv] for rv in model.free_RVs]
    density = plain_function(values, model.logp())
    with suppress(np.linalg.LinAlgError, ZeroDivisionError), np.errstate(all="ignore"):
        density(*(point[value.name] for value in values))


def _raise_no_start(model: pm.Model, point: Mapping[str, np.ndarray]) -> NoReturn:
    """Name what is impossible where the search for a start began, and ended."""
    variables = [*model.basic_RVs, *model.potentials]
    values = [model.rvs_to_values[rv] for rv in model.free_RVs]
    terms = plain_function(values, [term.sum() for term in model.logp(variables, sum=False)])
    with np.errstate(all="ignore"):
        at_start = terms(*(point[value.name] for value in values))
    wrong = [v for v, term in zip(variables, at_start, strict=True) if not np.isfinite(term)]
    free = {rv.name for v in wrong if v.owner for rv in nearest_rvs(v.owner.inputs)}
    raise ValueError(
        f"no start was found: {', '.join(repr(v.name) for v in wrong)} cannot be what it is, "
        f"whatever was tried for {', '.join(map(repr, sorted(free)))}. Check the units and the "
        f"noise of the published values, and the supports of the laws; or start where they are "
        f"possible, with initvals={{...}}"
    )


def _in_words(chains: Sequence[int]) -> str:
    return f"chain{'s' * (len(chains) > 1)} {', '.join(map(str, chains))}"


def _is_spread(model: pm.Model, rv, moved) -> bool:
    """Whether a variable is a positive parameter of the law of a moved vector."""
    positive = isinstance(model.rvs_to_transforms[rv], LogTransform)
    vectors = (o for o in moved if o.type.ndim and isinstance(o.owner.op, RandomVariable))
    above = (nearest_rvs(vector.owner.inputs) for vector in vectors)
    return positive and not rv.type.ndim and any(rv in parents for parents in above)


def _is_stepped(rv) -> bool:
    return hasattr(rv.tag, "dp_step") or is_tagged(rv)


def standing_still(tree: DataTree, names: Sequence[str]) -> list[int]:
    """Return the chains whose step size has collapsed, or that have not moved."""
    posterior, stats = tree["posterior"].to_dataset(), tree["sample_stats"].to_dataset()
    stands = np.zeros(posterior.sizes["chain"], dtype=bool)
    if "step_size" in stats and stands.size > 1:
        steps = stats["step_size"].values[:, -1]
        stands |= ~(steps >= _COLLAPSED * np.nanmedian(steps))
    warmup = tree["warmup_posterior"].to_dataset() if "warmup_posterior" in tree else posterior
    last = warmup.isel(draw=slice(warmup.sizes["draw"] // 2, None))
    draws = [last[name].values for name in names if name in last]
    if draws and last.sizes["draw"] > 1:
        stands |= np.all([_is_constant(values) for values in draws], axis=0)
    return [int(c) for c in np.flatnonzero(stands)]


def _is_constant(values: np.ndarray) -> np.ndarray:
    """Return for each chain whether no entry of a variable changes."""
    by_chain = values.reshape(*values.shape[:2], -1)
    return (by_chain == by_chain[:, :1]).all(axis=(1, 2))


def _with_chains(tree: DataTree, chains: Sequence[int], replacements: DataTree) -> DataTree:
    """Replace some chains of a tree."""
    tree = tree.copy()
    for name, group in replacements.children.items():
        old, new = tree[name].to_dataset(), group.to_dataset()
        if "chain" in old.dims:
            new = new.assign_coords(chain=old["chain"].values[list(chains)])
            kept = old.drop_sel(chain=new["chain"])
            both = xr.concat([kept, new], "chain", join="inner").sortby("chain")
            tree[name] = DataTree(both.assign_attrs(old.attrs))
    return tree


def _quiet(function: Callable) -> Density:
    """Return a compiled density as `starts` evaluates it: NaN in place of errors of linear algebra.

    A lock admits one thread at a time: functions of PyTensor keep their inputs.
    """
    lock = threading.Lock()

    def density(q):
        try:
            with lock, np.errstate(all="ignore"):
                value, slope = function(q)
                return float(value), np.array(slope)
        except (np.linalg.LinAlgError, ZeroDivisionError):
            return np.nan, np.zeros_like(q)

    return density


def _takes_nutpie(model: pm.Model, moved, kwargs) -> bool:
    """Whether `pm.sample` would run nutpie with numba, with no argument beyond `_ARGUMENTS`."""
    return (
        kwargs.get("nuts_sampler") in (None, "nutpie")
        and {name for name, value in kwargs.items() if value is not None} <= _ARGUMENTS
        and len(moved) == len(model.free_RVs)
        and find_spec("nutpie") is not None
        and kwargs.get("backend") in (None, "numba")
        and isinstance(get_mode(kwargs.get("backend")).linker, NumbaLinker)
    )


@made_once
def _compiled(model: pm.Model, var_names: tuple[str, ...] | None) -> Any:
    from pymc_dp.routes.nutpie_model import compile_model

    stage("Compiling")
    return compile_model(model, var_names)


def _of_nutpie(
    model: pm.Model,
    moved,
    *,
    draws: int = 1000,
    tune: int = 1000,
    cores: int | None = None,
    progressbar: Any = True,
    progressbar_theme: Any = None,
    quiet: bool = False,
    var_names: Sequence[str] | None = None,
    discard_tuned_samples: bool = True,
    nuts: dict[str, Any] | None = None,
    **unused: Any,
) -> Sampler:
    import nutpie  # takes a second
    from pymc.backends.arviz import patch_nutpie_idata  # not public
    from pymc.progress_bar import NutpieProgressBarManager

    from pymc_dp.routes.nutpie_model import density_of, with_data

    compiled = with_data(_compiled(model, None if var_names is None else tuple(var_names)))
    if not quiet:
        _log.info("NUTS[nutpie]: %s", model.free_RVs)
        if draws < _FEW:
            _log.warning(
                "Only %d samples per chain. Reliable r-hat and ESS diagnostics require longer "
                "chains for accurate estimate.", draws,
            )  # fmt: skip
    options = dict(nuts or {})
    if "max_treedepth" in options:
        options["maxdepth"] = options.pop("max_treedepth")
    options = {name: value for name, value in options.items() if value is not None}

    density = density_of(compiled)

    def draw(centers, rngs):
        def start(seed):  # nutpie calls it for each chain, with another seed
            rng = np.random.default_rng(seed)
            return draw_start(density, centers[rng.integers(len(centers))], rng)

        stage()
        began = time.perf_counter()
        shown = bool(progressbar) and not quiet and progressbar
        bars = NutpieProgressBarManager(
            chains=len(rngs), draws=draws, progressbar=shown, progressbar_theme=progressbar_theme
        )
        handler = Handler(lambda _: False)
        with bars, handler:
            tree = nutpie.sample(
                dataclasses.replace(compiled, initial_point_func=start),
                draws=draws,
                tune=max(tune, 1),
                chains=len(rngs),
                cores=min(cores or available_cores(), len(rngs)),
                seed=int(rngs[0].integers(2**30)),
                progress_bar=False,
                progress_callback=bars.update,
                **options,
            )
        if handler.came:
            tree = interrupted.made(tree)
        patch_nutpie_idata(tree, model, sampling_time=time.perf_counter() - began)
        return tree

    return Sampler(density, draw)


@made_once
def _constrained(model: pm.Model, *moved) -> PointFunction:
    return point_function(model, list(moved))


def _of_pymc(model: pm.Model, moved, **kwargs: Any) -> Sampler:
    values = [model.rvs_to_values[rv] for rv in moved]
    function = model.logp_dlogp_function(values, ravel_inputs=True)
    initial_point = model.initial_point()
    function.set_extra_values(initial_point)
    constrained = _constrained(model, *moved)

    density = _quiet(function)

    def draw(centers, rngs):
        starts = []
        with between(density) as taken:
            begun = [
                draw_start(taken, centers[c % len(centers)], rng) for c, rng in enumerate(rngs)
            ]
        for q in begun:
            point, first = dict(initial_point), 0
            for value in values:
                size = np.size(initial_point[value.name])
                point[value.name] = q[first : first + size].reshape(
                    np.shape(initial_point[value.name])
                )
                first += size
            numbers = constrained(point)
            starts.append({rv.name: x for rv, x in zip(moved, numbers, strict=True)})
        seed = int(rngs[0].integers(2**30))
        options = kwargs | {"chains": len(rngs), "random_seed": seed}
        sampler = kwargs.get("nuts_sampler")
        if sampler in ("numpyro", "blackjax"):
            options["nuts"] = {"jitter": False} | (kwargs.get("nuts") or {})
        elif sampler == "nutpie":  # nutpie takes one start for all chains
            compile_kwargs = {"jitter_rvs": set()} | (kwargs.get("compile_kwargs") or {})
            options |= {"initvals": starts[0], "compile_kwargs": compile_kwargs}
            return interrupted.sample(model, **options)
        elif len(moved) == len(model.free_RVs):
            options |= {"init": "adapt_diag", "nuts_sampler": "pymc"}
        return interrupted.sample(model, **options, initvals=starts)

    return Sampler(density, draw)
