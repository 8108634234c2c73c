"""A resume that does not fit must not cost a trained model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.cli.score_project import saved, train
from tests.toys import read_saved

pytestmark = pytest.mark.usefixtures('in_score_project')


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / 'work'
    assert train(folder, train_cfg__max_iters=4) == 0
    return folder


def error_of(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().err.strip().splitlines()[-1]


def test_a_wrong_model_is_refused_before_anything_is_saved(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {p.name: p.read_bytes() for p in work.glob('*.pth*')}
    assert train(work, '--resume', model__width=6) == 3
    assert (
        'error: the checkpoint does not fit this run; 3 of 4 tensors differ '
        '(3 in shape, 0 only in the model, 0 only in the checkpoint): '
        'body.0.bias is [6] in the model, [4] in the checkpoint; '
        'body.0.weight is [6, 4] in the model, [4, 4] in the checkpoint; '
        'body_head.weight is [2, 6] in the model, [2, 4] in the checkpoint. '
        'Nothing was trained or saved.'
    ) in error_of(capsys)
    assert {p.name: p.read_bytes() for p in work.glob('*.pth*')} == before
    assert train(work, '--resume') == 0
    whole = work.parent / 'whole'
    assert train(whole) == 0
    ours, theirs = (read_saved(w / 'iter_8.pth') for w in (work, whole))
    for key, value in theirs['state_dict'].items():
        assert torch.equal(ours['state_dict'][key], value)


def test_names_only_here_and_only_there_are_counted(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(work, '--resume', model__depth=2) == 3
    assert '2 of 6 tensors differ (0 in shape, 2 only in the model' in (
        error_of(capsys)
    )
    deep = work.parent / 'deep'
    assert train(deep, train_cfg__max_iters=2, model__depth=2) == 0
    assert train(deep, '--resume') == 3
    assert 'body.1.bias is - in the model, [4] in the checkpoint' in error_of(
        capsys
    )


@pytest.mark.parametrize('words', [[], ['--allow-partial', '1']])
def test_nothing_in_common_is_never_resumed(
    work: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(work, '--resume', *words, model__name='other') == 3
    assert 'nothing in common with the model; 8 of 8' in error_of(capsys)


def test_a_stated_share_may_differ(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    resume = ['--resume', '--allow-partial']
    assert train(work, *resume, '0.3', model__depth=2) == 3
    assert 'add --allow-partial 0.34;' in error_of(capsys)
    assert train(work, *resume, '0.34', model__depth=2) == 0
    text = ''.join(p.read_text() for p in work.rglob('*.log'))
    assert 'resumed in part: 2 of 6 tensors differ' in text
    assert 'optimizer      not in the checkpoint, starts anew' in text
    ours = read_saved(work / 'iter_8.pth')
    assert 'body.1.weight' in ours['state_dict']
    # It is whole from now on.
    assert train(work, '--resume', model__depth=2) == 0


def test_an_average_is_no_way_around(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work, more = tmp_path / 'work', dict(custom_hooks__0__type='EMAHook')
    assert train(work, train_cfg__max_iters=4, **more) == 0
    assert train(work, '--resume', model__width=6, **more) == 3
    assert '3 of 4 tensors differ' in error_of(capsys)
    partial = ['--resume', '--allow-partial', '0.9']
    assert train(work, *partial, model__width=6, **more) == 0


def test_other_parameter_groups_are_refused(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    groups = dict(optim_wrapper__paramwise_cfg__bias_lr_mult=2.0)
    assert train(work, '--resume', **groups) == 3
    assert (
        'the optimizer has 4 parameter groups with 4 parameters here, 1 '
        'group with 4 parameters there'
    ) in error_of(capsys)
    assert train(work, '--resume', '--allow-partial', **groups) == 0


def test_a_model_that_saves_a_part_of_itself_is_resumed(
    tmp_path: Path,
) -> None:
    work, kind = tmp_path / 'work', dict(model__type='ScoreAdapter')
    assert train(work, train_cfg__max_iters=4, **kind) == 0
    assert len(read_saved(work / 'iter_4.pth')['state_dict']) == 2
    assert train(work, '--resume', **kind) == 0
    assert saved(work)[-1] == 'iter_8.pth'


def test_names_that_the_model_translates_are_no_difference(
    work: Path,
) -> None:
    assert train(work, '--resume', model__type='RenamedModel') == 0
    assert 'tail.bias' in read_saved(work / 'iter_8.pth')['state_dict']


def test_nothing_is_saved_before_one_iteration_is_done(work: Path) -> None:
    before = saved(work)
    with pytest.raises(RuntimeError, match='a fault in the model'):
        train(work, '--resume', model__fail_at=1)
    assert saved(work) == before
    with pytest.raises(RuntimeError, match='a fault in the model'):
        train(work, '--resume', model__fail_at=2)
    assert saved(work) == ['emergency_iter_5.pth', *before]


@pytest.mark.parametrize('share', ['0', '1.5', 'half', '-1'])
def test_a_share_is_a_share(
    tmp_path: Path, share: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(tmp_path, '--resume', f'--allow-partial={share}') == 2
    assert 'a number above 0 and up to 1' in capsys.readouterr().err


def test_it_goes_with_resume(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(tmp_path, '--allow-partial') == 2
    assert '--allow-partial goes with --resume' in capsys.readouterr().err
