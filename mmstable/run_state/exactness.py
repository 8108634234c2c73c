"""Will a resumed run end as it would have without the break?"""

from __future__ import annotations

from typing import Any

import torch
from mmengine.device import get_device
from mmengine.dist import get_world_size
from mmengine.runner import BaseLoop, EpochBasedTrainLoop, Runner
from torch.nn.parallel import DistributedDataParallel

from mmstable.messages import _


def rounding_doubts(runner: Runner) -> list[str]:
    """Why sums may be rounded in another way."""
    found = []
    model, device = runner.model, get_device()
    if get_world_size() > 2 and isinstance(model, DistributedDataParallel):
        found.append(
            _(
                'to rounding: with {ranks} ranks DDP sums the first '
                'iteration in another order',
                ranks=get_world_size(),
            )
        )
    if device != 'cpu' and not torch.are_deterministic_algorithms_enabled():
        found.append(
            _(
                'to rounding: kernels on {device} may sum in any order '
                'unless torch.use_deterministic_algorithms(True) is set',
                device=device,
            )
        )
    return found


def stock_loop_doubts(loop: BaseLoop, epoch: Any, iteration: Any) -> list[str]:
    """What a loop of mmengine's does not repeat.

    Args:
        loop (BaseLoop): The loop.
        epoch (int): Epochs done, as the checkpoint says.
        iteration (int): Iterations done, as the checkpoint says.
    """
    found = [
        _(
            "mmengine's {loop} reads its first batch before random numbers "
            'are restored; the Safe... loops do not',
            loop=type(loop).__name__,
        )
    ]
    if isinstance(loop, EpochBasedTrainLoop) and iteration is not None:
        count = iteration - epoch * len(loop.dataloader)
        if count > 0:
            found.append(
                _(
                    "mmengine's {loop} starts the epoch anew and trains on "
                    '{count:batch|batches} twice; SafeEpochBasedTrainLoop '
                    'does not',
                    count=count,
                    loop=type(loop).__name__,
                )
            )
    return found


def judge(doubts: list[str]) -> str:
    """One line for the table of a resume."""
    if not doubts:
        return _('exact, as without the break')
    return _('approximate: {reasons}', reasons='; '.join(doubts))
