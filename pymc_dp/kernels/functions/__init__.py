"""Special functions that keep their digits."""
