"""Pages of the gallery: one for each mechanism, step and law of sums that is registered.

A page is put together from the item's docstring, its text in docs/gallery/text, and for mechanisms
a picture of what `PICTURES` says. What has no text or no picture fails a test.
"""

import inspect
import re
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytensor
import pytensor.tensor as pt

import pymc_dp as dp
from pymc_dp.graphs.values import PLAIN_MODE
from pymc_dp.laws.sum_law import LAWS, Phase
from pymc_dp.laws.sums import FAMILIES, OfSums
from pymc_dp.mechanisms import registered_mechanisms
from pymc_dp.plugins.inversion.density import Inverted
from pymc_dp.step_methods import STEPS

mpl.use("Agg")  # no window
GALLERY = Path(__file__).parent / "gallery"
TEXT = GALLERY / "text"


@dataclass(frozen=True)
class Picture:
    """What is drawn of a mechanism.

    Attributes
    ----------
    versions : three of them, as one writes them.
    values : of the release, in the order in which they are drawn.
    statistic, neighbour : the confidential value, and what it is after one record has changed.
    atoms : values with a mass of their own, beside a density.
    names : of the values, where they are choices.
    """

    versions: tuple[str, ...]
    values: np.ndarray
    statistic: object = 0.0
    neighbour: object = 1.0
    atoms: tuple[float, ...] = ()
    names: tuple[str, ...] = ()

    @property
    def is_density(self) -> bool:
        """Whether the values are points of a curve."""
        return len(self.values) > 100


def _each(how: str, *scales) -> tuple[str, ...]:
    return tuple(f"dp.{how.format(scale)}" for scale in scales)


LINE, WHOLE = np.linspace(-10, 10, 801), np.arange(-10, 11)
POSITIVE = np.linspace(-2, 12, 801)
CANDIDATES = ("A", "B", "C", "D")
PICTURES = {
    "LaplaceMechanism": Picture(_each("LaplaceMechanism({})", 1, 2, 4), LINE),
    "GaussianMechanism": Picture(_each("GaussianMechanism({})", 1, 2, 4), LINE),
    "GeometricMechanism": Picture(_each("GeometricMechanism({})", 1, 2, 4), WHOLE),
    "DiscreteGaussianMechanism": Picture(_each("DiscreteGaussianMechanism({})", 1, 2, 4), WHOLE),
    "UniformMechanism": Picture(_each("UniformMechanism({})", 2, 4, 8), LINE),
    "CauchyMechanism": Picture(_each("CauchyMechanism({})", 1, 2, 4), LINE),
    "StudentTMechanism": Picture(_each("StudentTMechanism({}, 2)", 2, 4, 16), LINE),
    "StaircaseMechanism": Picture(_each("StaircaseMechanism({}, 2)", 0.5, 1, 2), LINE),
    "TulapMechanism": Picture(_each("TulapMechanism({}, 0.01, 1)", 0.25, 0.5, 1), LINE),
    "SnappingMechanism": Picture(
        _each("SnappingMechanism({}, -8, 8, 2)", 1, 2, 4), np.arange(-8, 9, 2)
    ),
    "BoundedLaplaceMechanism": Picture(
        _each("BoundedLaplaceMechanism({}, 0, 10)", 1, 2, 4), np.linspace(0, 10, 801), 2.0, 3.0
    ),
    "FoldedLaplaceMechanism": Picture(
        _each("FoldedLaplaceMechanism({}, 0, 10)", 1, 2, 4), np.linspace(0, 10, 801), 2.0, 3.0
    ),
    "ClippedMechanism": Picture(
        _each("LaplaceMechanism({}).clipped(lower=0)", 1, 2, 4), POSITIVE, 2.0, 3.0, atoms=(0.0,)
    ),
    "RoundedMechanism": Picture(
        _each("LaplaceMechanism({}).rounded(base=2)", 1, 2, 4), np.arange(-10, 11, 2)
    ),
    "FlooredMechanism": Picture(_each("LaplaceMechanism({}).floored()", 1, 2, 4), WHOLE),
    "CeiledMechanism": Picture(
        _each("LaplaceMechanism({}).ceiled(base=2)", 1, 2, 4), np.arange(-10, 11, 2)
    ),
    "TruncatedMechanism": Picture(_each("LaplaceMechanism({}).truncated()", 1, 2, 4), WHOLE),
    "SuppressedMechanism": Picture(
        _each("GeometricMechanism({}).suppressed(below=5)", 1, 2, 4),
        np.array([np.nan, *range(5, 19)]), 8, 9,
        names=("withheld", *map(str, range(5, 19))),
    ),
    "ThresholdedMechanism": Picture(
        _each("LaplaceMechanism({}).thresholded(5)", 1, 2, 4), np.arange(2), 7.0, 8.0,
        names=("below 5", "5 or more"),
    ),
    "RandomRounding": Picture(_each("RandomRounding({})", 3, 5, 10), np.arange(0, 31), 13, 14),
    "CellKey": Picture(
        _each(
            "CellKey([[0, 0, 1, 0, 0], [0, 0.6, 0, 0.2, 0.2], {}])",
            [0.1, 0, 0.7, 0.2, 0], [0.1, 0.2, 0.4, 0.2, 0.1], [0.2, 0.2, 0.2, 0.2, 0.2],
        ),
        np.arange(9), 4, 5,
    ),
    "NoiseFactor": Picture(
        _each("NoiseFactor({})", "0, 0.2", "0.05, 0.25", "0.1, 0.3"),
        np.linspace(60, 150, 902), 100, 110,  # none where a density ends
    ),
    "SphericalLaplace": Picture(_each("SphericalLaplace({})", 0.25, 0.5, 1), LINE, [0.0], [1.0]),
    "BinomialMechanism": Picture(
        _each("BinomialMechanism(20, {}, 100)", 1, 10, 100), np.arange(21), 30, 31
    ),
    "RandomizedResponse": Picture(
        _each("RandomizedResponse({}, 3)", 0.5, 0.7, 0.9), np.arange(3), 0, 1, names=("0", "1", "2")
    ),
    "ReportMatrix": Picture(
        _each(
            "RandomizedResponse(matrix=[{}, [0.1, 0.9]])", [0.5, 0.5], [0.7, 0.3], [0.9, 0.1]
        ),
        np.arange(2), 0, 1, names=("no", "yes"),
    ),
    "RandomizedResponseCount": Picture(
        _each("RandomizedResponse({}).counted(30)", 0.6, 0.75, 0.9), np.arange(31), 10, 11
    ),
    "ExponentialMechanism": Picture(
        _each("ExponentialMechanism({})", 0.25, 0.5, 1), np.arange(4), [4.0, 6.0, 1.0, 5.0],
        [5.0, 5.0, 2.0, 4.0], names=CANDIDATES,
    ),
    "NoisyMax": Picture(
        _each("NoisyMax(dp.LaplaceMechanism({}))", 4, 2, 1), np.arange(4), [4.0, 6.0, 1.0, 5.0],
        [5.0, 5.0, 2.0, 4.0], names=CANDIDATES,
    ),
    "PrivateQuantile": Picture(
        _each("PrivateQuantile(0.5, {}, 0, 10)", 0.5, 1, 4), np.linspace(0.01, 9.99, 801),
        [1.0, 3.0, 4.0, 5.0, 8.0], [1.0, 3.0, 7.0, 5.0, 8.0],
    ),
}  # fmt: skip


def log_probabilities(mechanism, values, statistic) -> np.ndarray:
    """Return the log densities or masses of values, one by one."""
    statistic = np.asarray(statistic)
    if not statistic.ndim:
        return mechanism.logp(values, np.full(np.shape(values), statistic)).eval()
    value = pt.scalar("value", dtype=np.asarray(values).dtype)  # one, of the whole vector
    one = pytensor.function([value], mechanism.logp(value, statistic), mode=PLAIN_MODE)
    return np.array([one(v) for v in values], float)


def draw(picture: Picture) -> plt.Figure:
    """Draw the law of the release, and the privacy loss of one changed record."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4))
    values = np.arange(len(picture.names)) if picture.names else picture.values
    width = 0.25 * (values[1] - values[0])
    for j, code in enumerate(picture.versions):
        look = {"color": f"C{j}", "label": code.replace("dp.", "")}
        mechanism = eval(code, {"dp": dp})
        here, there = (
            log_probabilities(mechanism, picture.values, statistic)
            for statistic in (picture.statistic, picture.neighbour)
        )
        atom = np.isin(picture.values, picture.atoms)
        with np.errstate(invalid="ignore"):
            loss = np.where(atom, np.nan, np.abs(here - there))
        if picture.is_density:
            left.plot(values, np.where(atom, np.nan, np.exp(here)), **look)
            left.vlines(values[atom], 0, np.exp(here[atom]), color=f"C{j}")
            left.plot(values[atom], np.exp(here[atom]), "o", color=f"C{j}")
            right.plot(values, loss, **look)
        else:
            left.bar(values + (j - 1) * width, np.exp(here), width, **look)
            right.plot(values + (j - 1) * width, loss, "o", ms=4, **look)
    for ax in (left, right):
        ax.set(xlabel="release", ylim=(0, None))
        if picture.names:
            ax.set_xticks(values, picture.names, rotation=60 if len(values) > 8 else 0)
    right.set(ylabel="privacy loss", xlim=left.get_xlim())
    what = "density" if picture.is_density else "probability"
    left.set(ylabel=what + ", dot: probability" * bool(picture.atoms))
    longest = max(map(len, picture.versions))
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3 if longest < 38 else 1)
    return figure


def text_of(item: type) -> str | None:
    """Return what is written by hand of an item, or None."""
    path = TEXT / f"{item.__name__}.md"
    return path.read_text() if path.exists() else None


def summary(item: type) -> str:
    """Return the first line of a docstring, as Markdown."""
    [line, *_] = inspect.getdoc(item).splitlines()
    return re.sub(r":math:`([^`]*)`", r"$\1$", line)


def _reference(item: type) -> str:
    homes = {"pymc_dp": dp, "pymc_dp.mechanisms": dp.mechanisms}
    home = next((name for name, module in homes.items() if hasattr(module, item.__name__)), None)
    if home is None:
        return ""
    where = f"{{py:class}}`{home}.{item.__name__}`"
    return f"Formulas, arguments, errors and source: {where}.\n"


def mechanism_page(item: type) -> str:
    """Return the page of a mechanism; its picture lies beside it."""
    name, picture = item.__name__, PICTURES.get(item.__name__)
    parts = [f"# {name}", summary(item)]
    if picture is not None:
        parts += [
            f"![The law of a release, and its privacy loss]({name}.svg)",
            f"Left: the release where the confidential value is {picture.statistic}. Right: how "
            f"much a release tells of one changed record, which makes it {picture.neighbour}: the "
            "difference of the two log probabilities. Where nothing is drawn, only one of the two "
            "values can lead to that release.",
        ]
    return "\n\n".join([*parts, text_of(item) or "", _reference(item)])


# The last cell of a page. A text on a step has to define `drawn`, (chain, draw), and what is
# proportional to its `exact` law at equally spaced `values`.
TRACE = """
```{code-cell}
:tags: [hide-input]

import matplotlib.pyplot as plt

figure, (trace, law) = plt.subplots(1, 2, width_ratios=[2, 1], sharey=True)
for chain, color in zip(drawn.values, ("C0", "C5")):
    trace.plot(chain[:300], color=color, lw=0.7)
trace.set(xlabel="first draws of two chains", ylabel=drawn.name)
whole = drawn.dtype.kind == "i"
bins = np.arange(drawn.min(), drawn.max() + 2) - 0.5 if whole else 30
every = drawn.values.ravel()
law.hist(every, bins, density=True, orientation="horizontal", alpha=0.5, label="draws")
exact = exact / exact.sum() / (values[1] - values[0])
law.plot(exact, values, "C2" + "o" * whole, ms=4, label="exact")
law.set(xlabel="probability" if whole else "density")
trace.set_ylim(every.min() - whole / 2, every.max() + whole / 2)
law.legend();
```
"""
# A text on a law of sums has to define `model`, with a release "z" of independent entries, and
# `values` of it; without these, entries of what it draws are compared with those of the model.
RELEASED = """
```{code-cell}
:tags: [hide-input]

import matplotlib.pyplot as plt
import numpy as np
import pytensor
import pytensor.tensor as pt

released = pm.draw(model["z"], 4000, random_seed=1).reshape(4000, -1)  # of simulated records
marginal = dp.collapse(model, to="marginal")["z"]  # without records
value = marginal.type("value")
density = pytensor.function([value], pt.exp(pm.logp(marginal, value)))
exact = [np.ravel(density(np.full(marginal.type.shape, v))) for v in values]
whole = released.dtype.kind == "i"
bins = np.append(values, values[-1] + 1) - 0.5 if whole else 50
for j, (entry, law) in enumerate(zip(released.T, np.transpose(exact))):
    which = f"simulated z[{j}]" if len(released.T) > 1 else "simulated"
    plt.hist(entry, bins, density=True, alpha=0.4, color=f"C{5 * j}", label=which)
    plt.plot(values, law, "C2" + "o" * whole, ms=4, label="exact" * (j == 0))
plt.xlim(values[0] - whole, values[-1] + whole)
plt.locator_params(axis="x", integer=True)
plt.xlabel("release")
plt.ylabel("probability" if whole else "density")
plt.legend();
```
"""
LATENT = """
```{code-cell}
:tags: [hide-input]

import matplotlib.pyplot as plt
import numpy as np

released = pm.draw(model["z"], 4000, random_seed=1).reshape(4000, -1)  # of simulated records
without = pm.draw(dp.collapse(model, to="statistics")["z"], 4000, random_seed=2).reshape(4000, -1)
figure, axes = plt.subplots(1, len(entries))
for ax, name, of_records, of_latents in zip(axes, entries, released.T, without.T):
    bins = np.linspace(*np.quantile(of_records, [0.002, 0.998]), 40)
    ax.hist(of_records, bins, density=True, alpha=0.4, color="C0", label="records")
    ax.hist(of_latents, bins, density=True, histtype="step", color="C2", lw=1.5, label="latents")
    ax.set(xlabel=name, yticks=[])
figure.legend(*ax.get_legend_handles_labels(), loc="outside upper right", ncols=2);
```
"""


def _run_page(item: type, title: str, cell: str) -> str:
    head = "---\nfile_format: mystnb\nkernelspec: {name: python3}\n---"
    text = (text_of(item) or "").rstrip() + "\n"
    return "\n\n".join([head, f"# {title}", summary(item), text + cell, _reference(item)])


def step_page(item: type) -> str:
    """Return the page of a step, whose text has cells to run."""
    return _run_page(item, item.__name__, TRACE)


def sums_page(item: type) -> str:
    """Return the page of a law of sums, whose text has cells to run."""
    text = text_of(item) or ""
    cell = "" if "hide-input" in text else LATENT if "\nentries = " in text else RELEASED
    return _run_page(item, TITLES.get(item.__name__, item.__name__), cell)


def laws_of_sums() -> list[type]:
    """Return the registered laws of what is released of many records, families first."""
    return [
        *FAMILIES,
        *(law for phase, law in LAWS if law is not OfSums and phase < Phase.FALLBACK),
        Inverted,
    ]


TITLES = {
    "Closed": "Sums with a law of their own",
    "Normal": "Sums of Normal records",
    "Moments": "Means and variances of groups",
    "Designs": "A regression with public covariates",
    "Counts": "Counts that differ by groups or covariates",
    "NoRecords": "A group without records",
    "UnknownSizes": "Records of unknown number",
    "CountedRows": "Rows of unknown number",
    "OneColumn": "A mean and a variance",
    "Columns": "A regression, both sides confidential",
    "Reported": "Answers changed at random",
    "CountedRecords": "Functions of counts",
    "GroupedColumns": "A regression in each group",
    "RowsOneByOne": "Rows released one by one",
    "OneByOne": "Values released one by one",
    "Ratios": "Noisy numbers over noisy numbers",
    "Switched": "Values that a label chooses",
    "Inverted": "Sums by inversion",
}  # of pages, where the name is internal
KINDS = {
    "mechanisms": ("Mechanisms", registered_mechanisms, mechanism_page),
    "steps": ("Steps", lambda: tuple(STEPS), step_page),
    "sums": ("Laws of what was released of many records", laws_of_sums, sums_page),
}


def write(path: Path, text: str) -> None:
    """Write a text, if it is another one than is there: a page that is written is read again."""
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def is_stale(drawn: Path, item: type) -> bool:
    """Tell whether a picture is missing, or older than what it is made from."""
    sources = (Path(__file__), Path(inspect.getfile(item)))
    return not drawn.exists() or drawn.stat().st_mtime < max(s.stat().st_mtime for s in sources)


def make() -> None:
    """Write all pages, and draw what has changed since it was drawn."""
    for folder, (title, items, page) in KINDS.items():
        (GALLERY / folder).mkdir(exist_ok=True)
        cards = []
        for item in items():
            name = item.__name__
            write(GALLERY / folder / f"{name}.md", page(item))
            cards += [
                f":::{{grid-item-card}} {TITLES.get(name, name)}",
                f":link: {name}",
                ":link-type: doc",
            ]
            if folder == "mechanisms" and name in PICTURES:
                cards.append(f":img-bottom: {name}.svg")
                drawn = GALLERY / folder / f"{name}.svg"
                if is_stale(drawn, item):
                    figure = draw(PICTURES[name])
                    figure.savefig(drawn)
                    plt.close(figure)
            cards += [summary(item), ":::"]
        tree = ["```{toctree}", ":hidden:", *(item.__name__ for item in items()), "```"]
        grid = ["::::{grid} 1 2 2 3", ":gutter: 2", *cards, "::::"]
        write(GALLERY / folder / "index.md", "\n".join([f"# {title}", "", *grid, "", *tree, ""]))
