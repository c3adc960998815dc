"""Every registered mechanism, step and law of sums has its page in the gallery, and none else."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from pymc_dp.laws.sum_law import LAWS, Phase, law_of
from pymc_dp.laws.sums import OfSums
from pymc_dp.reading.groups import record_groups
from pymc_dp.reading.model import Reading

DOCS = Path(__file__).parents[1] / "docs"
sys.path.insert(0, str(DOCS))
import make_gallery as gallery  # noqa: E402

sys.path.pop(0)
OURS = {
    folder: [item for item in items() if item.__module__.startswith("pymc_dp.")]
    for folder, (_, items, _) in gallery.KINDS.items()
}
ITEMS = [
    pytest.param(folder, item, id=f"{folder}-{item.__name__}")
    for folder, items in OURS.items()
    for item in items
]
MECHANISMS = [pytest.param(item, id=item.__name__) for item in OURS["mechanisms"]]


PARTS = {
    "mechanisms": ("**Added to**", "**Used by**", "**Privacy loss**", "```python"),
    "steps": ("**What it draws**", "**When it is chosen**", "**Source**", "drawn = ", "exact = "),
    "sums": ("**Records**", "**What may be released**", "**The law**", "```{code-cell}"),
}


@pytest.mark.parametrize(("folder", "item"), ITEMS)
def test_an_item_has_a_text(folder, item):
    text = gallery.text_of(item)
    assert text is not None, f"write docs/gallery/text/{item.__name__}.md"
    assert [part for part in PARTS[folder] if part not in text] == []


@pytest.mark.parametrize("item", [item for item in OURS["sums"] if item is not gallery.Inverted])
def test_the_model_of_a_law_of_sums_is_read_by_it(item):
    [code] = re.findall(r"^(import numpy.*?)^```$", gallery.text_of(item), re.M | re.S)
    exec(code, found := {})
    reading = Reading(found["model"])
    [group] = record_groups(reading)
    # Values one by one are read where no other law has a marginal.
    law = item.read(reading, group) if (Phase.SINGLE, item) in LAWS else law_of(reading, group)
    assert [item] == ([*map(type, law.families)] if isinstance(law, OfSums) else [type(law)])


def test_a_text_or_picture_has_an_item():
    names = {item.__name__ for items in OURS.values() for item in items}
    assert {path.stem for path in gallery.TEXT.glob("*.md")} <= names
    assert set(gallery.PICTURES) <= names


@pytest.mark.parametrize("item", MECHANISMS)
def test_a_mechanism_has_a_picture_of_its_law(item):
    picture = gallery.PICTURES[item.__name__]
    mechanism = eval(picture.versions[0], {"dp": gallery.dp})
    assert type(mechanism) is item
    mass = np.exp(gallery.log_probabilities(mechanism, picture.values, picture.statistic))
    assert np.all(mass >= 0)
    if picture.is_density:  # which is not cut so that most of it is lost
        atom = np.isin(picture.values, picture.atoms)
        total = np.trapezoid(np.where(atom, 0, mass), picture.values) + mass[atom].sum()
        assert 0.9 < total < 1.05
    else:
        assert 0.9 < mass.sum() < 1.0 + 1e-9


@pytest.mark.parametrize("item", MECHANISMS)
def test_the_model_of_a_mechanism_has_a_density(item):
    text = gallery.text_of(item)
    [code] = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    exec(code, found := {})
    model = found["model"]
    densities = model.point_logps(model.initial_point())
    assert not np.isnan(list(densities.values())).any()
