"""A real browser, if this machine has one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

NAMES = ('chromium', 'chromium-browser', 'google-chrome')


def find_browser() -> str:
    """The path of a chromium; skips the test without one."""
    pytest.importorskip(
        'playwright.sync_api',
        reason='playwright is not installed (requirements/browser.sh)',
    )
    for name in NAMES:
        path = shutil.which(name)
        if path is not None:
            return path
    pytest.skip('there is no chromium here (requirements/browser.sh)')


@contextmanager
def started() -> Iterator[Any]:
    """A browser; skips the test if it does not start."""
    path = find_browser()
    from playwright.sync_api import Error, sync_playwright

    with sync_playwright() as play:
        try:
            browser = play.chromium.launch(
                executable_path=path, args=['--no-sandbox'], timeout=60_000
            )
        except Error as error:
            pytest.skip(f'chromium does not start: {str(error)[:300]}')
        yield browser
        browser.close()
