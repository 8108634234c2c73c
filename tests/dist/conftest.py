from __future__ import annotations

import pytest

from mmstable.dist import store


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is logged about values in the store that no rank has written."""
    lines: list[str] = []
    monkeypatch.setattr(store, '_REPORTED', set())
    monkeypatch.setattr(
        store, 'print_log', lambda line, **kwargs: lines.append(line)
    )
    return lines
