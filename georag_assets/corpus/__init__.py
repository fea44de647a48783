"""Corpora: declarations, loaders, documents, versions, chunks."""
