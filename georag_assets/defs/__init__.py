"""Everything that this installation declares: one folder with a `defs.yaml` for each corpus.

What belongs here: declarations and Dagster-only definitions of this installation. What does not: the component they
name (`components`), and any logic (the domain rooms).
"""
