"""Benchmarks: `python -m benchmarks.NAME [--json] [--quick]`, one contract for all (`report`)."""
