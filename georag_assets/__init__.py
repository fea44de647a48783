"""A geospatial RAG index as Dagster data assets.

Nothing is wired at import: `georag_assets.definitions` holds the Dagster definitions, `georag_assets.cli`
the command line, and the rooms between them the domain.
"""

__version__ = "0.1.0"
