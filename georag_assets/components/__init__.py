"""Dagster Components: one YAML file declares one corpus."""
