"""Draw the kept picture of ../simulator.md: ``python docs/howto/kept/simulator.py``."""

import re
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import numpy as np

DOCS = Path(__file__).parents[2]
matplotlib.rc_file(DOCS / "matplotlibrc")
page = {}
text = (DOCS / "howto" / "simulator.md").read_text()
for block in re.findall(r"\n\n```python\n(.*?)^```$", text, re.M | re.S):  # what needs no torch
    exec(block, page)

days = page["days"]
confidential = page["draw_cases"](1.8, days, np.random.default_rng(1), ())
drawn = np.random.default_rng(2).choice(len(page["prior"]), 4000, p=page["weight"])
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.4))
ends = np.quantile(page["simulated"][drawn], [0.05, 0.95], axis=0)
left.fill_between(days, *ends, alpha=0.3, lw=0, label="posterior, 90%")
left.plot(days, page["published"], "x", color="C1", mew=2, label="published")
left.plot(days, confidential, "o", ms=4, color="C2", label="confidential")
left.set(xlabel="day", ylabel="cases")
left.legend()
bins = np.linspace(0, 4, 81)
right.hist(page["prior"], bins, density=True, histtype="step", color="0.5", label="prior")
right.hist(page["prior"][drawn], bins, density=True, alpha=0.6, label="posterior")
right.axvline(1.8, color="C2", label="truth")
right.set(xlabel="R0", yticks=[])
right.legend()
figure.savefig(DOCS / "images" / "simulator.png", dpi=150)
