"""Retrieval: regions, ranking, evidence."""
