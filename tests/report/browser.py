"""A headless Chromium for tests of the page."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Start the machine's Chromium, once for all tests."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install playwright")
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip("no Chromium: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        with playwright.chromium.launch(executable_path=path, args=arguments) as started:
            yield started


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., Any]]:
    """Return a function that opens a file in a new window, with options of `Browser.new_context`.

    The test fails if a page asks for anything but files, or if one of its scripts fails or complains.
    """
    troubles: list[str] = []

    def refuse(route: Any) -> None:
        troubles.append(f"request: {route.request.url}")
        route.abort()

    def opened(path: Path, **options: Any) -> Any:
        page = contexts.enter_context(browser.new_context(**options)).new_page()
        page.route(lambda url: not url.startswith("file://"), refuse)
        page.on("pageerror", lambda error: troubles.append(f"error: {error}"))
        page.on("console", lambda message: troubles.append(f"console: {message.text}"))
        page.goto(path.as_uri())
        return page

    with ExitStack() as contexts:
        yield opened
    assert troubles == []
