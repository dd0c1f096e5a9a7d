"""Ids of rows, columns and claims."""

from __future__ import annotations

import re
from collections.abc import Sequence

from paperbench.specs.strict_yaml import FieldError

_ID = re.compile("[a-z0-9_]+")


def check_ids(field: str, ids: Sequence[str]) -> None:
    """Make sure that ids are words, each there once.

    Raises:
        FieldError: One is not.
    """
    for one in ids:
        if not _ID.fullmatch(one):
            raise FieldError(field, f"the id {one!r} must be made of small letters, digits and underscores.")
        if ids.count(one) > 1:
            raise FieldError(field, f"the id {one!r} stands twice in {field}.")
