"""The old base configs of mmsegmentation 0.30.0 and mmdet 2.28.2.

``record_shipped_settings.py`` read their settings from the wheels.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from mmstable.finding import Severity
from mmstable.legacy.draft import old_keys_of
from mmstable.legacy.translate import Translation, translate
from mmstable.settings import runtime_hooks
from tests.toys import ToyData, toy_runner

SHIPPED = json.loads(
    Path(__file__).with_name('shipped_settings.json').read_text()
)


@pytest.mark.parametrize('name', SHIPPED)
def test_each_file_translates(name: str) -> None:
    translation = translate(SHIPPED[name])
    assert old_keys_of(SHIPPED[name])
    assert not old_keys_of(translation.settings)
    assert not translation.of_severity(Severity.ERROR)
    left = [one.path for one in translation.of_severity(Severity.WARNING)]
    assert left in (
        [],
        ['evaluation.metric'],
        ['evaluation.metric, evaluation.pre_eval'],
        ['custom_hooks[0]'],
    )


def merged(*names: str) -> Translation:
    settings: dict[str, Any] = {}
    for name in names:
        settings.update(SHIPPED[name])
    return translate(settings)


def test_mmseg_means_what_it_meant() -> None:
    new = merged(
        'mmsegmentation-0.30.0/default_runtime.py',
        'mmsegmentation-0.30.0/schedules/schedule_40k.py',
    ).settings
    assert new == dict(
        optim_wrapper=dict(
            type='mmstable.SafeOptimWrapper',
            optimizer=dict(
                type='SGD', lr=0.01, momentum=0.9, weight_decay=0.0005
            ),
        ),
        param_scheduler=[
            dict(
                type='mmstable.PolicyLR',
                policy='poly',
                power=0.9,
                min_lr=1e-4,
                by_epoch=False,
            )
        ],
        train_cfg=dict(
            type='mmstable.SafeIterBasedTrainLoop',
            max_iters=40000,
            val_interval=4000,
        ),
        default_hooks=dict(
            checkpoint=dict(
                type='mmstable.SafeCheckpointHook',
                interval=4000,
                by_epoch=False,
            ),
            logger=dict(
                type='LoggerHook', interval=50, log_metric_by_epoch=False
            ),
        ),
        log_processor=dict(by_epoch=False, window_size=50),
        visualizer=dict(
            type='Visualizer', vis_backends=[dict(type='LocalVisBackend')]
        ),
        env_cfg=dict(cudnn_benchmark=True, dist_cfg=dict(backend='nccl')),
        custom_hooks=[
            dict(type=f'mmstable.{name}') for name in runtime_hooks()
        ],
        log_level='INFO',
        load_from=None,
        resume=False,
    )


@pytest.mark.parametrize(
    'names',
    [
        (
            'mmsegmentation-0.30.0/default_runtime.py',
            'mmsegmentation-0.30.0/schedules/schedule_20k.py',
        ),
        (
            'mmdet-2.28.2/default_runtime.py',
            'mmdet-2.28.2/schedules/schedule_1x.py',
        ),
    ],
    ids=lambda names: names[0].partition('-')[0],
)
def test_a_run_is_built_and_trains(
    tmp_path: Path, names: tuple[str, str]
) -> None:
    new = merged(*names).settings
    # It is for mmdet to have this one.
    new.pop('custom_hooks', None)
    new.pop('auto_scale_lr', None)
    length = 'max_iters' if 'mmseg' in names[0] else 'max_epochs'
    new['train_cfg'][length] = 1
    loader = DataLoader(ToyData(4), batch_size=2)
    runner = toy_runner(tmp_path, train_dataloader=loader, **new)
    runner.train()
    assert list(tmp_path.glob('*_1.pth'))
