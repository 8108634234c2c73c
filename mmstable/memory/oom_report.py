"""The file that tells the owner of a run why a batch did not fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mmstable.files import append
from mmstable.memory.activation_meter import ActivationMeter
from mmstable.memory.failure import Failure
from mmstable.memory.sizes import readable
from mmstable.messages import N_, _

_MOST_MODULES = 10
# A larger share of what the allocator holds is unused: fragmentation.
_FRAGMENTED = 0.2
PHASES = {
    'forward': N_('forward pass'),
    'backward': N_('backward pass'),
    'optimizer': N_('optimizer step'),
    'validation': N_('validation'),
    'test': N_('test'),
}
_FACTS = {
    'requested': N_('Asked for: {size}'),
    'allocated': N_('Tensors on the device then: {size}'),
    'reserved': N_('Held by the allocator then: {size}'),
    'peak': N_('Most tensors until then: {size}'),
}


@dataclass(frozen=True)
class BatchFacts:
    """What a report says of a batch.

    Args:
        iteration (int): The iteration.
        shapes (Sequence[str]): Of its tensors.
        samples (Sequence[str]): What its samples are called.
        size (int): How many it has; 0 if that cannot be told.
        accumulation (int): Iterations that make one step.
    """

    iteration: int
    shapes: Sequence[str]
    samples: Sequence[str]
    size: int
    accumulation: int


def describe(
    failure: Failure,
    batch: BatchFacts,
    rung: str,
    meter: ActivationMeter,
    snapshot: str | None,
    modules: Sequence[str],
) -> str:
    """The report in words.

    Args:
        failure (Failure): The first error.
        batch (BatchFacts): The batch.
        rung (str): What has helped.
        meter (ActivationMeter): What a later attempt has measured.
        snapshot (str, optional): The allocator's own file.
        modules (Sequence[str]): What could compute again.
    """
    lines = [
        _(
            'Iteration {iteration}: out of memory in the {phase}',
            iteration=batch.iteration,
            phase=_(PHASES[failure.phase]),
        ),
        failure.text,
        failure.where,
        '',
        _('What was done: {rung}', rung=rung),
        _('Batch: {shapes}', shapes=list(batch.shapes)),
        _(
            'Samples: {samples}',
            samples=list(batch.samples) or _('unnamed'),
        ),
        '',
        *_memory(failure, meter, snapshot),
        *_activations(meter),
        '',
        _('What needs less memory, in the config:'),
        *advice(batch, modules),
    ]
    if is_fragmented(failure):
        lines.append('    PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True')
    return '\n'.join(lines) + '\n'


def advice(batch: BatchFacts, modules: Sequence[str]) -> list[str]:
    """Lines of a config that need less memory, the mildest first.

    Args:
        batch (BatchFacts): The batch that did not fit.
        modules (Sequence[str]): What could compute again.
    """
    lines = []
    if modules:
        lines.append(
            "    custom_hooks = [dict(type='mmstable."
            f"SafeActivationCheckpointHook', modules={list(modules)!r})]"
        )
    if batch.size > 1:
        half = batch.size // 2
        count = batch.accumulation * -(-batch.size // half)
        lines.append(
            f'    train_dataloader = dict(batch_size={half})'
            f'; optim_wrapper = dict(accumulative_counts={count})'
        )
    lines.append(
        "    optim_wrapper = dict(type='mmstable.SafeAmpOptimWrapper', "
        "dtype='bfloat16')"
    )
    return lines


def is_fragmented(failure: Failure) -> bool:
    """Whether the allocator holds much more than tensors take."""
    if not failure.reserved or failure.allocated is None:
        return False
    free = failure.reserved - failure.allocated
    return free > _FRAGMENTED * failure.reserved


def save_snapshot(device: torch.device, path: Path) -> str | None:
    """Have the allocator of a device write down what it holds.

    Args:
        device (torch.device): Where the model is.
        path (Path): Where to.

    Returns:
        str or None: The file; None if the device has no such thing.
    """
    module: Any = getattr(torch, device.type, None)
    memory = getattr(module, 'memory', None)
    dump = getattr(memory, '_dump_snapshot', None)
    if device.type == 'cpu' or dump is None:
        return None
    try:
        with open(path, 'wb', opener=append) as file:
            # By its number: torch would follow a link.
            dump(f'/dev/fd/{file.fileno()}')
    except Exception:
        # It is an extra, and memory is short.
        return None
    return str(path)


def _memory(
    failure: Failure, meter: ActivationMeter, snapshot: str | None
) -> list[str]:
    facts: Mapping[str, int | None] = {
        'requested': failure.requested,
        'allocated': failure.allocated,
        'reserved': failure.reserved,
        'peak': failure.peak,
    }
    lines = [
        _(_FACTS[name], size=readable(size))
        for name, size in facts.items()
        if size is not None
    ]
    lines += [
        _(
            'Peak in the {phase}, as the batch came through: {size}',
            phase=_(PHASES[name]),
            size=readable(size),
        )
        for name, size in meter.peaks.items()
    ]
    if is_fragmented(failure):
        lines.append(
            _(
                'Much of what the allocator holds is in pieces that nobody '
                'uses (fragmentation): set '
                'PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True before the '
                'run.'
            )
        )
    if snapshot is not None:
        lines.append(
            _(
                'What the allocator holds, for '
                'https://pytorch.org/memory_viz: {path}',
                path=snapshot,
            )
        )
    return lines


def _activations(meter: ActivationMeter) -> list[str]:
    largest = meter.largest(_MOST_MODULES)
    if not largest:
        return []
    width = max(len(name) for name, __ in largest)
    return [
        '',
        _('Largest outputs of modules in this batch:'),
        *(f'    {name:{width}}  {readable(size)}' for name, size in largest),
    ]
