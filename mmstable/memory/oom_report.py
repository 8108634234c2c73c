"""The file that tells the owner of a run why a batch did not fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mmstable.memory.activation_meter import ActivationMeter
from mmstable.memory.failure import Failure
from mmstable.memory.sizes import readable
from mmstable.messages import say

_MOST_MODULES = 10
# A larger share of what the allocator holds is unused: fragmentation.
_FRAGMENTED = 0.2


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
        say(
            'oom_report.title',
            iteration=batch.iteration,
            phase=say(f'oom_phase.{failure.phase}'),
        ),
        failure.text,
        failure.where,
        '',
        say('oom_report.rung', rung=rung),
        say('oom_report.batch', shapes=list(batch.shapes)),
        say(
            'oom_report.samples',
            samples=list(batch.samples) or say('oom.no_names'),
        ),
        '',
        *_memory(failure, meter, snapshot),
        *_activations(meter),
        '',
        say('oom_report.advice'),
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
        dump(str(path))
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
        say(f'oom_fact.{name}', size=readable(size))
        for name, size in facts.items()
        if size is not None
    ]
    lines += [
        say(
            'oom_report.phase_peak',
            phase=say(f'oom_phase.{name}'),
            size=readable(size),
        )
        for name, size in meter.peaks.items()
    ]
    if is_fragmented(failure):
        lines.append(say('oom_report.fragmented'))
    if snapshot is not None:
        lines.append(say('oom_report.snapshot', path=snapshot))
    return lines


def _activations(meter: ActivationMeter) -> list[str]:
    largest = meter.largest(_MOST_MODULES)
    if not largest:
        return []
    width = max(len(name) for name, _ in largest)
    return [
        '',
        say('oom_report.largest'),
        *(f'    {name:{width}}  {readable(size)}' for name, size in largest),
    ]
