"""A fault in a folder: complete, bounded, and read as data."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.structures import BaseDataElement, InstanceData

from mmstable.batch import Packed, unpack
from mmstable.checkpoint import catalog
from mmstable.checkpoint.catalog import find_checkpoint
from mmstable.checkpoint.folders import finish_saves
from mmstable.checkpoint.storage import CheckpointStorage
from mmstable.errors import BundleError
from mmstable.forensics.bundle import read_bundle
from mmstable.forensics.find_cause import CauseFinder
from tests.forensics.planted_cases import CASES, Findings, build_runner
from tests.forensics.runs import BadData, run
from tests.patience import PATIENCE
from tests.toys import ToyModel, assert_same

REPO = Path(__file__).resolve().parents[2]


def case_of(name):
    return next(case for case in CASES if name in case.name)


def explain(folder, name, **settings):
    findings = Findings()
    hook = dict(type='mmstable.FaultForensicsHook', **settings)
    runner = build_runner(case_of(name), folder, [hook, findings])
    runner.train()
    return runner, findings.found[0]


@pytest.mark.parametrize('name', ['exp, fp16', 'sqrt at 0', 'GAN', 'Dice'])
def test_a_bundle_has_all_that_is_needed(tmp_path, name):
    runner, found = explain(tmp_path, name)
    bundle = read_bundle(found.bundle)
    model = case_of(name).model()
    assert bundle.load_into(model) == []
    investigation = CauseFinder([bundle.inputs(model)], bundle.index.wrapper)
    again = investigation.run()
    assert (again.culprit.op, again.verdict) == (found.op, found.verdict)
    assert again.samples.indices == found.samples
    assert again.samples.names == found.sample_names
    assert again.terms == found.loss_terms
    assert bundle.index.iteration == 2
    assert bundle.config_text == runner.cfg.pretty_text
    assert bundle.verdict['op'] == found.op
    assert {'mmstable', 'torch'} <= bundle.index.versions.keys()
    text = Path(found.bundle, 'verdict.txt').read_text(encoding='utf-8')
    assert text == found.text + '\n'
    assert bundle.index.notes == ()


def test_scalers_are_in_it(tmp_path):
    _, found = explain(tmp_path, 'exp, fp16')
    scalers = read_bundle(found.bundle).scalers
    assert scalers['optim_wrapper']['scale'] == 1.0


SCRIPT = """
import sys
from mmstable.forensics.bundle import read_bundle
from mmstable.forensics.find_cause import CauseFinder
from tests.forensics.test_bundle import case_of

bundle = read_bundle(sys.argv[1])
model = case_of('own autograd').model()
bundle.load_into(model)
found = CauseFinder([bundle.inputs(model)]).run()
print(found.verdict, found.culprit.op, found.samples.names[0])
"""


@pytest.mark.soak
def test_it_is_replayed_in_a_fresh_process(tmp_path):
    _, found = explain(tmp_path, 'own autograd')
    done = subprocess.run(
        [sys.executable, '-c', SCRIPT, found.bundle],
        env={**os.environ, 'PYTHONPATH': str(REPO)},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout.split() == [
        'domain_error',
        'aten.div.Tensor',
        'img_path=data/6.png',
    ]


def test_large_weights_are_a_checkpoint(tmp_path, monkeypatch):
    # The newest checkpoint is still being written when the fault is found.
    is_awaited = threading.Event()
    write = CheckpointStorage._write_local

    def write_late(self, checkpoint, target):
        if target.endswith('iter_4.pth'):
            assert is_awaited.wait(PATIENCE)
        write(self, checkpoint, target)

    def finish(runner):
        is_awaited.set()
        finish_saves(runner)

    monkeypatch.setattr(CheckpointStorage, '_write_local', write_late)
    monkeypatch.setattr(catalog, 'finish_saves', finish)
    settings = dict(max_bundle_size=1e-4)
    _, (found,) = run(
        tmp_path,
        BadData(5),
        settings=settings,
        default_hooks=dict(
            checkpoint=dict(
                type='mmstable.SafeCheckpointHook', interval=2, by_epoch=False
            )
        ),
    )
    bundle = read_bundle(found.bundle)
    assert bundle.model_state is None
    index = bundle.index
    assert index.checkpoint_iteration == 4
    good = find_checkpoint(tmp_path, before_iter=5).found
    assert index.checkpoint_sha256 == good.sha256
    assert Path(index.checkpoint) == good.path.absolute()
    assert 'MiB are more than 0.0001' in index.notes[0]


def test_a_large_batch_is_left_out(tmp_path):
    _, (found,) = run(
        tmp_path, BadData(3), settings=dict(max_bundle_size=1e-6)
    )
    bundle = read_bundle(found.bundle)
    assert bundle.batch is None
    assert bundle.index.checkpoint is None
    assert len(bundle.index.notes) == 2


class Strange:
    """What no file should hold."""


def test_batches_come_back_as_they_were():
    sample = BaseDataElement(metainfo=dict(img_path='a', shape=(2, 3)))
    sample.gt_instances = InstanceData(bboxes=torch.ones(2, 4))
    batch = dict(
        inputs=[torch.ones(3, dtype=torch.uint8)],
        data_samples=[sample],
        more=(1, 2.5, None, np.float32(3), {'deep': np.arange(3)}),
    )
    packed = Packed(batch)
    assert packed.left_out == []
    again = unpack(packed.value)
    assert_same(again['inputs'], batch['inputs'])
    (other,) = again['data_samples']
    assert type(other) is BaseDataElement
    assert other.metainfo == sample.metainfo
    assert type(other.gt_instances) is InstanceData
    assert torch.equal(other.gt_instances.bboxes, sample.gt_instances.bboxes)
    assert again['more'][:4] == (1, 2.5, None, 3.0)
    assert again['more'][4]['deep'].tolist() == [0, 1, 2]


def test_what_cannot_be_saved_is_named():
    packed = Packed(dict(inputs=[torch.ones(1)], masks=[Strange()]))
    name = f'{Strange.__module__}.Strange'
    assert packed.left_out == [f'masks[0] ({name})']
    assert unpack(packed.value)['masks'] == [None]


def test_a_foreign_class_is_not_imported():
    sample = Packed(BaseDataElement(metainfo=dict(a=1))).value
    sample['type'] = 'os.path.join'
    assert type(unpack(sample)) is BaseDataElement
    sample['type'] = 'not_there.at_all.Sample'
    assert type(unpack(sample)) is BaseDataElement


@pytest.fixture
def bundle(tmp_path):
    return Path(explain(tmp_path, 'log(0)')[1].bundle)


def refused(folder, reason):
    with pytest.raises(BundleError, match=reason) as error:
        read_bundle(folder)
    assert 'is no bundle of a fault' in str(error.value)
    assert error.value.exit_code == 3


def test_no_bundle_at_all(tmp_path):
    refused(tmp_path / 'none', 'No such file')
    refused(tmp_path, 'No such file')


@pytest.mark.parametrize('name', ['step.pth', 'model.pth'])
def test_a_truncated_file(bundle, name):
    content = (bundle / name).read_bytes()
    (bundle / name).write_bytes(content[: len(content) // 2])
    refused(bundle, 'truncated|corrupt')


class Bomb:
    def __reduce__(self):
        return os.mkdir, ('bomb',)


@pytest.mark.parametrize('name', ['step.pth', 'model.pth'])
def test_nothing_in_it_is_run(bundle, name, monkeypatch):
    monkeypatch.chdir(bundle)
    torch.save({'batch': Bomb(), 'rng': None}, bundle / name)
    refused(bundle, 'refused')
    assert not (bundle / 'bomb').exists()


@pytest.mark.parametrize(
    ('name', 'content', 'reason'),
    [
        ('step.pth', [1], 'must have a batch'),
        (
            'step.pth',
            dict(batch=1, rng=2),
            'no random state: must be an object',
        ),
        ('step.pth', dict(batch={'a': 1}, rng=None), 'unknown part'),
        ('step.pth', dict(batch=1, rng=None, scalers=1), 'no dict'),
        ('model.pth', dict(a=1), 'must be a dict of tensors'),
    ],
)
def test_something_else_in_a_file(bundle, name, content, reason):
    torch.save(content, bundle / name)
    refused(bundle, reason)


@pytest.mark.parametrize(
    ('change', 'reason'),
    [
        (dict(iteration='x'), '`iteration`: must be an integer'),
        (dict(setups={}), '`setups`: must have at least one'),
        (dict(setups={'a': 1}), '`setups`: `a`: must be an object'),
        (dict(schema=9), 'schema 9 is of a newer mmstable'),
        (dict(versions=1), '`versions`: must be an object'),
        (dict(notes=[1]), '`notes`: must be a string'),
    ],
)
def test_an_index_of_something_else(bundle, change, reason):
    path = bundle / 'bundle.json'
    content = json.loads(path.read_text(encoding='utf-8'))
    path.write_text(json.dumps({**content, **change}))
    refused(bundle, reason)


def test_an_index_that_is_no_json(bundle):
    (bundle / 'bundle.json').write_text('{')
    refused(bundle, 'Expecting')
    (bundle / 'bundle.json').write_text('[]')
    refused(bundle, 'must be an object')


def test_weights_of_another_model_are_named(bundle):
    missing = read_bundle(bundle).load_into(ToyModel())
    assert 'net.head.weight' in missing
