"""A list of launches, with a line for each."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.protocol.job_snapshot import LaunchSnapshot
from ..core.protocol.stages import Stage
from ..core.protocol.wording import plain
from .job_screen import doing, ending, how_far, led_from
from .text_style import Cell, Colour, TextStyle, duration, rate, short_rate


def job_list(
    launches: Sequence[LaunchSnapshot], others: Sequence[tuple[str, str]], style: TextStyle
) -> list[str]:
    """Return the lines. `others` are jobs that do not answer: their names, and what is known."""
    rows: list[list[Cell]] = [_row(launch) for launch in launches]
    rows += [[name, "", "", "", "", (what, Colour.FAINT)] for name, what in others]
    titles = ("job", "ranks", "steps", "pace", "checkpoint", "does")
    return style.table(titles, rows, "lrrrrl")


def _row(launch: LaunchSnapshot) -> list[Cell]:
    job = launch.job
    if job is None:
        return [launch.name, "", "", "", "", led_from(launch)]
    age = None if job.checkpoint is None else job.checkpoint.age
    return [
        launch.name,
        str(job.ranks or ""),
        f"{job.step or job.steps:,}" if job.steps else "",
        short_rate(job.pace) if job.pace else "",
        "" if age is None else f"{duration(age)} old",
        doing(job),
    ]


def job_line(launch: LaunchSnapshot) -> str:
    """Return the line of a launch without columns, for a file."""
    job = launch.job
    if job is None:
        return f"{launch.name}: it {led_from(launch)}"
    facts = [doing(job), f"round {job.round}", f"{job.ranks} ranks" if job.ranks else ""]
    facts += [how_far(job), rate(job.pace) if job.pace else "", ending(job)]
    is_silent = launch.old is not None and job.stage is not Stage.ENDED
    facts += ["no longer answers" if is_silent else ""]
    return plain(f"{launch.name}: {', '.join(filter(None, facts))}")
