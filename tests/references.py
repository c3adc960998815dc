"""The exact posteriors to compare with, by the file that holds them."""

import json
from pathlib import Path
from typing import Any


def references(name: str) -> Any:
    """Return what `tests/data/NAME.json` says: its list of cases, or all where it has none."""
    found = json.loads((Path(__file__).parent / "data" / f"{name}.json").read_text())
    return found.get("cases", found)
