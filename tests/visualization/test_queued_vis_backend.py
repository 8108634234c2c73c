from __future__ import annotations

import re
import sys
import threading
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import VISBACKENDS
from mmengine.visualization import BaseVisBackend

from mmstable import vis_backend
from mmstable.errors import ConfigError
from mmstable.vis_backend import (
    CallQueue,
    QueuedVisBackend,
    continue_runs,
    run_ids,
)
from tests.preloaded import run_script


class Recorder(BaseVisBackend):
    """Remembers everything; waits before each record if it is held."""

    def __init__(self):
        super().__init__('')
        self.seen = []
        self.gate = threading.Event()
        self.gate.set()

    @property
    def experiment(self):
        return self

    def _init_env(self):
        pass

    def _record(self, *what):
        self.gate.wait(20)
        self.seen.append(what)

    def add_config(self, config, **kwargs):
        self._record('config', config.a)

    def add_graph(self, model, data_batch, **kwargs):
        raise RuntimeError('no graph')

    def add_image(self, name, image, step=0, **kwargs):
        self._record(name, image.sum(), step)

    def add_scalar(self, name, value, step=0, **kwargs):
        self._record(name, float(value), step)

    def add_scalars(self, scalar_dict, step=0, file_path=None, **kwargs):
        self._record(scalar_dict, step, file_path)

    def close(self):
        self._record('closed')


def test_everything_is_written_in_order_as_it_was_recorded():
    recorder = Recorder()
    queued = QueuedVisBackend(recorder)
    recorder.gate.clear()
    config, image = Config(dict(a=1)), np.ones((2, 2), np.uint8)
    value, values = torch.tensor(3.0), dict(x=[1])
    queued.add_config(config)
    queued.add_image('image', image, 1)
    queued.add_scalar('value', value, 2)
    queued.add_scalars(values, 3, file_path='a.json')
    # The run does not wait, and changes what it has recorded.
    config.a, image[:] = 9, 9
    value.fill_(9)
    values['x'].append(9)
    assert recorder.seen == []
    recorder.gate.set()
    queued.close()
    assert recorder.seen == [
        ('config', 1),
        ('image', 4, 1),
        ('value', 3.0, 2),
        (dict(x=[1]), 3, 'a.json'),
        ('closed',),
    ]


def test_what_does_not_fit_is_dropped_and_said_once(capture_log):
    recorder = Recorder()
    queued = QueuedVisBackend(recorder, size=3, timeout=0.2)
    recorder.gate.clear()
    with capture_log() as lines:
        for step in range(10):
            queued.add_scalar('x', step, step)
        queued.close()
    assert len(lines) == 2
    assert 'slower than the run' in lines[0]
    assert 'Recorder has lost' in lines[1]
    recorder.gate.set()


def test_a_graph_that_fails_is_no_fault_of_the_run(capture_log):
    with capture_log() as lines:
        QueuedVisBackend(Recorder()).add_graph(torch.nn.Linear(1, 1), [])
    assert 'RuntimeError: no graph' in lines[0]


def test_images_are_bounded_by_their_size():
    gate = threading.Event()
    queue = CallQueue(1000, 100, lambda error: None)
    queue.put(gate.wait)
    assert queue.put(lambda: None, 99)
    assert not queue.put(lambda: None, 2)
    assert queue.put(lambda: None, 1)
    gate.set()
    assert queue.wait(10)
    # One that is too large by itself is let through.
    assert queue.put(lambda: None, 1000)
    assert queue.wait(10)


def test_a_process_that_ends_writes_what_waits(tmp_path):
    code = (
        'import sys, time\n'
        'from mmstable.vis_backend import CallQueue\n'
        'queue = CallQueue(9, 9, print)\n'
        'queue.put(lambda: time.sleep(0.3))\n'
        'queue.put(lambda: print("written", flush=True))\n'
    )
    assert run_script(code, tmp_path) == (0, 'written\n')


@pytest.mark.parametrize(
    ('settings', 'message'),
    [
        (dict(size=0), '`size` must be an int of at least 1'),
        (dict(timeout=-1), '`timeout` must be a finite number of at least 0'),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(ValueError, match=message):
        QueuedVisBackend(Recorder(), **settings)


def test_a_missing_package_ends_the_run_at_its_start(monkeypatch, tmp_path):
    monkeypatch.setattr(vis_backend, 'find_spec', lambda name: None)
    wandb = dict(type='WandbVisBackend')
    with pytest.raises(ConfigError, match='pip install wandb. To train with'):
        QueuedVisBackend(wandb, str(tmp_path))
    QueuedVisBackend(dict(type='LocalVisBackend'), str(tmp_path))


def test_an_optional_backend_may_be_missing(
    monkeypatch, tmp_path, capture_log
):
    monkeypatch.setattr(vis_backend, 'find_spec', lambda name: None)
    wandb = dict(type='WandbVisBackend')
    with capture_log() as lines:
        queued = QueuedVisBackend(wandb, str(tmp_path), optional=True)
    queued.add_scalar('loss', 1.0)
    queued.close()
    assert any('records NOTHING' in line for line in lines)


def dashboards(work_dir, resume):
    backends = [
        dict(
            type='mmstable.QueuedVisBackend',
            backend=dict(type='WandbVisBackend'),
        ),
        dict(type='TensorboardVisBackend'),
        dict(type='LocalVisBackend'),
    ]
    ids = run_ids(backends, work_dir, resume)
    continue_runs(backends, work_dir, ids, resume)
    return backends


def test_all_starts_of_a_run_are_one_on_a_dashboard(tmp_path):
    first = dashboards(tmp_path, resume=False)
    settings = first[0]['backend']['init_kwargs']
    assert settings['resume'] == 'allow'
    assert first[1] == dict(type='TensorboardVisBackend')
    events = tmp_path / '20260101_000000/vis_data/events.out.tfevents.1'
    events.parent.mkdir(parents=True)
    events.touch()
    second = dashboards(tmp_path, resume=True)
    assert second[0] == first[0]
    assert second[1]['save_dir'] == str(events.parent)
    assert second[2] == dict(type='LocalVisBackend')
    # A new run in the same folder is another one.
    third = dashboards(tmp_path, resume=False)
    assert third[0]['backend']['init_kwargs']['id'] != settings['id']


def test_tensorboard_reads_all_starts_as_one(tmp_path):
    reading = pytest.importorskip(
        'tensorboard.backend.event_processing.event_accumulator'
    )
    for number, resume in enumerate([False, True, True]):
        backends = [dict(type='TensorboardVisBackend')]
        continue_runs(backends, tmp_path, {}, resume)
        # As mmengine's visualizer does.
        folder = tmp_path / str(number) / 'vis_data'
        backends[0].setdefault('save_dir', str(folder))
        backend = VISBACKENDS.build(backends[0])
        backend.add_scalar('loss', 1.0, step=number)
        backend.close()
    found = reading.EventAccumulator(str(tmp_path / '0' / 'vis_data')).Reload()
    assert [one.step for one in found.Scalars('loss')] == [0, 1, 2]
    assert not (tmp_path / '1').exists()


@pytest.mark.parametrize('content', ['', '[]', '{"WandbVisBackend": 1}'])
def test_ids_that_make_no_sense_are_replaced(tmp_path, content):
    (tmp_path / 'dashboards.json').write_text(content)
    backends = [dict(type='WandbVisBackend')]
    ids = run_ids(backends, tmp_path, True)
    # All that SwanLab takes.
    assert re.fullmatch('[a-z0-9]{21}', ids['SwanlabVisBackend'])
    assert run_ids([dict(type='LocalVisBackend')], tmp_path, True) == {}


def test_another_work_dir_gets_the_ids_from_the_checkpoint(tmp_path):
    backends = dashboards(tmp_path / 'a', resume=False)
    known = run_ids(backends, tmp_path / 'a', True)
    found = run_ids(backends, tmp_path / 'b', True, lambda: backends)
    assert found['WandbVisBackend'] == known['WandbVisBackend']
    for saved in (None, [1], [{'type': 'WandbVisBackend', 'init_kwargs': 1}]):
        ids = run_ids(
            backends, tmp_path / 'c', True, partial(next, iter([saved]))
        )
        (tmp_path / 'c' / 'dashboards.json').unlink()
        assert ids['WandbVisBackend'] != known['WandbVisBackend']


class FakeMlflow(ModuleType):
    """Keeps runs as MLflow does, which starts one when a tag is set."""

    def __init__(self):
        super().__init__('mlflow')
        self.runs, self.active, self.uris = {}, None, set()
        self.set_tracking_uri = self.uris.add
        self.get_experiment_by_name = self.set_experiment = str
        self.log_text = self.log_params = lambda *args: None
        self.end_run = self.log_artifact = lambda *args: None

    def set_tags(self, tags):
        self._run()[0].update(tags)

    def log_metrics(self, values, step):
        self._run()[1].append(step)

    def search_runs(self, filter_string, **kwargs):
        tag = filter_string.split("'")[1]
        return [
            SimpleNamespace(info=SimpleNamespace(run_id=number))
            for number, (tags, __) in self.runs.items()
            if tag in tags.values()
        ]

    def start_run(self, run_id):
        self.active = run_id

    def _run(self):
        if self.active is None:
            self.active = len(self.runs)
            self.runs[self.active] = ({}, [])
        return self.runs[self.active]


def test_mlflow_continues_its_run(tmp_path, monkeypatch):
    mlflow = FakeMlflow()
    monkeypatch.setitem(sys.modules, 'mlflow', mlflow)
    monkeypatch.setattr(vis_backend, 'find_spec', lambda name: True)
    monkeypatch.setitem(vis_backend._FILES, 'MLflowVisBackend', 'fake')
    for number, resume in enumerate([False, True, False]):
        # A new process has no active run.
        mlflow.active = None
        backends = [dict(type='MLflowVisBackend', tags=None)]
        ids = run_ids(backends, tmp_path, resume)
        continue_runs(backends, tmp_path, ids, resume)
        folder = tmp_path / str(number) / 'vis_data'
        queued = QueuedVisBackend(backends[0], str(folder))
        queued.add_scalars({'loss': 1.0}, step=number)
        queued.close()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / 'fake').touch()
    assert [steps for __, steps in mlflow.runs.values()] == [[0, 1], [2]]
    # The second start goes to the folder of the first.
    assert {Path(uri).parent.name for uri in mlflow.uris} == {'0', '2'}
