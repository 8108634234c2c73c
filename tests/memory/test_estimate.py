"""What a config takes, against what its tensors really take."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from mmengine.model import BaseModel
from torch import nn

from mmstable.cli.main import main
from mmstable.memory import estimate as tensor_bytes
from mmstable.memory.estimate import (
    Data,
    Estimator,
    Line,
    Setup,
    largest_batch,
)

pytestmark = pytest.mark.skipif(
    not tensor_bytes.can_measure(), reason='this torch has no MemTracker'
)
CONFIG = (
    Path(__file__).parents[2] / 'configs/quickstart/digit-scenes_fcn_fp16.py'
)
SMALL = [
    'train_dataloader.dataset.num_scenes=8',
    'val_dataloader.dataset.num_scenes=8',
    'val_dataloader.batch_size=50',
]


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
        )

    def forward(self, x):
        return x + self.layers(x)


class Net(BaseModel):
    """A model whose bytes can be counted by hand."""

    def __init__(self, needs_values=False, width=64, depth=4):
        super().__init__()
        self.backbone = nn.Sequential(*(Block(width) for _ in range(depth)))
        self.head = nn.Linear(width, 1)
        self.needs_values = needs_values

    def forward(self, inputs, mode='tensor'):
        outputs = self.head(self.backbone(inputs))
        if self.needs_values and outputs.sum().item() == 1:
            raise AssertionError
        if mode == 'loss':
            return dict(loss=outputs.square().mean())
        return outputs


def adam(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def data(size=32):
    samples = [dict(inputs=torch.ones(16, 64)) for _ in range(2)]

    def collate(items):
        return dict(inputs=torch.stack([one['inputs'] for one in items]))

    return Data(samples, collate, size, workers=4, prefetch=2)


class Highest(torch.utils._python_dispatch.TorchDispatchMode):
    """The most bytes that living tensors have, counted independently."""

    def __init__(self, tensors):
        super().__init__()
        self.alive, self.most = {}, 0
        for one in tensors:
            self._note(one)

    def _note(self, tensor):
        import weakref

        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self.alive:
            self.alive[key] = storage.nbytes()
            weakref.finalize(storage, self.alive.pop, key, None)
        self.most = max(self.most, sum(self.alive.values()))

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for one in torch.utils._pytree.tree_leaves(out):
            if isinstance(one, torch.Tensor):
                self._note(one)
        return out


def really(size):
    """The peak of a real training step, and of its parts."""
    model = Net()
    optimizer = adam(model)
    batch = data().batch(size)
    for number in range(2):
        held = [*model.parameters(), batch['inputs']]
        states = [
            value for one in optimizer.state.values() for value in one.values()
        ]
        with Highest([*held, *states]) as seen:
            model(**batch, mode='loss')['loss'].backward()
            optimizer.step()
            optimizer.zero_grad()
        assert number or not states
    return seen.most


def test_it_is_what_a_real_step_takes():
    phase = Estimator(Net, adam).training(data(), Setup(None))
    assert phase.why_real == ''
    weights = sum(p.numel() * 4 for p in Net().parameters())
    assert phase.peak.weights == weights
    assert phase.peak.gradients == weights
    # Two moments, and a counter for each parameter.
    assert phase.peak.optimizer == pytest.approx(2 * weights, rel=0.01)
    assert phase.peak.batch == 32 * 16 * 64 * 4
    assert phase.peak.total == pytest.approx(really(32), rel=0.02)


@pytest.mark.parametrize('needs_values', [False, True], ids=['fake', 'real'])
def test_frozen_parameters_have_no_gradients(needs_values):
    """As with `frozen_stages=1`."""

    def build():
        model = Net(needs_values)
        model.backbone[0].requires_grad_(False)
        return model

    phase = Estimator(build, adam).training(data(), Setup(None))
    frozen = sum(p.numel() * 4 for p in build().backbone[0].parameters())
    weights = sum(p.numel() * 4 for p in build().parameters())
    assert phase.peak.weights == weights
    assert phase.peak.gradients == weights - frozen
    trained = 2 * (weights - frozen)
    assert phase.peak.optimizer == pytest.approx(trained, rel=0.01)


def test_a_model_that_needs_values_is_run_for_real():
    fake = Estimator(Net, adam).training(data(), Setup(None))
    real = Estimator(lambda: Net(True), adam).training(data(), Setup(None))
    assert 'DataDependent' in real.why_real
    assert real.peak.total == pytest.approx(fake.peak.total, rel=0.05)
    assert real.peak.weights == fake.peak.weights
    assert real.peak.batch == fake.peak.batch


@pytest.mark.soak
def test_what_makes_it_smaller():
    estimator = Estimator(Net, adam)
    plain = estimator.training(data(), Setup(None)).peak.activations
    half = estimator.training(data(), Setup(torch.bfloat16))
    assert half.peak.activations < 0.75 * plain
    again = estimator.training(data(), Setup(None, recomputed=('backbone',)))
    assert again.peak.activations < 0.5 * plain
    presets = estimator.presets(data(), Setup(None))
    sizes = {name: one.batch_size for name, one in presets.items()}
    assert sizes == {'balanced': 32, 'max_saving': 16, 'conservative': 8}
    totals = [one.peak.total for one in presets.values()]
    assert totals[0] > totals[1]


def test_gradients_that_wait_are_counted():
    estimator = Estimator(Net, adam)
    once = estimator.training(data(4), Setup(None)).peak
    twice = estimator.training(data(4), Setup(None, accumulation=2)).peak
    assert twice.total > once.total
    assert twice.total <= once.total + once.gradients


def test_validation_keeps_no_activations():
    estimator = Estimator(Net, adam)
    training = estimator.training(data(), Setup(None)).peak
    validation = estimator.validation(data(), Setup(None)).peak
    assert validation.optimizer == validation.gradients == 0
    assert validation.total < 0.5 * training.total


def test_the_largest_batch_is_measured():
    limit = Estimator(Net, adam).training(data(70), Setup(None)).peak.total
    phase = Estimator(Net, adam, limit).training(data(8), Setup(None))
    assert phase.largest == 70
    real = Estimator(lambda: Net(True), adam, limit)
    assert real.training(data(8), Setup(None)).largest == pytest.approx(
        70, abs=3
    )


@pytest.mark.parametrize(
    ('measure', 'limit', 'expected'),
    [
        (lambda n: 100 + 10 * n, 205, 10),
        (lambda n: 100 + 10 * n, 109, 0),
        # Worse, and better, than the line says.
        (lambda n: 100 + 10 * n + n * n // 4, 205, 8),
        (lambda n: 100 + 7 * n, 205, 15),
    ],
)
def test_a_wrong_guess_is_mended(measure, limit, expected):
    line = Line.through((1, 110), (2, 120))
    assert largest_batch(line, limit, measure) == expected


def test_batches_read_ahead():
    assert data().host_bytes == 4 * 2 * data().batch_size * 16 * 64 * 4


def estimate(*words, capsys):
    code = main(['estimate', str(CONFIG), *words, '--cfg-options', *SMALL])
    return code, capsys.readouterr()


@pytest.mark.soak
def test_the_command(tmp_path, capsys):
    path = tmp_path / 'figures.json'
    code, said = estimate(
        '--device-memory=7MiB', f'--json={path}', capsys=capsys
    )
    assert code == 11
    found = json.loads(path.read_text())
    assert found['fits'] is False
    assert found['training']['batch_size'] == 8
    assert found['training']['way'] == 'fake'
    assert found['training']['largest_batch'] < 8
    assert found['validation']['batch_size'] == 50
    assert found['validation']['total'] > found['training']['total']
    assert set(found['presets']) == {'balanced', 'max_saving', 'conservative'}
    assert found['host']['train'] == {
        'workers': 0,
        'prefetch_factor': 2,
        'bytes': found['host']['train']['bytes'],
    }
    text = ' '.join(said.out.split())
    assert 'These are bytes of tensors.' in text
    assert 'train_dataloader: no workers, so nothing is read ahead' in text
    assert 'Validation takes more than training: 50 samples' in text
    assert "with 'mmstable::_base_/memory/max_saving.py' it does" in text


@pytest.mark.soak
def test_the_batch_is_asked_for(capsys):
    code, said = estimate('--batch-size=2', '--lang=zh_cn', capsys=capsys)
    assert code == 0
    assert '张量的字节数' in said.out
    assert '--device-memory' in said.out


@pytest.mark.parametrize(
    ('words', 'message'),
    [
        (['--device-memory=24'], "24 bytes: write '24GiB'"),
        (
            ['--device-memory=much'],
            "a size must be a number above 0 .* 'much'",
        ),
        (['--batch-size=0'], 'a number from 1 on is expected'),
        (['--json=no/where.json'], "there is no folder 'no'"),
    ],
)
def test_mistakes(words, message, capsys):
    import re

    code, said = estimate(*words, capsys=capsys)
    assert code == 2
    assert re.search(message, said.err)


@pytest.mark.parametrize(
    ('option', 'message'),
    [
        ('optim_wrapper=None', 'no `optim_wrapper` with one `optimizer`'),
        ('train_dataloader=None', 'no `train_dataloader`'),
        ('model.type=Nothing', 'Nothing'),
    ],
)
def test_a_config_that_lacks_something(option, message, capsys):
    words = ['estimate', str(CONFIG), '--cfg-options', option, *SMALL[1:]]
    assert main(words) == 2
    assert message in capsys.readouterr().err


def test_an_old_torch_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(tensor_bytes, 'MemTracker', None)
    code, said = estimate(capsys=capsys)
    assert code == 2
    assert 'cannot count bytes of tensors' in said.err
