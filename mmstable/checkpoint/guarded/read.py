"""Read a whole checkpoint from one open file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Union

import torch

from mmstable.checkpoint.guarded.build import Builder
from mmstable.checkpoint.guarded.legacy_file import LegacyFile
from mmstable.checkpoint.guarded.nodes import Tally
from mmstable.checkpoint.guarded.open_file import ReadableFile, read_ranges
from mmstable.checkpoint.guarded.zip_archive import MAGIC, ZipArchive

MapLocation = Union[Callable[..., Any], torch.device, str, dict, None]


@dataclass(frozen=True)
class Content:
    """What a file holds.

    Args:
        value (Any): The saved object.
        sha256 (str): The digest of the file; '' if it was not asked for.
    """

    value: Any
    sha256: str


def read(
    file: ReadableFile,
    map_location: MapLocation = 'cpu',
    with_values: bool = True,
    with_digest: bool = False,
    check_sums: bool = False,
) -> Content:
    """Read a checkpoint.

    Args:
        file (ReadableFile): The open file.
        map_location (Any): As in ``torch.load``. Defaults to 'cpu'.
        with_values (bool): Whether to read the tensors' values; otherwise
            they are on the device 'meta'. Defaults to True.
        with_digest (bool): Whether to digest what is read. Defaults to
            False.
        check_sums (bool): Whether to compare the check sums inside the file,
            if there are any. Defaults to False.

    Raises:
        Malformed: If it is damaged, or something else.
        Refused: If it is more than data.
    """
    is_zip = file.size >= len(MAGIC) and file.read_at(0, len(MAGIC)) == MAGIC
    source = ZipArchive(file) if is_zip else LegacyFile(file)
    tally = Tally()
    tree = source.read_tree(tally)
    if with_values:
        digest = source.fill(tally, with_digest, check_sums)
        _place(tally, map_location)
    else:
        digest = read_ranges(file, [], with_digest)
    builder = Builder(tally.operations, file.size, with_values)
    return Content(builder.build(tree), digest)


def _place(tally: Tally, map_location: MapLocation) -> None:
    """Bring storages to their devices, as ``torch.load`` does."""
    if map_location in ('cpu', torch.device('cpu')):
        return
    for node in tally.storages.values():
        location: Any = node.location
        if callable(map_location):
            placed = map_location(node.data, location)
            if placed is None:
                placed = _restore(node.data, location)
        else:
            if isinstance(map_location, dict):
                location = map_location.get(location, location)
            elif map_location is not None:
                location = str(map_location)
            placed = _restore(node.data, location)
        node.data = getattr(placed, '_untyped_storage', placed)


def _restore(storage: Any, location: Any) -> Any:
    return torch.serialization.default_restore_location(storage, str(location))
