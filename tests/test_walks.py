"""Walks of a run: drawn as they are, and no longer than they may be."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.walks import WALKS, Trace, record_walks


@pytest.fixture(scope='module')
def traces(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trace]:
    return record_walks(tmp_path_factory.mktemp('walks'))


@pytest.mark.parametrize('name', WALKS)
def test_a_walk_is_as_drawn(traces: dict[str, Trace], name: str) -> None:
    walk = WALKS[name]
    stations = walk.stations()
    first = Path(*walk.module.split('.')[1:]).with_suffix('.py').as_posix()
    assert first in {one.partition(':')[0] for one in stations}
    # Each is passed after the one before it.
    rest = iter(traces[name].calls)
    assert [one for one in stations if one not in rest] == []


@pytest.mark.parametrize('name', WALKS)
def test_a_walk_is_no_longer_than_it_may_be(
    traces: dict[str, Trace], name: str
) -> None:
    walk, trace = WALKS[name], traces[name]
    assert len(trace.files) <= walk.files, sorted(trace.files)
    assert len(trace.calls) <= walk.calls
