"""Values that were released one by one, each with noise of its own.

Reads   a function of each value of one variable, under any noise that has a density.
Law     law times noise, integrated or summed over the value; closed forms are asked first.
Costs   some ten panels of 17 nodes a value, or a term for each count that matters.
Source  Gauss and Kronrod's rules, as in QUADPACK (Piessens et al. 1983).
"""

from pymc_dp.graphs.registry import load

load(__name__)
