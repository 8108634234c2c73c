"""Protect every config that OpenMMLab publishes, and lose nothing.

The wheels are those of check_corpus.py: unzipped, not installed. Classes of
packages that are not here are looked up as mmengine would, which falls back
to its own. For every config and preset three things are counted: whether
protection fails, whether a setting is lost (all that is in the config is
still there, except classes that have a safe one and numbers that the preset
sets), and whether the overlay of ``mmstable protect``, read by mmengine, is
something else than what ``mmstable train`` would train.
"""

from __future__ import annotations

import copy
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from check_corpus import corpus
from mmengine.config import Config
from results import Row, format_table, write_json

from mmstable.check.config_tree import ABSENT
from mmstable.cli.command import STABILITY
from mmstable.cli.config import load_config, plain_settings
from mmstable.cli.protect import overlay
from mmstable.errors import UsageError
from mmstable.protection import Group, Protection, apply_changes, find_changes

# A name that no config of theirs has.
OUTPUT = '_protected_by_the_benchmark.py'


def leaves(node: Any, path: tuple = ()) -> Iterator[tuple[tuple, Any]]:
    """Every value that is no dict and no list, and where it is."""
    pairs: Any = ()
    if isinstance(node, dict):
        pairs = node.items()
    elif isinstance(node, (list, tuple)):
        pairs = enumerate(node)
    else:
        yield path, node
    for name, value in pairs:
        yield from leaves(value, (*path, name))


def lost(before: Any, after: Any, protection: Protection) -> list[tuple]:
    """Paths of settings that are gone or others, and should not be."""
    allowed = [
        one.path
        for one in protection.changes
        if one.group is not Group.HOOK or one.value is ABSENT
    ]
    now = {path: repr(value) for path, value in leaves(after)}
    return [
        path
        for path, value in leaves(before)
        if now.get(path) != repr(value)
        and not any(path[: len(one)] == one for one in allowed)
    ]


def overlay_differs(
    path: Path, before: Any, after: Any, protection: Protection
) -> bool:
    """Whether mmengine reads another config out of the overlay."""
    if Config._is_lazy_import(str(path)) or not protection.changes:
        return False
    target = path.with_name(OUTPUT)
    try:
        target.write_text(overlay(before, protection, f'./{path.name}'))
        read = plain_settings(load_config(str(target), import_modules=False))
    finally:
        target.unlink(missing_ok=True)
    return repr(sorted(leaves(read), key=repr)) != repr(
        sorted(leaves(after), key=repr)
    )


def protect_all(found: list[Path], presets: list[str]) -> Counter[str]:
    """Protect them, and count."""
    counts: Counter[str] = Counter()
    for number, path in enumerate(found):
        try:
            cfg = load_config(str(path), import_modules=False)
        except UsageError:
            counts['not readable'] += 1
            continue
        before = plain_settings(cfg)
        # The overlay takes long; the presets take turns.
        shown = presets[number % len(presets)]
        for preset in presets:
            counts['protected'] += 1
            try:
                protection = find_changes(before, preset)
                after = copy.deepcopy(before)
                apply_changes(after, protection.changes)
                again = find_changes(after, preset).changes
                differs = preset == shown and overlay_differs(
                    path, before, after, protection
                )
            except Exception as error:
                counts['failed'] += 1
                print(f'{path.name}, {preset}: {error!r}')
                continue
            gone = lost(before, after, protection)
            counts['left alone'] += bool(protection.left)
            for name, wrong in (
                ('lost', gone),
                ('not idempotent', again),
                ('overlay differs', differs),
            ):
                if wrong:
                    counts[name] += 1
                    print(f'{path.name}, {preset}: {name} {gone or again}')
    return counts


def main() -> None:
    """Print the table and write it as JSON."""
    found, path = corpus(__doc__, 'protect_corpus')
    start = time.monotonic()
    counts = protect_all([one for one, _ in found], list(STABILITY))
    rows = [
        Row('all configs', 'configs x presets', counts['protected']),
        Row('all configs', 'not readable', counts['not readable']),
        Row('all configs', 'with a class left alone', counts['left alone']),
        *(
            Row('all configs', name, counts[name], 0)
            for name in ('failed', 'lost', 'not idempotent', 'overlay differs')
        ),
        Row('all configs', 'seconds', time.monotonic() - start),
    ]
    print(format_table(rows))
    write_json(path, rows, {})


if __name__ == '__main__':
    main()
