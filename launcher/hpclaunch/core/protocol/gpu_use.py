"""The use of a GPU. Helpers without site-packages import this module."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GpuUse:
    """How one GPU of an agent's task is used."""

    busy: float | None  # share of the last moments in which a kernel ran; None if it does not tell
    used: int  # bytes of its memory
    total: int
    temperature: int  # degrees Celsius
    power: float  # watts
