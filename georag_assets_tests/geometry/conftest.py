"""What only the geometry tests need."""

from __future__ import annotations

import time

import pytest


@pytest.fixture
def benchmark_seconds():
    """Return a function that calls another one three times and gives the fastest run's seconds."""

    def fastest(call):
        seconds = []
        for _ in range(3):
            start = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - start)
        return min(seconds)

    return fastest
