"""What was printed when somebody last looked at it, in files that are read and renewed instead of written."""

from __future__ import annotations

import os
import re
from pathlib import Path

FOLDER = Path(__file__).parent / "printed"


def assert_golden(name: str, text: str) -> None:
    """Compare a text with tests/printed/NAME.txt.

    After an intended change, `RENEW=1 pytest ...` writes the files; read their difference before you commit it.
    Of long decimals, 6 digits count: the others differ between processors and libraries.
    """
    text = re.sub(r"\d+\.\d{7,}(e-?\d+)?", lambda number: f"{float(number[0]):.6g}", text)
    path = FOLDER / f"{name}.txt"
    if os.environ.get("RENEW"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"{path.name} differs; RENEW=1 writes it"
