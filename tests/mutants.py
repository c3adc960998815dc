"""Faults that are put in on purpose, one by one: the day suite has to see each of them.

    python3 run.py python --test -m tests.mutants [NAME ...]

prints a table. Each fault is of a kind that was made once, or that is easily made; each is applied
to a temporary copy of the tree, where the tests that should see it run. Part of the night run.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.table import Table

ROOT = Path(__file__).parents[1]


class Mutant(NamedTuple):
    """A fault: text of a file that is right, what stands there instead, and who should see it."""

    file: str
    right: str
    wrong: str
    tests: str


GEWEKE_STEPS = "tests/conformance/test_geweke.py::test_steps_leave_the_joint_law_alone"
GEWEKE_CHAINS = "tests/conformance/test_geweke_chains.py::test_chains_leave_the_joint_law_alone"

MUTANTS = {
    "sign of a tilt": Mutant(
        "pymc_dp/kernels/draws/log_concave.py",
        "_draw_power_exponential(rng, a, beta - lam, lo, split)",
        "_draw_power_exponential(rng, a, beta + lam, lo, split)",
        "tests/kernels/draws/test_log_concave.py",
    ),
    "Jacobian of a transform": Mutant(
        "pymc_dp/kernels/moments/gaussian_chain.py",
        "ratio = -model.a0 * log_c",
        "ratio = -(model.a0 + 0.5) * log_c",
        "tests/kernels/moments/test_gaussian_chain.py",
    ),
    "half of a shape": Mutant(
        "pymc_dp/step_methods/conjugacy/gamma.py",
        "(0.5 * y.size, ",
        "(y.size, ",
        "tests/conformance/test_conjugacy.py",
    ),
    "ddof": Mutant(
        "pymc_dp/reading/column_sums.py",
        "numbers.get(y, 0.0), a * (n - 1) / n)",
        "numbers.get(y, 0.0), a)",
        "tests/reading/test_normal_column.py",
    ),
    "window of a sum": Mutant(
        "pymc_dp/kernels/counts/sums.py",
        """\
            while y != end:
                if abs(y - mode) > _MOST_TERMS:
                    total = math.nan
""",
        """\
            while y != end and y > mode - 3.0:
                if abs(y - mode) > _MOST_TERMS:
                    total = math.nan
""",
        "tests/laws/test_count_sums.py",
    ),
    "wall of a sweep": Mutant(
        "pymc_dp/kernels/moments/gaussian_chain.py",
        "cap = max((mu - model.lo) * (model.hi - mu), TINY)",
        "cap = math.inf",
        "tests/kernels/moments/test_gaussian_chain.py",
    ),
    "stale cache": Mutant(
        "pymc_dp/kernels/keys.py",
        "for name, v in _read(function.__code__, function.__globals__)",
        "for name, v in ()",
        "tests/kernels/test_cache.py",
    ),
    "compiled wrapper of a kernel": Mutant(
        "pymc_dp/graphs/ops.py",
        "        return kernel(*inputs)",
        "        return kernel(*inputs[:-1], 1.01 * inputs[-1])",
        "tests/conformance/test_compiled.py",
    ),
    "first entry of a join": Mutant(
        "pymc_dp/graphs/powers.py",
        "[k, *rest] = {*exponents}",
        "[k, *rest] = {*exponents[isinstance(node.op, Join) :]}",
        "tests/graphs/test_powers.py",
    ),
    "closures of one name": Mutant(
        "pymc_dp/kernels/keys.py",
        "held = [cell.cell_contents for cell in function.__closure__ or ()]",
        "held: list[Any] = []",
        "tests/kernels/test_cache.py",
    ),
    "cast of a parameter": Mutant(
        "pymc_dp/graphs/values.py",
        'return pt.trunc if dtype.kind == "f" and not whole else None',
        "return None",
        "tests/conformance/test_readings.py",
    ),
    "constant by a draw": Mutant(
        "pymc_dp/graphs/values.py",
        "isinstance(r, kinds) and not isinstance(r.type, RandomType) for r in roots",
        "isinstance(r, kinds) for r in roots",
        "tests/graphs/test_values.py",
    ),
    "gaps between counts": Mutant(
        "pymc_dp/step_methods/counts.py",
        "concave = concave and not gaps and",
        "concave = concave and",
        "tests/conformance/test_readings.py",
    ),
    "dropped cast of a sum": Mutant(
        "pymc_dp/reading/sums/polynomials.py",
        "case DimShuffle():",
        "case DimShuffle() | ps.Cast():",
        "tests/conformance/test_readings.py",
    ),
    "Jacobian of a turn": Mutant(
        "pymc_dp/plugins/regression/kernels/chain.py",
        "return 0.5 * (c[-1] - out[-1])",
        "return 0.0",
        f"{GEWEKE_CHAINS}[exact regression: ridges]",
    ),
    "half of a precision": Mutant(
        "pymc_dp/kernels/counts/tables.py",
        "precision = releases.tau[m] * slope * slope",
        "precision = 0.5 * releases.tau[m] * slope * slope",
        f"{GEWEKE_STEPS}[TableGibbs: multinomial]",
    ),
    "records accepted too often": Mutant(
        "pymc_dp/kernels/records/sweeps.py",
        "take = holds and (u < 1.0 + step or u < math.exp(step))",
        "take = holds and u < math.exp(0.5 * step)",
        f"{GEWEKE_STEPS}[RecordMetropolis: clamped normal, without moves]",
    ),
    "tilt of a mixture, by a step": Mutant(
        "pymc_dp/kernels/draws/log_concave.py",
        "_draw_power_exponential(rng, a, beta - lam, lo, split)",
        "_draw_power_exponential(rng, a, beta + lam, lo, split)",
        f"{GEWEKE_STEPS}[TruncatedGammaMixtureGibbs: variances]",
    ),
    "weight of a release": Mutant(
        "pymc_dp/kernels/draws/scale_mixture.py",
        "z[i] * noise_precision) / precision",
        "0.5 * z[i] * noise_precision) / precision",
        f"{GEWEKE_STEPS}[LaplaceScaleMixtureGibbs: independent]",
    ),
    "shape of a rate": Mutant(
        "pymc_dp/kernels/counts/skellam_bessel.py",
        "rng.standard_gamma(1.0 + first), rng",
        "rng.standard_gamma(2.0 + first), rng",
        f"{GEWEKE_STEPS}[SkellamBesselGibbs: counts]",
    ),
    "half of a square": Mutant(
        "pymc_dp/step_methods/conjugacy/gamma.py",
        "0.5 * ((y - mu) ** 2 / f).sum()",
        "((y - mu) ** 2 / f).sum()",
        f"{GEWEKE_STEPS}[ConjugateGibbs: some families]",
    ),
    "half of a shape of a factor": Mutant(
        "pymc_dp/plugins/factorization/kernels.py",
        "rng.standard_gamma(shape[d, k] + row[k])",
        "rng.standard_gamma(shape[d, k] + 0.5 * row[k])",
        f"{GEWEKE_STEPS}[FactorizationGibbs: released]",
    ),
    "sign of a prior": Mutant(
        "pymc_dp/kernels/counts/exchanges.py",
        "+ _log_weight(total - c, *k_prior)",
        "- _log_weight(total - c, *k_prior)",
        f"{GEWEKE_STEPS}[CountGibbs: multinomial]",
    ),
    "step of a gap": Mutant(
        "pymc_dp/kernels/counts/tables.py",
        "step = a * b / math.gcd(int(a), int(b))",
        "step = 1.0",
        "tests/step_methods/test_tables.py",
    ),
    "Jacobian of a transform, by a chain": Mutant(
        "pymc_dp/kernels/moments/gaussian_chain.py",
        "ratio = -model.a0 * log_c",
        "ratio = -(model.a0 + 0.5) * log_c",
        f"{GEWEKE_CHAINS}[fused Gibbs: Laplace]",
    ),
    "squared errors of a central limit": Mutant(
        "pymc_dp/plugins/regression/clt.py",
        "(np.sqrt(2.0) * sigma**2).reshape",
        "(sigma**2).reshape",
        "tests/laws/moments/test_sums.py",
    ),
    "misread coefficient": Mutant(
        "pymc_dp/reading/column_sums.py",
        "(0,): {y: float(n)},",
        "(0,): {y: float(n - 1)},",
        "tests/fuzz/test_models.py",
    ),
    "factor of a statistic": Mutant(
        "pymc_dp/laws/one_value.py",
        "        return term - log_slope",
        "        return term",
        "tests/laws/families/test_moments.py::test_rows_of_a_matrix_with_noise_of_their_own",
    ),
    "constant of a recovered sum": Mutant(
        "pymc_dp/laws/one_value.py",
        "(np.asarray(self.constant) - constant)) / factor",
        "np.asarray(self.constant)) / factor",
        "tests/conformance/test_recovered.py",
    ),
    "Jacobian of coordinates": Mutant(
        "pymc_dp/routes/latent_normal.py",
        "pt.log(sd) - 0.5 * pt.log1p(h * b**2)",
        "pt.log(sd) - pt.log1p(h * b**2)",
        "tests/routes/test_coordinates.py",
    ),
    "entries of an array that changed": Mutant(
        "pymc_dp/reading/kept.py",
        "            and self.digests == [_digest(constant.data) for constant in self.constants]\n",
        "",
        "tests/routes/test_kept.py",
    ),
    "coordinates of other data": Mutant(
        "pymc_dp/reading/model.py",
        "            if not changed(basis.values):\n",
        "            if True:\n",
        "tests/routes/test_kept.py",
    ),
    "data that an answer was found from": Mutant(
        "pymc_dp/graphs/values.py",
        "        notice(*valued(graph))\n",
        "        pass\n",
        "tests/routes/test_kept.py",
    ),
    "shape of a variance": Mutant(
        "pymc_dp/laws/moments/one_column.py",
        "return pm.Gamma.dist((n - 1) / 2, (n - 1) / (2 * variance), **shape)",
        "return pm.Gamma.dist((n - 1) / 2, n / (2 * variance), **shape)",
        "tests/conformance/test_sum_laws.py",
    ),
    "shape of a variance by group": Mutant(
        "pymc_dp/laws/families/moments.py",
        "return law_of_moment(moment, m, v, n, shape=n.shape)",
        "return law_of_moment(moment, m, v, n + 1, shape=n.shape)",
        "tests/conformance/test_sum_laws.py",
    ),
    "residual sum of squares": Mutant(
        "pymc_dp/plugins/designs/family.py",
        "expected = 2.0 * form.alpha * spread[form.free] ** 2\n        residual",
        "expected = form.alpha * spread[form.free] ** 2\n        residual",
        "tests/conformance/test_sum_laws.py",
    ),
    "diagonal of a scatter": Mutant(
        "pymc_dp/laws/moments/sums.py",
        "diagonal = np.sqrt(2 * self.alpha) * pt.exp(",
        "diagonal = np.sqrt(self.alpha) * pt.exp(",
        "tests/conformance/test_sum_laws.py",
    ),
    "chances of listed counts": Mutant(
        "pymc_dp/laws/counts/listed.py",
        "mass = log_binomial(pt.arange(int(n) + 1), n, chance[k])",
        "mass = log_binomial(pt.arange(int(n) + 1), n, chance[0])",
        "tests/conformance/test_sum_laws.py",
    ),
    "equal reports": Mutant(
        "pymc_dp/plugins/reports/density.py",
        "total = (times * pt.log(chance)).sum()",
        "total = pt.log(chance).sum()",
        "tests/plugins/reports/test_law.py",
    ),
    "sum of Gamma records": Mutant(
        "pymc_dp/laws/families/closed.py",
        "lambda op, n, shape, scale: law(op, n * shape, scale)",
        "lambda op, n, shape, scale: law(op, shape, n * scale)",
        "tests/conformance/test_sum_laws.py",
    ),
    "root of a covariance": Mutant(
        "pymc_dp/laws/families/normal.py",
        "np.sqrt(values[kept])",
        "values[kept]",
        "tests/conformance/test_sum_laws.py",
    ),
    "chances of a recovered count": Mutant(
        "pymc_dp/laws/counts/marginal.py",
        "weights = np.array([1.0 - chance, chance])",
        "weights = np.array([chance, 1.0 - chance])",
        "tests/conformance/test_sum_laws.py",
    ),
    "noise of a multiple of a count": Mutant(
        "pymc_dp/laws/of_function.py",
        "Function(x, (a, b), a * x + b)",
        "Function(x, (a, b), a * x)",
        "tests/laws/counts/test_records.py",
    ),
    "constant of a drawn sum": Mutant(
        "pymc_dp/laws/one_value.py",
        "draw = np.asarray(statistic.factor) * draw + np.asarray(statistic.constant)",
        "draw = np.asarray(statistic.factor) * draw",
        "tests/conformance/test_sum_laws.py::test_draws_of_the_marginal_are_releases",
    ),
    "chance of a drawn count": Mutant(
        "pymc_dp/laws/counts/marginal.py",
        "pt.random.binomial(self.n, p, rng",
        "pt.random.binomial(self.n, 1.0 - p, rng",
        "tests/conformance/test_sum_laws.py::test_draws_of_the_marginal_are_releases",
    ),
    "sizes of inverted groups": Mutant(
        "pymc_dp/plugins/inversion/density.py",
        "sum_given(name, rng, summand, of_one, n[i, j], z, b, sd)",
        "sum_given(name, rng, summand, of_one, n[i, j] + 1, z, b, sd)",
        "tests/conformance/test_sum_laws.py",
    ),
    "noise around nothing": Mutant(
        "pymc_dp/laws/no_records.py",
        "return mechanism.logp(value, statistic)",
        "return mechanism.logp(value, 0 * statistic)",
        "tests/conformance/test_sum_laws.py",
    ),
    "start in the tails": Mutant(
        "pymc_dp/routes/starts.py",
        "best, near = max(best, center, key=_mass), center.widths",
        "near = center.widths",
        "tests/routes/test_starts.py",
    ),
    "half a step of rounding": Mutant(
        "pymc_dp/mechanisms/grids.py",
        "index - 0.5, index + 0.5",
        "index - 0.5, index + 0.49",
        "tests/mechanisms/test_enumerated.py",
    ),
    "atom on the border of two cells": Mutant(
        "pymc_dp/mechanisms/grids.py",
        "self.inner.is_discrete or isinstance(self.inner, PostProcessed)",
        "self.inner.is_discrete",
        "tests/mechanisms/test_enumerated.py",
    ),
    "value at a threshold": Mutant(
        "pymc_dp/mechanisms/suppressed.py",
        "(value >= a)",
        "(value > a)",
        "tests/mechanisms/test_enumerated.py",
    ),
    "noise that decides": Mutant(
        "pymc_dp/mechanisms/suppressed.py",
        "self.inner if self.by is None else self.by, as_float(np.inf)",
        "self.inner, as_float(np.inf)",
        "tests/mechanisms/test_enumerated.py",
    ),
    "quantile at which noise is cut": Mutant(
        "pymc_dp/plugins/rare_noise/staircase.py",
        "+ 0.5 * self._cut",
        "+ self._cut",
        "tests/plugins/rare_noise/test_more_noise.py",
    ),
    "mirror image": Mutant(
        "pymc_dp/plugins/rare_noise/bounded_laplace.py",
        "(a - self.lower) + (s - self.lower), b - a",
        "(a - self.lower) + (self.upper - s), b - a",
        "tests/plugins/rare_noise/test_more_noise.py",
    ),
    "standard deviation of heavy noise": Mutant(
        "pymc_dp/plugins/rare_noise/student_t.py",
        "sd * np.sqrt((df - 2.0) / df)",
        "sd * np.sqrt(df / (df + 2.0))",
        "tests/plugins/rare_noise/test_more_noise.py",
    ),
    "normaliser of the geometric": Mutant(
        "pymc_dp/mechanisms/geometric.py",
        "log_peak = pt.log1mexp(-rate) - pt.log1p(pt.exp(-rate))",
        "log_peak = pt.log1mexp(-rate)",
        "tests/mechanisms/test_geometric.py",
    ),
}


class Outcome(NamedTuple):
    """What the tests said of a copy: the first that failed (None if all passed), and seconds."""

    failed: str | None
    seconds: float


def run(mutant: Mutant) -> Outcome:
    """Apply a fault to a copy of the tree, and run the day tests that should see it."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "tree"
        # What is compiled comes along: that it is not taken for current is part of the test.
        skipped = shutil.ignore_patterns(".git", ".venv", "*_cache", "*.pyc")
        shutil.copytree(ROOT, copy, ignore=skipped)
        target = copy / mutant.file
        source = target.read_text()
        if source.count(mutant.right) != 1:
            raise ValueError(
                f"{mutant.file} has {mutant.right!r} {source.count(mutant.right)} times"
            )
        target.write_text(source.replace(mutant.right, mutant.wrong))
        # What is kept of a copy is gone with it; an installation of this tree is not imported.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("NUMBA_")}
        began = time.perf_counter()
        pytest = [sys.executable, "-m", "pytest", "-x", "-q", "-rfE", "-p", "no:cacheprovider"]
        done = subprocess.run(
            [*pytest, mutant.tests],
            cwd=copy,
            env=environment | {"PYTHONPATH": str(copy)},
            capture_output=True,
            text=True,
            check=False,
        )
        seconds = time.perf_counter() - began
    if done.returncode not in (0, 1):  # neither passed nor failed: nothing was tested
        said = done.stdout[-2000:]
        raise RuntimeError(f"pytest {mutant.tests} ended with {done.returncode}\n{said}")
    found = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", done.stdout, re.MULTILINE)
    return Outcome(found[1] if found else None, seconds)


def main() -> int:
    """Print the table; the exit status is the number of faults that nobody saw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help=", ".join(MUTANTS))
    names = parser.parse_args().names or list(MUTANTS)
    if unknown := set(names) - set(MUTANTS):
        parser.error(f"there is no fault {unknown}")
    table = Table("fault", "in", "seen by", "seconds")
    missed = 0
    for name in names:
        failed, seconds = run(MUTANTS[name])
        missed += failed is None
        table.add_row(name, MUTANTS[name].file, escape(failed or "NOBODY"), f"{seconds:.0f}")
    Console(width=160).print(table)
    return missed


if __name__ == "__main__":
    sys.exit(main())
