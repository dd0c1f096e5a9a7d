"""A hook of MkDocs that adds the repository's top-level Markdown files to the site.

Links are written as GitHub resolves them: relative to the file in the repository. On the site, a link to one of its
pages, or to a picture or report beside them, leads there. A link to any other file of the repository becomes plain
text, because the site lacks the file.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]

TOP_LEVEL_PAGES = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
"""Paths on the site by path in the repository."""

_REPOSITORY_PATHS = {site_path: path for path, site_path in TOP_LEVEL_PAGES.items()}
_LINK = re.compile(r"\[(?P<text>[^\]]*)\]\((?P<path>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the top-level pages."""
    for path, site_path in TOP_LEVEL_PAGES.items():
        files.append(File.generated(config, site_path, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite the links between files of the repository."""
    site_path = page.file.src_uri
    directory = posixpath.dirname(_REPOSITORY_PATHS.get(site_path, f"docs/{site_path}"))
    return _LINK.sub(lambda link: _site_link(link, directory), markdown)


def _site_link(link: re.Match[str], directory: str) -> str:
    """The text that replaces a link of a file in a directory of the repository."""
    target = posixpath.normpath(posixpath.join(directory, link["path"]))
    if target.startswith("..") or not (ROOT / target).exists():
        return link[0]  # a web address, or a broken link, which the strict build reports
    site_path = TOP_LEVEL_PAGES.get(target, target.removeprefix("docs/"))
    if target not in TOP_LEVEL_PAGES and (not target.startswith("docs/") or target.endswith(".py")):
        return link["text"]
    return f"[{link['text']}]({site_path}{link['anchor'] or ''})"
