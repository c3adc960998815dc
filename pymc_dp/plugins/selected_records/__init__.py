"""Records that others select: sums over those that count.

Reads   sums of products or switches of two records, (b * x).sum() say.
Law     a mixture of the record and of nothing, handed on to the other laws.
Costs   what the law of the mixture costs.
Source  docs/reference/methods.md.
"""

from pymc_dp.graphs.registry import load

load(__name__)
