"""Metrics as node_exporter would read them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from mmengine.hooks import Hook

from mmstable.hooks import MetricsHook
from mmstable.hooks.metrics_hook import METRICS, VARIABLE, render
from tests.loops.runs import iter_loop
from tests.toys import Sabotage, toy_runner

ROOT = Path(__file__).resolve().parents[2]
LINE = re.compile(r'(mmstable_\w+)\{(.*)\} (\S+)')


def read(folder):
    """The samples of the only file, by name and labels."""
    (path,) = folder.iterdir()
    assert path.suffix == '.prom'
    samples = {}
    for line in path.read_text().splitlines():
        if not line.startswith('#'):
            name, labels, value = LINE.fullmatch(line).groups()
            pairs = dict(re.findall(r'(\w+)="([^"]*)"', labels))
            assert {'run', 'rank', 'host'} <= set(pairs)
            more = [v for k, v in pairs.items() if k not in METRICS_LABELS]
            samples[' '.join([name, *more])] = float(value)
    return samples


METRICS_LABELS = ('run', 'rank', 'host', 'wrapper')


def train(tmp_path, *hooks, **kwargs):
    runner = toy_runner(
        tmp_path / 'work',
        train_cfg=iter_loop(6),
        hooks=[MetricsHook(interval=1e-9, **kwargs), *hooks],
    )
    runner.train()


def test_a_run_with_a_bad_step(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path / 'metrics'))
    train(tmp_path, Sabotage(loss=[3]))
    found = read(tmp_path / 'metrics')
    assert found['mmstable_iterations_total'] == 6
    assert found['mmstable_iterations_planned'] == 6
    assert found['mmstable_steps_applied_total'] == 5
    assert found['mmstable_steps_skipped_total nan_loss'] == 1
    assert found['mmstable_events_total step_fault'] == 1
    assert found['mmstable_run_state finished'] == 1
    assert found['mmstable_run_state running'] == 0
    assert found['mmstable_learning_rate'] == pytest.approx(0.1)
    assert 0 < found['mmstable_goodput_ratio'] <= 1
    assert found['mmstable_host_memory_bytes'] > 1 << 20
    assert 'mmstable_loss loss' in found


class Failing(Hook):
    def after_train_iter(self, runner, *args, **kwargs):
        if runner.iter == 2:
            raise OSError('gone')


def test_a_run_that_fails(tmp_path):
    with pytest.raises(OSError, match='gone'):
        train(tmp_path, Failing(), folder=str(tmp_path / 'metrics'))
    assert read(tmp_path / 'metrics')['mmstable_run_state failed'] == 1


def test_nothing_without_a_folder(tmp_path, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    hook = MetricsHook()
    toy_runner(tmp_path, train_cfg=iter_loop(3), hooks=[hook]).train()
    assert not list(tmp_path.rglob('*.prom'))
    assert not hasattr(hook, 'after_train_iter')


def test_a_folder_that_cannot_be_written_costs_one_warning(
    tmp_path, capture_log
):
    (tmp_path / 'file').write_text('')
    runner = toy_runner(
        tmp_path / 'work',
        train_cfg=iter_loop(4),
        hooks=[MetricsHook(str(tmp_path / 'file'), interval=1e-9)],
    )
    with capture_log() as lines:
        runner.train()
    assert len([one for one in lines if 'cannot write metrics' in one]) == 1


@pytest.mark.parametrize(
    ('settings', 'message'),
    [
        (dict(folder=''), '`folder` must be a str that is not empty'),
        (dict(interval=0), '`interval` must be .* above 0, got 0'),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(
        (TypeError, ValueError), match=f'MetricsHook: {message}'
    ):
        MetricsHook(**settings)


def test_strange_names_and_numbers():
    text = render({'run': 'a"\\\nb'}, iter([('loss', {}, float('nan'))]))
    assert text.endswith('mmstable_loss{run="a\\"\\\\\\nb"} NaN\n')


def test_the_dashboard_uses_metrics_that_exist():
    path = ROOT / 'examples' / 'grafana' / 'mmstable.json'
    dashboard = json.loads(path.read_text())
    used = set(re.findall(r'mmstable_(\w+)[{,]', json.dumps(dashboard)))
    assert used <= set(METRICS)
    assert {'goodput_ratio', 'loss', 'steps_skipped_total'} <= used


def test_the_documentation_names_every_metric():
    for lang in ('en', 'zh_cn'):
        page = (ROOT / 'docs' / lang / 'notify.md').read_text()
        for name in METRICS:
            assert f'`mmstable_{name}`' in page
