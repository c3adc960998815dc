"""Tables of many columns from noisy margins.

Reads   noisy margins of one table of categorical columns, whose law is a decomposable log-linear
        model.
Law     exact draws of the counts of the model's cliques, with the weights integrated out.
Costs   lines times cliques that hold a column a sweep; the full table never appears.
Source  Dawid & Lauritzen (1993); Dobra (2000).
"""
