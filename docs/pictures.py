"""Rebuild the pictures of pictures.md and the report beside it from results/: `python docs/pictures.py`."""

from __future__ import annotations

import shutil
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory

from paperbench.cli.main import main

DOCS = Path(__file__).parent
SMOKE = ("table2", "--profile", "smoke", "--seeds", "3", "--results", "results/smoke")
SHALLOW = ("table2", "--profile", "shallow", "--results", "results/jpeg-copy")
PICTURES = {"fig2": ("fig2",), "fig4": ("fig4",), "fig5": ("fig5",), "smoke": SMOKE, "shallow": SHALLOW}
"""What is drawn, by the names of the files."""


def build(directory: Path) -> None:
    """Write pictures/*.svg and report/index.html into a directory."""
    (directory / "pictures").mkdir(exist_ok=True)
    with chdir(DOCS.parent), TemporaryDirectory() as results:
        for source in ("smoke", "jpeg-copy"):
            shutil.copytree(f"results/{source}/runs", f"{results}/runs", dirs_exist_ok=True)
        report = ("table2", "--profile", "shallow", "smoke", "--seeds", "3", "--results", results)
        commands = [("plot", *what, "--out", f"{directory}/pictures/{name}.svg") for name, what in PICTURES.items()]
        for command in (*commands, ("report", *report, "--out", f"{directory}/report")):
            if main(list(command)):
                raise SystemExit(1)


if __name__ == "__main__":
    build(DOCS)
