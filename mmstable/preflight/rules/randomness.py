"""Determinism that was asked for, and is not given."""

from __future__ import annotations

from collections.abc import Iterator

from mmstable.finding import Severity
from mmstable.preflight.config_view import ConfigView
from mmstable.preflight.rule import Hit, rule


@rule('deterministic_with_benchmark', Severity.WARNING)
def deterministic_with_benchmark(view: ConfigView) -> Iterator[Hit]:
    """One setting asks for what the other excludes."""
    path = 'env_cfg.cudnn_benchmark'
    if view.get('randomness.deterministic') and view.get(path):
        yield Hit(path, {}, {path: False})


@rule('deterministic_without_seed', Severity.WARNING)
def deterministic_without_seed(view: ConfigView) -> Iterator[Hit]:
    """Every run draws another seed."""
    path = 'randomness.seed'
    if view.get('randomness.deterministic') and view.get(path) is None:
        yield Hit(path, {}, {path: 0})
