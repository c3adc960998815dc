"""Exact draws from laws of one variable."""
