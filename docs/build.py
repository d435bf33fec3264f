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
    manual = str(Manpage(parser)).replace("\n.SH DESCRIPTION\n", "\n.SH DESCRIPTION\n.nf\n")
    (BUILD / "hpclaunch.1").write_text(manual.replace("\n.SH WORKERS\n", "\n.fi\n.SH WORKERS\n"))
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
    sys.exit(subprocess.run(command, cwd=ROOT, check=False).returncode)


if __name__ == "__main__":
    main()
