"""Sweeps over confidential records, and interweaving moves of their parameters."""
