"""What the examples with neural estimates share: fits by method, beside a reference."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import pymc as pm
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from xarray import DataTree

Draws = Mapping[str, np.ndarray]  # of every quantity, in one row
Moments = Mapping[str, tuple[float, float]]  # mean and standard deviation of every quantity

METHODS = ("sppe", "sple")


def moments(draws: Draws) -> dict[str, tuple[float, float]]:
    """Return mean and standard deviation of every quantity."""
    return {name: (float(np.mean(x)), float(np.std(x))) for name, x in draws.items()}


def comparison(reference: Moments, found: Mapping[str, Moments], title: str = "") -> Table:
    """Set posterior means and standard deviations by method beside those of a reference.

    A difference of means is in standard deviations of the reference, that of standard deviations
    in percent of it.

    Parameters
    ----------
    reference : mapping
        Mean and standard deviation of every quantity.
    found : mapping
        The same, by method.
    title : str
        What the table is headed with.
    """
    table = Table(title=title, box=SIMPLE_HEAD, title_justify="left", title_style="bold")
    table.add_column("", no_wrap=True)
    for heading in ("method", "mean", "sd", "mean off by (sd)", "sd off by"):
        table.add_column(heading, justify="left" if heading == "method" else "right", no_wrap=True)
    for name, (mean, sd) in reference.items():
        table.add_row(name, "reference", f"{mean:.4f}", f"{sd:.4f}", "", "")
        for method, values in found.items():
            own_mean, own_sd = values[name]
            table.add_row(
                "",
                method,
                f"{own_mean:.4f}",
                f"{own_sd:.4f}",
                f"{(own_mean - mean) / sd:+.3f}",
                f"{own_sd / sd - 1:+.1%}",
            )
        table.add_section()
    return table


def console() -> Console:
    """Return a console that is wide enough for the tables when it writes to a file."""
    found = Console()
    return found if found.is_terminal else Console(width=100)


def timed(console: Console, label: str, fit: Callable[[], Any]) -> Any:
    """Run a fit and say how long it took."""
    began = time.perf_counter()
    result = fit()
    console.print(f"{label}: {time.perf_counter() - began:.0f} s", highlight=False)
    return result


def neural_fits(
    model: pm.Model, options: argparse.Namespace, console: Console
) -> Iterator[tuple[str, DataTree]]:
    """Fit a model by `dp.neural.sppe`, `dp.neural.sple` or both, as was asked for."""
    for method in {"both": METHODS, "none": ()}.get(options.method, (options.method,)):
        # The module is looked up only here: it needs torch and sbi, the extra [neural].
        estimate = getattr(import_module("pymc_dp.neural"), method)
        run = partial(
            estimate,
            model,
            rounds=options.rounds,
            simulations=options.simulations,
            random_seed=options.seed,
            progressbar=console.is_terminal,
            # By itself, pm.sample takes half of the processors.
            **({"cores": min(4, os.cpu_count() or 1)} if method == "sple" else {}),
        )
        yield method, timed(console, method, run)


def parser(module: str, description: str) -> argparse.ArgumentParser:
    """Return a parser of the options that every one of these examples has."""
    parser = argparse.ArgumentParser(
        prog=f"python -m pymc_dp.examples.{module}", description=description.split("\n")[0]
    )
    parser.add_argument(
        "--method",
        choices=(*METHODS, "both", "none"),
        default="both",
        help="neural estimation of the posterior, of the likelihood, both, or only what is exact; "
        "default both",
    )
    parser.add_argument("--rounds", type=int, default=10, help="of simulations; default 10")
    parser.add_argument("--simulations", type=int, default=1000, help="a round; default 1000")
    parser.add_argument("--seed", type=int, default=1)
    return parser
