"""A Chinese run is Chinese throughout, whatever goes wrong."""

from __future__ import annotations

import logging
import re
import traceback
from pathlib import Path

import pytest
from mmengine.logging import MMLogger

import mmstable
from mmstable.errors import InjectedError, TrainingDiverged
from tests.messages.test_translations import CHINESE
from tests.toys import Sabotage, toy_runner

LOGGING = re.compile('/logging/')
PACKAGE = str(Path(mmstable.__file__).parent)
AMP = dict(
    type='mmstable.SafeAmpOptimWrapper',
    loss_scale=1024.0,
    accumulative_counts=2,
    optimizer=dict(type='SGD', lr=0.01),
)
STOCK = dict(type='OptimWrapper', optimizer=dict(type='SGD', lr=0.01))
LOGGER = dict(type='mmstable.GradNanLoggerHook')
HOOKS = [
    dict(type='mmstable.EventLogHook'),
    dict(type='mmstable.EmergencyCheckpointHook'),
    dict(type='mmstable.RankFailureHook'),
    dict(type='mmstable.ReplicaCheckHook', interval=2),
    dict(type='mmstable.SafeEMAHook'),
    dict(type='mmstable.ResumeReportHook'),
]
DEFAULT = dict(
    checkpoint=dict(
        type='mmstable.SafeCheckpointHook', interval=4, by_epoch=False
    ),
    param_scheduler=dict(type='mmstable.SafeParamSchedulerHook'),
)
SCHEDULE = [dict(type='LinearLR', start_factor=0.5, by_epoch=False, end=9)]


def guard(**settings):
    return dict(type='mmstable.DivergenceGuardHook', **settings)


def faults(*several):
    return dict(
        type='mmstable.FaultInjectorHook', enabled=True, faults=list(several)
    )


class OurLines(logging.Handler):
    """Keeps what mmstable itself has logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        callers = [
            frame.filename
            for frame in traceback.extract_stack()
            if not LOGGING.search(frame.filename)
        ]
        if callers[-2].startswith(PACKAGE):
            self.lines.append(record.getMessage())


@pytest.fixture
def spoken():
    """Train, and return the lines of mmstable."""

    def train(folder, hooks, wrapper=AMP, **kwargs):
        settings = dict(
            max_iters=8,
            default_hooks=DEFAULT,
            param_scheduler=SCHEDULE,
            train_cfg=dict(
                type='mmstable.SafeIterBasedTrainLoop', max_iters=8
            ),
        )
        settings.update(kwargs)
        runner = toy_runner(
            folder, wrapper, hooks=[*hooks, *HOOKS], **settings
        )
        ours = OurLines()
        logger = MMLogger.get_current_instance()
        logger.addHandler(ours)
        try:
            runner.train()
        except (TrainingDiverged, InjectedError) as error:
            ours.lines.append(str(error))
        finally:
            logger.removeHandler(ours)
        return ours.lines

    return train


def not_chinese(lines):
    english = [line for line in lines if not CHINESE.search(line)]
    # The text of the exception that a config asks for.
    return [
        line for line in english if line != 'injected by FaultInjectorHook'
    ]


def test_a_run_in_which_much_goes_wrong(tmp_path, spoken):
    lines = spoken(
        tmp_path,
        [
            Sabotage(loss=[3]),
            faults(
                dict(kind='nan_grad', param='net.head.weight', at=6),
                dict(kind='nan_weight', param='net.head.weight', at=7),
                dict(kind='nan_loss', at=99),
                dict(kind='oom', at=3, rank=5),
            ),
            dict(LOGGER, lang='zh_cn', max_lines=1),
            guard(snapshot_interval=2),
        ],
    )
    assert len(lines) > 8
    assert not_chinese(lines) == []


def test_a_run_that_stops(tmp_path, spoken):
    lines = spoken(
        tmp_path,
        [
            faults(dict(kind='nan_weight', param='net.head.bias', at=6)),
            guard(actions=dict(poisoned='stop'), lang='zh_cn'),
        ],
        wrapper=STOCK,
    )
    assert not_chinese(lines) == []
    assert any('训练在第 6 次迭代停止' in line for line in lines)


def test_a_run_that_fails_and_is_resumed(tmp_path, spoken, monkeypatch):
    monkeypatch.setenv('MMSTABLE_LANG', 'zh_cn')
    fault = faults(dict(kind='exception', at=7))
    first = spoken(tmp_path, [LOGGER, fault])
    second = spoken(
        tmp_path,
        [LOGGER, fault],
        resume=True,
        load_from=str(tmp_path / 'emergency_iter_6.pth'),
        train_cfg=dict(
            type='mmstable.SafeIterBasedTrainLoop', max_iters=6, replay=True
        ),
    )
    assert not_chinese(first) == []
    assert not_chinese(second) == []
    assert any('恢复训练：' in line for line in first)
    assert any('该训练已经完成' in line for line in second)


def test_the_next_run_does_not_inherit_it(tmp_path, spoken):
    chinese = dict(LOGGER, lang='zh_cn')
    assert not_chinese(spoken(tmp_path / 'a', [chinese])) == []
    lines = spoken(tmp_path / 'b', [LOGGER])
    assert lines
    assert not any(map(CHINESE.search, lines))


def test_a_hook_wins_over_the_environment(tmp_path, spoken, monkeypatch):
    monkeypatch.setenv('MMSTABLE_LANG', 'zh_cn')
    lines = spoken(tmp_path, [dict(LOGGER, lang='en')])
    assert lines
    assert not any(map(CHINESE.search, lines))
