"""The examples import each other as scripts do, from their folder."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "docs" / "examples"))
