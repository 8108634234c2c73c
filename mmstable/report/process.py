"""Which process has written an event file?"""

from __future__ import annotations

from pathlib import Path

from mmstable.events.records import RunStart
from mmstable.lock_owner import NAME, Owner
from mmstable.process_identity import ProcessIdentity


def process_of(header: RunStart, folder: Path) -> ProcessIdentity | None:
    """The process of a start, to be asked whether it lives.

    Args:
        header (RunStart): What the start says of itself.
        folder (Path): The work directory, whose lock tells what an older
            mmstable did not write into the header.

    Returns:
        ProcessIdentity, optional: None if only a number is known, which by
        now may be that of another process.
    """
    pid, space, born = header.pid, header.space, header.born
    if space is not None and born is not None and 0 < pid < 2**31:
        return ProcessIdentity(header.host, pid, space, born)
    owner = Owner.read(folder / NAME)
    if owner is None or (owner.host, owner.pid) != (header.host, pid):
        return None
    return owner
