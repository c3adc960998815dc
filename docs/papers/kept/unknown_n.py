"""Sample the regression of docs/papers/unknown_n.md: python docs/papers/kept/unknown_n.py."""

import json
from pathlib import Path

import arviz as az

HERE = Path(__file__).parent


def main() -> None:
    """Run the page's own model, and keep means, sds and Monte Carlo errors."""
    page = (HERE.parent / "unknown_n.md").read_text()
    cell = next(c for c in page.split("```{code-cell}")[1:] if "pm.Model()" in c).split("```")[0]
    scope: dict = {}
    exec(cell.split("\n\n", 1)[1], scope)  # after the cell's tags
    with scope["model"]:
        idata = scope["dp"].sample(draws=500, tune=500, chains=2, cores=1, random_seed=1)
    table = {}
    for name in ("beta", "sigma2"):
        values = idata.posterior[name]
        for k in range(2 if name == "beta" else 1):
            part = values[..., k] if name == "beta" else values
            table[f"{name}{k}"] = {
                "mean": part.mean().item(),
                "sd": part.std().item(),
                "mcse": float(az.mcse(part, method="mean")),
                "ess": float(az.ess(part)),
                "rhat": float(az.rhat(part)),
            }
    (HERE / "unknown_n.json").write_text(json.dumps({"posterior": table}, indent=1) + "\n")


if __name__ == "__main__":
    main()
