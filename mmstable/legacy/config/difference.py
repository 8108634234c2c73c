"""What has to be written on top of a base to get a config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def difference(
    base: Mapping[str, Any], wanted: Mapping[str, Any]
) -> dict[str, Any]:
    """The least that mmengine has to merge into ``base``.

    Args:
        base (Mapping): What is inherited.
        wanted (Mapping): What shall come out. Top-level keys of ``base``
            must be in it: a config cannot take them away.
    """
    return {
        key: _change(base[key], value) if key in base else value
        for key, value in wanted.items()
        if key not in base or not _equal(base[key], value)
    }


def _change(before: Any, after: Any) -> Any:
    if not isinstance(after, Mapping):
        return after
    if not isinstance(before, Mapping) or set(before) - set(after):
        # mmengine merges dicts unless it is told not to.
        return {'_delete_': True, **after}
    return difference(before, after)


def _equal(one: Any, other: Any) -> bool:
    # A list and a tuple of the same are not, and 1 is not True.
    return repr(one) == repr(other)
