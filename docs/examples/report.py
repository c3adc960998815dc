"""What the examples share: options, printed tables, pictures, and what posteriors say.

Models, data and analyses are in the examples themselves, each in one file. Whoever copies one
elsewhere copies this file, too.
"""

from __future__ import annotations

import argparse
import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import arviz as az
import matplotlib as mpl
import numpy as np
import pymc as pm
from matplotlib.figure import Figure
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from xarray import DataTree

# Okabe and Ito's colours, which colour-blind readers can tell apart.
BLUE, ORANGE, GREEN, PINK, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#666666"
COLOURS = {"confidential": GREEN, "naive": ORANGE, "private": BLUE}

Draws = Mapping[str, np.ndarray]  # of every quantity, in one row
Moments = Mapping[str, tuple[float, float]]  # mean and standard deviation of every quantity

# The options of the examples with neural estimates.
NEURAL = {"method": ("both", "sppe", "sple", "none"), "rounds": 10, "simulations": 1000}


HELP = {
    "cores": "two run the chains side by side",
    "draws": "draws of each chain, or of importance sampling",
    "epsilon": "privacy loss of what is released, in total",
    "hospitals": "number of hospitals",
    "iterations": "Gibbs iterations of the first experiment",
    "method": "neural estimation of the posterior, of the likelihood, both, or only what is exact",
    "no-particles": "leave out particle importance sampling for measles",
    "output": "folder for what is written",
    "people": "people in a study",
    "rounds": "rounds of simulations for neural estimation",
    "seed": "random seed",
    "simulations": "simulations in a round",
    "splits": "random splits of the coverage study, about 3 s each; 0 for none",
    "study": "which of the studies",
    "tracts": "about how many tracts",
}


def options(
    doc: str | None, arguments: Sequence[str] | None, **defaults: Any
) -> argparse.Namespace:
    """Read the command line of an example: options by name, with their defaults.

    Of a tuple of choices the first is the default; a type has none.
    """
    parser = argparse.ArgumentParser(
        description=(doc or "").split("\n", maxsplit=1)[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    for option, default in {**defaults, "seed": defaults.get("seed", 1)}.items():
        found: dict[str, Any] = {"default": default, "type": type(default)}
        if default is False:
            found = {"action": "store_true"}
        elif isinstance(default, type):
            found = {"type": default}
        elif isinstance(default, tuple):
            found = {"default": default[0], "choices": default}
        option = option.replace("_", "-")
        parser.add_argument(f"--{option}", help=HELP[option], **found)
    return parser.parse_args(arguments)


# -------------------------------------------------------------------------------------- printed


def say(*what: str | Table) -> None:
    """Print texts and tables, these with room enough when it goes to a file."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=100)
    for item in what:
        console.print(item, soft_wrap=isinstance(item, str))


def table(
    title: str,
    headings: Sequence[str],
    rows: Iterable[Sequence[Any]],
    caption: str | None = None,
    number: str = ".2f",
) -> Table:
    """Set rows of texts and numbers in a table; all columns but the first are to the right."""
    found = Table(title=title, caption=caption, box=SIMPLE_HEAD, pad_edge=False,
                  title_style="bold", title_justify="left", caption_justify="left")  # fmt: skip
    for k, heading in enumerate(headings):
        found.add_column(heading, justify="right" if k else "left", no_wrap=True)
    for row in rows:
        found.add_row(*(cell if isinstance(cell, str) else f"{cell:{number}}" for cell in row))
    return found


def interval(low: float, median: float, high: float, number: str = ".2f") -> str:
    """Write an interval behind its median."""
    return f"{median:{number}} [{low:{number}}, {high:{number}}]"


@contextmanager
def quiet() -> Iterator[None]:
    """Leave out what PyMC says of every fit, but for warnings."""
    logger = logging.getLogger("pymc")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextmanager
def timed(label: str) -> Iterator[None]:
    """Leave that out, and say how long a fit took."""
    began = time.perf_counter()
    with quiet():
        yield
    say(f"{label}: {time.perf_counter() - began:.0f} s")


# ----------------------------------------------------------------------------------- posteriors


def draws(idata: DataTree, name: str) -> np.ndarray:
    """Return the draws of a variable, those of all chains along the first axis."""
    return az.extract(idata, var_names=name).transpose("sample", ...).to_numpy()


def ends(values: Any, level: float, axis: int | None = 0) -> np.ndarray:
    """Return the lower end of the central interval, the median, and the upper end."""
    return np.quantile(values, [(1 - level) / 2, 0.5, (1 + level) / 2], axis=axis)


def covered(truth: Any, low: np.ndarray, high: np.ndarray) -> float:
    """Return which share of intervals holds the truth."""
    return float(np.mean((low <= truth) & (truth <= high)))


def convergence(idata: DataTree, *names: str) -> tuple[str, str]:
    """Return the worst R-hat and the smallest bulk ESS of some variables."""
    found = az.summary(idata, var_names=list(names), kind="diagnostics", round_to="none")
    return f"{found['r_hat'].max():.3f}", f"{found['ess_bulk'].min():,.0f}"


def moments(draws: Draws) -> dict[str, tuple[float, float]]:
    """Return mean and standard deviation of every quantity."""
    return {name: (float(np.mean(x)), float(np.std(x))) for name, x in draws.items()}


def comparison(reference: Moments, found: Mapping[str, Draws], title: str = "") -> Table:
    """Set posterior means and standard deviations by method beside those of a reference.

    A difference of means is in standard deviations of the reference, that of standard deviations
    in percent of it.
    """
    own = {method: moments(draws) for method, draws in found.items()}
    rows: list[Sequence[Any]] = []
    for name, (mean, sd) in reference.items():
        rows.append((name, mean, sd))
        for method in own:
            m, s = own[method][name]
            rows.append((f"  {method}", m, s, f"{(m - mean) / sd:+.3f}", f"{s / sd - 1:+.1%}"))
    headings = ("reference", "mean", "sd", "mean off by (sd)", "sd off by")
    return table(title, headings, rows, number=".4f")


def neural_fits(model: pm.Model, options: argparse.Namespace) -> Iterator[tuple[str, DataTree]]:
    """Fit a model by `dp.neural.sppe`, `dp.neural.sple` or both, as was asked for."""
    for method in {"both": ("sppe", "sple"), "none": ()}.get(options.method, (options.method,)):
        # By itself, pm.sample takes half of the processors.
        more = {"cores": min(4, os.cpu_count() or 1)} if method == "sple" else {}
        with timed(method):
            # The module is looked up only here: it needs torch and sbi, the extra [neural].
            idata = getattr(import_module("pymc_dp.neural"), method)(
                model,
                rounds=options.rounds,
                simulations=options.simulations,
                random_seed=options.seed,
                progressbar=Console().is_terminal,
                **more,
            )
        yield method, idata


# ------------------------------------------------------------------------------------- pictures


def figure(rows: int, columns: int, size: tuple[float, float], title: str = "", **kwargs) -> Figure:
    """Return a figure with a grid of axes, which have no frame."""
    found = Figure(figsize=size, layout="constrained")
    with mpl.rc_context({"axes.spines.top": False, "axes.spines.right": False}):
        found.subplots(rows, columns, **kwargs)
    if title:
        found.suptitle(title, fontsize=13)
    return found


def legend(figure: Figure, **kwargs) -> None:
    """Put below a figure what is labelled in any of its axes, once each."""
    found: dict[str, Any] = {}
    for ax in figure.axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    kwargs = {"loc": "outside lower center", "ncols": len(found), **kwargs}
    figure.legend(list(found.values()), list(found), frameon=False, **kwargs)


def write(folder: Path, **figures: Figure) -> None:
    """Write figures to a folder, by name, and say where they are."""
    folder.mkdir(parents=True, exist_ok=True)
    say("\nWritten:")
    for name, figure in figures.items():
        figure.savefig(folder / f"{name}.png", dpi=150)
        say(f"  {folder / f'{name}.png'}")
