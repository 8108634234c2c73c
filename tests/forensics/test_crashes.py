"""Training steps that raise an error, explained with line and sample."""

from __future__ import annotations

import json

import pytest
import torch
from mmengine.dataset import DefaultSampler
from mmengine.hooks import Hook
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

from mmstable.check.dataset import SkipSamples
from mmstable.events import Fault
from tests.forensics.planted_cases import Findings
from tests.forensics.runs import HOOK
from tests.loops.runs import iter_loop, log_of
from tests.toys import ToyData, ToyModel, toy_runner

# Of the data set of 16, in the second batch of four.
BAD = 6


class Marked(ToyData):
    """Samples with a label and a name, one of them marked."""

    def __getitem__(self, index):
        found = super().__getitem__(index)
        mark = torch.tensor(float(index == BAD))
        label = torch.tensor(21 if index == BAD else index % 2)
        return dict(found, mark=mark, label=label, img_path=f'{index}.png')


class Label(ToyModel):
    def forward(self, inputs, label, mode='tensor', **kwargs):
        logits = self.net(inputs)
        return dict(loss=functional.cross_entropy(logits, label))


class Dense(ToyModel):
    """Labels in two dimensions, and some that are ignored."""

    def forward(self, inputs, label, mode='tensor', **kwargs):
        logits = self.net(inputs)[:, :, None, None].expand(-1, -1, 2, 2)
        label = label[:, None, None].repeat(1, 2, 2)
        label[0] = 255
        loss = functional.cross_entropy(logits, label, ignore_index=255)
        return dict(loss=loss)


class Table(ToyModel):
    """An index of a flat list that has not the size of the batch."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(20, 2)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, inputs, label, mode='tensor', **kwargs):
        rows = self.table(label.repeat(3))
        return dict(loss=self.net(self.norm(inputs)).mean() + rows.mean())


class Gather(ToyModel):
    def forward(self, inputs, label, mode='tensor', **kwargs):
        found = self.net(inputs).gather(1, label[:, None])
        return dict(loss=found.mean())


class Subscript(ToyModel):
    def forward(self, inputs, label, mode='tensor', **kwargs):
        rows = torch.arange(len(label))
        return dict(loss=self.net(inputs)[rows, label].mean())


class Probability(ToyModel):
    def forward(self, inputs, mark, mode='tensor', **kwargs):
        given = self.net(inputs).sigmoid()[:, 0] + 2 * mark
        loss = functional.binary_cross_entropy(given, torch.zeros(len(mark)))
        return dict(loss=loss)


class Shapes(ToyModel):
    """Its error has nothing to do with samples."""

    def forward(self, inputs, mode='tensor', **kwargs):
        return dict(loss=self.net.head(self.net.backbone(inputs).T).mean())


class Assertion(ToyModel):
    """An error of Python, for one sample."""

    def forward(self, inputs, mark, mode='tensor', **kwargs):
        assert not mark.any(), 'an empty target'
        return dict(loss=self.net(inputs).mean())


class Backwards(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values, mark):
        ctx.save_for_backward(mark)
        return values.clone()

    @staticmethod
    def backward(ctx, grad):
        (mark,) = ctx.saved_tensors
        return grad.gather(0, 99 * mark.long()[:, None].expand(-1, 2)), None


class Derivative(ToyModel):
    def forward(self, inputs, mark, mode='tensor', **kwargs):
        return dict(loss=Backwards.apply(self.net(inputs), mark).mean())


class Once(ToyModel):
    """Fails once, whatever the batch."""

    calls = 0

    def forward(self, inputs, mode='tensor', **kwargs):
        self.calls += 1
        if Once.fails and self.calls == 2:
            Once.fails = False
            raise RuntimeError('a transient fault')
        return dict(loss=self.net(inputs).mean())


def crash(folder, model, *hooks, settings=None, **kwargs):
    findings = Findings()
    data = Marked()
    loader = DataLoader(data, 4, sampler=DefaultSampler(data, shuffle=False))
    runner = toy_runner(
        folder,
        hooks=[*hooks, {**HOOK, **(settings or {})}, findings],
        train_dataloader=loader,
        model=model,
        train_cfg=iter_loop(4),
        **kwargs,
    )
    with pytest.raises(Exception, match='.') as raised:
        runner.train()
    return runner, findings.found, raised.value


VALUES = [
    (Label, 'label 21 of sample 2 (img_path=6.png); classes are 0..1'),
    (Dense, 'label 21 of sample 2 (img_path=6.png); classes are 0..1'),
    (Table, 'index 21 of sample 2 (img_path=6.png); allowed is 0..19'),
    (Gather, 'index 21 of sample 2 (img_path=6.png); allowed is 0..1'),
    (Subscript, 'index 21 of sample 2 (img_path=6.png); allowed is -2..1'),
    (Probability, 'of sample 2 (img_path=6.png) is not in 0..1'),
]


@pytest.mark.parametrize(('model', 'words'), VALUES)
def test_value_and_sample_are_named(tmp_path, model, words):
    runner, (found,), error = crash(tmp_path, model())
    assert (found.fault, found.iteration) == (Fault.CRASH, 2)
    assert (found.verdict, found.samples) == ('out_of_range', (2,))
    assert words in found.text
    assert f'({__file__}:' in found.text or 'test_crashes.py:' in found.text
    assert found.kind == type(error).__name__
    # After the traceback, and in the log.
    assert any(words in note for note in error.__notes__)
    assert words in log_of(runner)


def test_an_error_of_python_is_explained(tmp_path):
    __, (found,), __ = crash(tmp_path, Assertion())
    assert (found.verdict, found.kind) == ('raised', 'AssertionError')
    assert (found.samples, found.op) == ((2,), '')
    assert "assert not mark.any(), 'an empty target'" in found.lines[0]
    assert 'not the machine' in found.text


def test_an_error_of_all_samples_blames_the_code(tmp_path):
    __, (found,), __ = crash(tmp_path, Shapes())
    assert (found.iteration, found.verdict) == (1, 'raised')
    assert 'self.net.head(self.net.backbone(inputs).T)' in found.lines[0]
    assert found.module == 'net.head'
    assert found.op.startswith('aten.addmm')
    assert 'cannot be multiplied' in found.text


def test_an_error_of_the_backward_pass_is_explained(tmp_path):
    __, (found,), __ = crash(tmp_path, Derivative())
    assert (found.verdict, found.phase) == ('out_of_range', 'backward')
    assert 'index 99 of sample 2' in found.text
    assert 'return grad.gather' in found.lines[0]


def test_what_does_not_happen_again_is_said(tmp_path):
    Once.fails = True
    __, (found,), __ = crash(tmp_path, Once())
    assert found.verdict == 'not_reproduced'
    assert 'a transient fault' in found.text


class Failing(Hook):
    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if runner.iter == 2:
            raise RuntimeError('not of the step')


@pytest.mark.parametrize(
    ('model', 'hooks', 'settings'),
    [(ToyModel, [Failing()], {}), (Label, [], dict(max_per_fault=0))],
)
def test_other_errors_are_left_alone(tmp_path, model, hooks, settings):
    class Plain(model):
        def forward(self, inputs, targets, mode='tensor', **kwargs):
            if model is Label:
                return super().forward(inputs, mode=mode, **kwargs)
            return super().forward(inputs, targets, mode)

    __, found, __ = crash(tmp_path, Plain(), *hooks, settings=settings)
    assert found == []
    assert not list(tmp_path.glob('*/stability/faults'))


def test_the_state_is_that_of_the_last_step(tmp_path):
    """A replay leaves weights, buffers and random numbers alone."""
    states = []
    for name, hook in (('with', {}), ('without', dict(max_per_fault=0))):
        runner, *_ = crash(tmp_path / name, Table(), settings=hook)
        states.append(runner.model.state_dict())
    for one, other in zip(*map(dict.values, states)):
        assert one.equal(other)


def test_the_second_error_of_a_sample_offers_to_skip_it(tmp_path):
    __, __, error = crash(tmp_path, Label())
    assert 'SkipSamples' not in error.__notes__[0]
    (folder,) = tmp_path.glob('*/stability')
    # As if it was started a second later.
    folder.parent.rename(tmp_path / 'first')
    runner, __, error = crash(tmp_path, Label())
    (note,) = error.__notes__
    assert 'not the first error of img_path=6.png' in note
    (path,) = tmp_path.glob('*/stability/skip_list.json')
    assert f"skip_list='{path}'" in note
    (entry,) = json.loads(path.read_text())['samples']
    assert (entry['index'], entry['reasons']) == (BAD, ['IndexError'])
    rest = SkipSamples(runner.train_dataloader.dataset, str(path))
    assert len(rest) == 15
    assert all(one['label'] < 2 for one in rest)
