"""A real browser, if this machine has one."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

NAMES = ('chromium', 'chromium-browser', 'google-chrome')


@contextmanager
def started() -> Iterator[Any]:
    """A browser; skips all its tests if there is none."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None or importlib.util.find_spec('playwright') is None:
        pytest.skip('no chromium or playwright: `make browser` installs both')
    from playwright.sync_api import Error, sync_playwright

    with sync_playwright() as play:
        try:
            browser = play.chromium.launch(
                executable_path=path, args=['--no-sandbox'], timeout=60_000
            )
        except Error as error:
            reason = ' '.join(str(error)[:300].split())
            pytest.skip(f'chromium does not start: {reason}')
        yield browser
        browser.close()
