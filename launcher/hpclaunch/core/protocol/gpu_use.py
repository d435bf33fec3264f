"""The use of a GPU. Helpers without site-packages import this module."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GpuUse:
    """The use of one GPU of an agent's task. `total`, `temperature` and `power` are 0 if they are
    unknown.
    """

    busy: float | None  # share of the last moments in which a kernel ran; None if it is unknown
    used: int  # bytes of its memory
    total: int
    temperature: int  # degrees Celsius
    power: float  # watts
