"""Work directories with event files, as runs leave them."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from mmstable.events.records import FaultExplained

HEADER = dict(
    event='run_start',
    iteration=0,
    time=1000.0,
    schema=1,
    rank=0,
    world_size=1,
    host='node7',
    pid=42,
    versions={'mmstable': '0.1.0'},
    device='cpu',
    device_name=None,
    seed=0,
    max_iterations=1000,
    config_sha256='9f86d081884c7d65',
    wrappers={
        'optim_wrapper': dict(
            type='mmstable.optim.wrapper.SafeAmpOptimWrapper',
            optimizer='torch.optim.adamw.AdamW',
            accumulative_counts=1,
            dtype='float16',
            clip_grad={'max_norm': 35},
            clip='max_norm=35',
            loss_scale=1024.0,
            scale_policy=dict(init_scale=1024.0, growth_interval=2000),
        )
    },
    custom_hooks=[],
)


def header(**changes: Any) -> dict[str, Any]:
    return {**HEADER, **changes}


def fault(iteration: int, kind: str = 'overflow', **more: Any) -> dict:
    return dict(
        event='step_fault',
        iteration=iteration,
        time=1000.0 + iteration,
        outcome='skipped',
        fault=kind,
        wrapper='optim_wrapper',
        loss_scale=1024.0,
        next_loss_scale=512.0,
        culprits=[{'name': 'backbone.conv1.weight', 'kind': 'NaN'}],
        losses={'loss': 0.5},
        **more,
    )


def explained(iteration: int, verdict: str, **more: Any) -> dict[str, Any]:
    # As many fields as the real record has, and the bundle late among them.
    empty = {one.name: None for one in fields(FaultExplained)}
    return empty | dict(
        event='fault_explained',
        iteration=iteration,
        time=1000.1 + iteration,
        fault='nan_loss',
        verdict=verdict,
        text=f'Iter {iteration}: first NaN in head.loss_dice',
        module='head.loss_dice',
        lines=['losses/dice.py:61: overlap / total'],
        sample_names=['img_path=data/0113.png'],
        bundle=f'work_dirs/x/stability/faults/iter_{iteration}',
        **more,
    )


def scale(iteration: int, before: float, after: float) -> dict[str, Any]:
    return dict(
        event='scale_change',
        iteration=iteration,
        time=1000.0 + iteration,
        wrapper='optim_wrapper',
        loss_scale=before,
        next_loss_scale=after,
    )


def heartbeat(iteration: int, loss: Any = 0.5, **more: Any) -> dict[str, Any]:
    sample = dict(
        lr=0.01,
        grad_norm=2.0,
        loss_scale=1024.0,
        clipped_norm=1.0,
        module_norms={'backbone': 1.5, 'head': 0.5},
    )
    return dict(
        event='heartbeat',
        iteration=iteration,
        time=1000.0 + iteration,
        losses={'loss': loss},
        wrappers={'optim_wrapper': sample},
        iteration_time=0.25,
        host_memory=more.pop('host_memory', 1 << 30),
        device_memory=None,
        device_memory_peak=None,
        **more,
    )


def end(iteration: int, reason: str = 'finished', **more: Any) -> dict:
    totals = dict(applied=iteration, skipped=0, faults={})
    return dict(
        event='run_end',
        iteration=iteration,
        time=1001.0 + iteration,
        reason=reason,
        wrappers={'optim_wrapper': totals},
        lost_events=0,
        **more,
    )


def write_run(
    work_dir: Path,
    *records: dict[str, Any],
    name: str = '20260101_120000',
    file: str = 'events.jsonl',
    start: dict[str, Any] | None = None,
    tail: str = '',
) -> Path:
    """Write the event file of one start; its path."""
    folder = work_dir / name / 'stability'
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(one) for one in [start or HEADER, *records]]
    path = folder / file
    path.write_text('\n'.join(lines) + '\n' + tail)
    return path


def write_scalars(work_dir: Path, *lines: dict[str, Any], name: str) -> None:
    folder = work_dir / name / 'vis_data'
    folder.mkdir(parents=True)
    text = ''.join(json.dumps(line) + '\n' for line in lines)
    (folder / 'scalars.json').write_text(text)


HOSTILE = (
    '</script><script>window.hacked=1</script><img src=x onerror=hacked=1>'
)


def hostile_records() -> list[dict[str, Any]]:
    """Texts that would act if a page took them for markup."""
    huge = 'A' * 200_000
    return [
        heartbeat(10, **{'__proto__': HOSTILE}),
        fault(
            20,
            HOSTILE,
            loss_terms=[HOSTILE],
            origins=[{'rank': HOSTILE, 'node': HOSTILE, 'device': {}}],
        ),
        explained(20, 'bad_input', only_together=True)
        | dict(
            fault=HOSTILE,
            text=HOSTILE,
            module=HOSTILE,
            sample_names=[HOSTILE, huge, '\u202e\x1b[31m'],
            bundle=f"x'; rm -rf / #{HOSTILE}",
        ),
        dict(event=HOSTILE, iteration=30, time=1030.0, text=HOSTILE),
        dict(event='constructor', iteration=31, time=1031.0, data=[huge] * 9),
        dict(event='intervention', iteration=32, time='NaN', action=[], x={}),
        dict(event='hang', iteration=33, time=1033.0, phase=HOSTILE, line=7),
        dict(event='hang', iteration=2**53, time=1e308, phase='data'),
        dict(event='hang', iteration=33, time=-1e300, phase='data'),
        dict(event='profile', iteration=34, time=1034.0, phases={HOSTILE: 1}),
    ]
