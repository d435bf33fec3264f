"""Metrics of a job as values, which an exporter writes in the formats of Prometheus."""

from __future__ import annotations

from enum import Enum

from .values import value

Labels = dict[str, str]


class MetricKind(str, Enum):
    GAUGE = "gauge"
    COUNTER = "counter"  # its samples end in _total
    INFO = "info"  # its sample ends in _info, and is always 1


@value(frozen=True)
class MetricSample:
    labels: Labels
    value: float


@value(frozen=True)
class MetricFamily:
    """One metric. `name` has no suffix of its kind, and ends in the unit if there is one."""

    name: str
    kind: MetricKind
    help: str
    unit: str
    samples: tuple[MetricSample, ...]
