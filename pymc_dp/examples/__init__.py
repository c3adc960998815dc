"""Worked examples, each a module to run: ``python -m pymc_dp.examples.blood_lead``."""
