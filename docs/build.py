"""Build the documentation: a site in build/site, and the manual page build/hpclaunch.1.

make docs
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from argparse_manpage.manpage import Manpage

from hpclaunch.cli.options import build_parser

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build"
PAGES = ("*.md", "docs/*.md", "docs/*.json", "docs/pictures/*", "bench/results/*.md")


def main() -> None:
    pages = BUILD / "pages"
    shutil.rmtree(pages, ignore_errors=True)
    for pattern in PAGES:
        for path in ROOT.glob(pattern):
            copy = pages / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)
    parser = build_parser({})
    parser.man_short_description = "launch the workers of a distributed training"  # type: ignore[attr-defined]
    before, begin, rest = str(Manpage(parser)).partition(".SH DESCRIPTION\n")
    description, end, after = rest.partition(".SH WORKERS\n")  # with lines as they are
    assert end, "the options of workers come first"
    manual = f"{before}{begin}.nf\n{description}.fi\n{end}{after}"
    (BUILD / "hpclaunch.1").write_text(manual)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
    subprocess.run(command, cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
