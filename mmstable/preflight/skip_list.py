"""A file that names samples to leave out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mmstable.checked_json import integer, parse_json
from mmstable.checkpoint.atomic_file import replace_text
from mmstable.files import read_bounded

_LONGEST = 1 << 28
_VERSION = 1


def write_skip_list(
    path: Path,
    length: int,
    samples: Sequence[tuple[int, str, Sequence[str]]],
) -> None:
    """Write a list.

    Args:
        path (Path): The file.
        length (int): How many samples the data set has.
        samples (Sequence): Index, name and reasons of each to leave out.
    """
    content = {
        'skip_list': _VERSION,
        'length': length,
        'samples': [
            {'index': index, 'name': name, 'reasons': list(reasons)}
            for index, name, reasons in samples
        ],
    }
    replace_text(
        path, json.dumps(content, indent=1, ensure_ascii=False) + '\n'
    )


def read_skip_list(path: Path) -> tuple[int, dict[int, str]]:
    """Read a list.

    Args:
        path (Path): The file.

    Returns:
        tuple: How many samples the data set had, and the indices of those to
        leave out, with their names.

    Raises:
        ValueError: If it is no such list.
        OSError: If it cannot be read.
    """
    content = parse_json(read_bounded(path, _LONGEST), _LONGEST)
    if not isinstance(content, Mapping) or 'skip_list' not in content:
        raise ValueError('is no skip list of `mmstable check-data`')
    if content['skip_list'] != _VERSION:
        raise ValueError('was made by a newer mmstable')
    try:
        length = _index(content.get('length'))
        return length, dict(_entry(one, length) for one in content['samples'])
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f'is damaged ({error})') from error


_index = integer(least=0)


def _entry(sample: Mapping[str, Any], length: int) -> tuple[int, str]:
    index, name = _index(sample['index']), sample['name']
    if index >= length or not isinstance(name, str):
        raise ValueError(f'sample {index} of {length}')
    return index, name
