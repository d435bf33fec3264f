"""The chart of the README, pictures/torchrun.svg, of the figures in figures.md.

pip install matplotlib; python docs/chart.py
"""

from __future__ import annotations

from pathlib import Path

import matplotlib
from matplotlib import pyplot
from matplotlib.axes import Axes

DOCS = Path(__file__).parent
# By the first cell of a row in figures.md, which has a row below it for each number of workers.
PANELS = {
    "launch to the first all-reduce": "launch to the first all-reduce",
    "SIGKILL of a worker until all ranks are initialised again": "restart after a worker is killed",
}
LAUNCHERS = {"hpclaunch": "#1f77b4", "torchrun": "#b0b0b0"}
HEIGHT = 0.38  # of a bar; the rows are 1 apart
SIZE = 9, 2.6  # inches


def main() -> None:
    matplotlib.rcParams |= {
        "svg.hashsalt": "hpclaunch",
        "svg.fonttype": "none",
    }  # the same file each time
    figure, panels = pyplot.subplots(1, len(PANELS), figsize=SIZE, layout="constrained")
    for axes, (row, title) in zip(panels, PANELS.items(), strict=True):
        draw(axes, measured(row))
        axes.set_title(title, fontsize=10, loc="left")
    panels[0].legend(frameon=False, fontsize=9, loc="upper right")
    figure.savefig(DOCS / "pictures" / "torchrun.svg", metadata={"Date": None})


def measured(label: str) -> dict[str, list[float]]:
    """Return the seconds of both launchers, by the number of workers."""
    found: dict[str, list[float]] = {}
    current = ""
    for line in (DOCS / "figures.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        current = (cells[0] or current) if cells else ""
        if current == label:
            _, workers, *seconds, _ratio = cells
            found[workers] = [float(each.removesuffix(" s")) for each in seconds]
    assert found, f"no row {label} in figures.md"
    return found


def draw(axes: Axes, seconds: dict[str, list[float]]) -> None:
    for at, (launcher, colour) in enumerate(LAUNCHERS.items()):
        places = [row + at * HEIGHT for row in range(len(seconds))]
        bars = axes.barh(places, [each[at] for each in seconds.values()], HEIGHT, color=colour)
        bars.set_label(launcher)
        axes.bar_label(bars, fmt="%.2f s", padding=3, fontsize=8)
    axes.set_yticks(
        [row + HEIGHT / 2 for row in range(len(seconds))],
        [f"{workers} workers" if workers.isdigit() else workers for workers in seconds],
        fontsize=9,
    )
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.xaxis.set_visible(False)
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.tick_params(left=False)


if __name__ == "__main__":
    main()
