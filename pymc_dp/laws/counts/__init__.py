"""Records with finitely many values, as their counts."""
