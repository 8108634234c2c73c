"""``mmstable inspect``: what is in a checkpoint, without running it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from mmstable.cli.main import main
from tests.messages.test_translations import CHINESE
from tests.torch_features import skip_without_half
from tests.toys import NAN


def train(folder: Path) -> None:
    words = ['--work-dir', str(folder), '--amp', '--seed', '3']
    options = ['optim_wrapper.loss_scale=64']
    options += ['default_hooks.checkpoint.type=mmstable.SafeCheckpointHook']
    assert main(['train', 'config.py', *words, '--cfg-options', *options]) == 0


@pytest.fixture(scope='module')
def run(
    project: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    skip_without_half()
    folder = tmp_path_factory.mktemp('inspected')
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(project))
        patch.chdir(project)
        train(folder)
    return {p.name: p for p in folder.glob('*.pth')}


def output(capsys: pytest.CaptureFixture[str], *words: Any) -> list[str]:
    capsys.readouterr()
    assert main(['inspect', *map(str, words)]) == 0
    return [' '.join(x.split()) for x in capsys.readouterr().out.splitlines()]


def test_one_checkpoint(
    run: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    lines = output(capsys, run['iter_4.pth'])
    for line in (
        'iteration 4',
        'epoch 0',
        'seed 3',
        'loss scale 64.0',
        'learning rate 0.1',
        'finite yes',
        'weights 2 tensors, 10 values',
        'key shape and type',
        'head.weight 2 x 4 float32',
        'head.bias 2 float32',
    ):
        assert line in lines
    assert any(f'torch {torch.__version__}' in line for line in lines)


def test_two_checkpoints(
    run: dict[str, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    changed = torch.load(run['iter_4.pth'], weights_only=False)
    state = changed['state_dict']
    state['head.weight'][0, 0] += 0.25
    state['new'] = torch.zeros(3)
    torch.save(changed, tmp_path / 'changed.pth')
    lines = output(capsys, run['iter_4.pth'], tmp_path / 'changed.pth')
    assert 'iteration 4 4' in lines
    assert '1 equal, 2 different:' in lines
    assert 'head.weight differs by up to 0.25' in lines
    assert 'new only in the second' in lines
    assert not any(line.startswith('head.bias') for line in lines)
    state['head.bias'] = torch.zeros(5, dtype=torch.float16)
    torch.save(changed, tmp_path / 'changed.pth')
    lines = output(capsys, tmp_path / 'changed.pth', run['iter_4.pth'])
    assert 'head.bias 5 float16 -> 2 float32' in lines
    assert 'new only in the first' in lines


def test_what_is_not_finite_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save({'a.b': torch.tensor([1.0, NAN])}, tmp_path / 'weights.pth')
    lines = output(capsys, tmp_path / 'weights.pth')
    assert 'finite NO: state_dict.a.b (NaN)' in lines
    assert 'a.b 2 float32' in lines
    # What is NaN in both is no difference.
    lines = output(capsys, *[tmp_path / 'weights.pth'] * 2)
    assert '1 equal, 0 different:' in lines


def test_several_optimizers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = dict(param_groups=[dict(lr=0.1), dict(lr=0.3), dict(lr=0.2)])
    two = dict(param_groups=[dict(lr=1)], loss_scaler=dict(scale=8.0))
    torch.save(
        dict(state_dict={}, optimizer=dict(gen=one, disc=two)),
        tmp_path / 'gan.pth',
    )
    lines = output(capsys, tmp_path / 'gan.pth')
    assert 'learning rate gen: 0.1 ... 0.3, disc: 1' in lines
    assert 'loss scale disc: 8.0' in lines


def test_chinese(
    run: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    lines = output(capsys, run['iter_4.pth'], '--lang', 'zh_cn')
    assert '迭代 4' in lines
    assert sum(bool(CHINESE.search(line)) for line in lines) == 11


def test_files_cannot_write_to_the_terminal(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    meta = dict(seed='\x1b[2J', iter='[bold]')
    state = {'\x1b[31m[red]\u202e': torch.zeros(1)}
    torch.save(dict(state_dict=state, meta=meta), tmp_path / 'x.pth')
    monkeypatch.setenv('TERM', 'dumb')
    for rich in (False, True):
        monkeypatch.setattr('sys.stdout.isatty', lambda rich=rich: rich)
        lines = output(capsys, tmp_path / 'x.pth')
        assert all(line.isprintable() for line in lines)
        assert any('[red]' in line for line in lines)


@pytest.mark.parametrize('content', [[1, 2], 'text', torch.zeros(2)])
def test_other_files_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: Any
) -> None:
    torch.save(content, tmp_path / 'x.pth')
    assert main(['inspect', str(tmp_path / 'x.pth')]) == 3
    assert 'foreign: a dict is expected' in capsys.readouterr().err
    assert main(['inspect', str(tmp_path / 'nothing.pth')]) == 3
    assert 'missing' in capsys.readouterr().err
