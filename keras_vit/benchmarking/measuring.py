"""The order of calls, and what becomes of their seconds: forth and back, medians, ratios within a round."""

import statistics
from collections.abc import Mapping, Sequence

from keras_vit.benchmarking.workers import Worker

Seconds = Mapping[str, Sequence[float]]  # of each round, by runner


def in_turn(names: Sequence[str], rounds: int) -> list[str]:
    """The order of calls: forth in one round and back in the next, so that none always follows the same."""
    return [name for number in range(rounds) for name in list(names)[:: -1 if number % 2 else 1]]


def measured(workers: Mapping[str, Worker], rounds: int) -> dict[str, list[float]]:
    """Seconds of every call, by runner.

    Raises:
        WorkerError: if a process ends.
    """
    seconds: dict[str, list[float]] = {name: [] for name in workers}
    for name in in_turn(list(workers), rounds):
        seconds[name].append(workers[name].step()["seconds"])
    return seconds


def spread(seconds: Sequence[float]) -> float:
    """The distance of the quartiles over the median; 0 for one call."""
    if len(seconds) < 2:
        return 0.0
    low, middle, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return (high - low) / middle


def ratio(mine: Sequence[float], theirs: Sequence[float]) -> float:
    """Median over rounds of one's seconds over the other's in the same round."""
    return statistics.median(a / b for a, b in zip(mine, theirs, strict=True))


def fastest(seconds: Seconds, names: Sequence[str]) -> str | None:
    """Of these the one with the least median; `None` of none."""
    timed = [name for name in names if name in seconds]
    return min(timed, key=lambda name: statistics.median(seconds[name]), default=None)
