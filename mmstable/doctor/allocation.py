"""Does the memory hold what is written to it?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from mmstable.doctor.devices import devices
from mmstable.doctor.items import Item, NotSeen, Plan, fact, found
from mmstable.finding import Severity
from mmstable.memory.host_limit import host_room
from mmstable.memory.sizes import readable
from mmstable.messages import _

_BLOCK = 64 << 20
_SHARE_OF_GPU = 0.9
# More than this is in use: somebody trains there, who would lose his run.
_IN_USE = 0.1
# RAM is shared with everything else on the machine.
_SHARE_OF_HOST = {False: 0.05, True: 0.5}
_MOST_OF_HOST = {False: 1 << 30, True: 1 << 40}
# Both have every bit set once.
_PATTERNS = (0x5555555555555555, -0x5555555555555556)


def allocation(plan: Plan) -> Iterator[Item]:
    """Fill the free memory of every device, and read it again."""
    for device in devices():
        size = _size(device, plan.is_long)
        if size is None:
            yield NotSeen(
                _('memory of {device}', device=device),
                _('another program uses it, which a full memory would end'),
            )
            continue
        held, wrong = fill(device, size)
        yield fact('tested_memory', readable(held), device)
        if wrong:
            yield found('bad_memory', Severity.ERROR, device, blocks=wrong)
        if held < size * 0.9:
            yield found(
                'allocation',
                Severity.WARNING,
                device,
                held=readable(held),
                free=readable(size),
            )


def _size(device: str, is_long: bool) -> int | None:
    """Bytes to test; None if somebody else is there."""
    if device == 'cpu':
        share = int(host_room().left * _SHARE_OF_HOST[is_long])
        return min(share, _MOST_OF_HOST[is_long])
    import torch

    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    if total - free > _IN_USE * total:
        return None
    return int(free * _SHARE_OF_GPU)


def fill(
    device: str,
    size: int,
    block: int = _BLOCK,
    change: Callable[[list[Any]], None] = lambda blocks: None,
) -> tuple[int, int]:
    """Write patterns to memory and read them.

    Args:
        device (str): Whose memory.
        size (int): How many bytes.
        block (int): Bytes of a block. Defaults to 64 MiB.
        change (Callable): Called with the blocks once they are written.
            Defaults to doing nothing.

    Returns:
        tuple[int, int]: Bytes that were given, and blocks that changed.
    """
    blocks = _blocks(device, size, block)
    wrong = set()
    for pattern in _PATTERNS:
        for index, one in enumerate(blocks):
            # Else a block in the place of another would go unseen.
            one.fill_(pattern ^ index)
        change(blocks)
        for index, one in enumerate(blocks):
            if not bool((one == (pattern ^ index)).all()):
                wrong.add(index)
    return sum(one.numel() * 8 for one in blocks), len(wrong)


def _blocks(device: str, size: int, block: int) -> list[Any]:
    import torch

    blocks = []
    for __ in range(max(1, size // block)):
        try:
            one = torch.empty(block // 8, dtype=torch.int64, device=device)
        except (MemoryError, RuntimeError):
            # It says how much it got.
            break
        blocks.append(one)
    return blocks
