"""Train, break and resume a small model on the device of this machine.

``mmstable doctor --device`` prints the outcome as a block for an issue: the
tests of mmstable run on a simulated GPU only.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from mmstable.doctor import Fact, Item, Plan, found
from mmstable.errors import DeviceLost
from mmstable.messages import _

_HOOK = 'mmstable.SelfTestHook'
_GUARD = dict(type='mmstable.DivergenceGuardHook', snapshot_interval=5)
_TIMEOUT_S = 300.0


class Outcome(NamedTuple):
    """A run that has ended.

    Args:
        code (int): Its exit code.
        log (str): What it printed.
        folder (Path): Its work dir.
    """

    code: int
    log: str
    folder: Path

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Return the events of a kind."""
        files = sorted(self.folder.glob('*/stability/events.jsonl'))
        lines = [one for file in files for one in file.open(encoding='utf-8')]
        return [one for one in map(json.loads, lines) if one['event'] == kind]

    def result(self) -> dict[str, Any]:
        """Return the digest at the end; {} if the run has failed."""
        path = self.folder / 'self_test.json'
        return json.loads(path.read_text()) if path.exists() else {}


def device(plan: Plan) -> Iterator[Item]:
    """Train in other processes, and compare what they leave behind."""
    with tempfile.TemporaryDirectory() as name:
        yield from _compare(Path(name))


def _compare(folder: Path) -> Iterator[Item]:
    """Compare a run without faults, broken ones, and one that is resumed."""
    whole = _train(folder, 'whole')
    broken = _train(folder, 'faults', 'nan', 'oom', 'stall')
    # A label out of range.
    lost = _train(folder, 'lost', 'assert')
    saved = list(lost.folder.glob('emergency*.pth'))
    explained = [
        one['text'].partition('\n')[0]
        for one in lost.events('fault_explained')
    ]
    rest = _train(folder, 'lost', resume=True)
    where = whole.result().get('device', '?')
    is_gpu = where.partition(':')[0] not in ('cpu', '?')
    rollback = [one['action'] for one in broken.events('intervention')]
    oom = [one['rung'] for one in broken.events('out_of_memory')]
    yield Fact('device', where, _('device'))
    checks: list[tuple[str, str, bool, Any]] = [
        ('wrapper', _('training in float16'), whole.code == 0, whole.log),
        ('rollback', _('rollback'), 'rollback' in rollback, broken.log),
        ('oom', _('out of memory'), bool(oom and oom[0] != 'stop'), oom),
        ('stacks', _('stacks'), bool(broken.events('hang')), broken.log),
        (
            'lost',
            _('lost device'),
            lost.code == (DeviceLost.exit_code if is_gpu else 1),
            lost.log,
        ),
        ('snapshot', _('snapshot or state saved'), bool(saved), lost.log),
        (
            'explained',
            _('error explained'),
            any('label 21' in one for one in explained),
            explained or lost.log,
        ),
        (
            'resume',
            _('resumed as if uninterrupted'),
            rest.code == 0 and {} != rest.result() == whole.result(),
            rest.log,
        ),
    ]
    for id, label, is_good, evidence in checks:
        yield Fact(id, _('works') if is_good else _('FAILS'), label, where)
        if not is_good:
            last = str(evidence).strip().rpartition('\n')[2][-400:]
            yield found('device_check', where, check=label, evidence=last)


def as_block(facts: Iterable[Fact]) -> list[str]:
    """Return facts as the lines of a block to paste into an issue."""
    return ['```text', *(f'{one.id}: {one.value}' for one in facts), '```']


def _train(
    folder: Path, name: str, *faults: str, resume: bool = False
) -> Outcome:
    """Train the small model in another process."""
    from mmengine.config import Config

    from mmstable.doctor.self_test import ITERATIONS, STALL_S

    watchdog = dict(
        type='mmstable.HangWatchdogHook',
        action='wait',
        limits=dict(hook=STALL_S / 4),
    )
    config = Config(
        dict(
            custom_imports=dict(imports=['mmstable.doctor.self_test']),
            model=dict(
                type='mmstable.SelfTestNet',
                data_preprocessor=dict(type='BaseDataPreprocessor'),
            ),
            train_dataloader=dict(
                batch_size=8,
                num_workers=0,
                sampler=dict(type='InfiniteSampler', shuffle=True),
                collate_fn=dict(type='default_collate'),
                dataset=dict(type='mmstable.SelfTestData'),
            ),
            train_cfg=dict(
                type='IterBasedTrainLoop',
                max_iters=ITERATIONS,
                val_interval=1000,
            ),
            optim_wrapper=dict(
                type='mmstable.SafeAmpOptimWrapper',
                loss_scale=128.0,
                optimizer=dict(type='AdamW', lr=1e-3),
            ),
            default_hooks=dict(
                checkpoint=dict(
                    type='CheckpointHook', interval=1000, by_epoch=False
                )
            ),
            custom_hooks=[_GUARD, watchdog, dict(type=_HOOK, faults=faults)],
            randomness=dict(seed=0, deterministic=True),
        )
    )
    path, work_dir = folder / f'{name}.py', folder / name
    config.dump(path)
    command = [sys.executable, '-m', 'mmstable', 'train', str(path)]
    command += ['--work-dir', str(work_dir)]
    done = subprocess.run(
        [*command, *(['--resume'] if resume else [])],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=_TIMEOUT_S,
        check=False,
    )
    return Outcome(
        done.returncode, done.stdout.decode('utf-8', 'replace'), work_dir
    )
