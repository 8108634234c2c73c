"""How many Python functions does a healthy iteration call?

Counts, not times: mmstable against stock mmengine, on the toy runner and
with the settings of ``tests/test_python_calls.py``.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import sys
import tempfile
from pathlib import Path

from results import DEFAULT_FOLDER, Row, format_table, write_json

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.test_python_calls import (  # noqa: E402
    ALONE,
    EVERYTHING,
    FIRST,
    LAST,
    STOCK,
    calls,
)


def measure() -> list[Row]:
    counts = {}
    for name, settings in (
        ('stock', STOCK),
        ('wrapper', ALONE),
        ('everything', EVERYTHING),
    ):
        with tempfile.TemporaryDirectory() as folder:
            found = calls(Path(folder), settings)
        counts[name] = sum(found.values()) / (LAST - FIRST)
    note = f'{counts["stock"]:.0f} calls with stock mmengine'
    return [
        Row(
            'an iteration',
            f'{name} / stock',
            counts[name] / counts['stock'],
            limit,
            note=note,
        )
        for name, limit in (('wrapper', 1.0), ('everything', 1.1))
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        '--json', type=Path, default=DEFAULT_FOLDER / 'python_calls.json'
    )
    args = parser.parse_args()
    logging.disable(logging.CRITICAL)
    with contextlib.redirect_stdout(io.StringIO()):
        rows = measure()
    print(format_table(rows))
    write_json(args.json, rows, {})


if __name__ == '__main__':
    main()
