"""A mistake in a config or a command line is one line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mmstable.cli.main import main

pytestmark = pytest.mark.usefixtures('in_project')


def error_of(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """The one line that ``main`` prints for a mistake."""
    assert main(['train', *args]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    ours = [line for line in lines if line.startswith('mmstable train')]
    assert len(ours) == 1
    assert not any('Traceback' in line for line in lines)
    return ours[0]


def test_misspelt_config_is_suggested(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert error_of(capsys, 'confg.py') == (
        "mmstable train: error: no config file 'confg.py'. "
        'Did you mean config.py?'
    )


def test_syntax_error_names_file_and_line(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / 'broken.py').write_text('model = dict()\nx = = 1\n')
    (project / 'child.py').write_text("_base_ = './broken.py'\n")
    for config in ('broken.py', 'child.py'):
        assert 'broken.py:2: ' in error_of(capsys, config)


def test_exception_in_config_names_file_and_line(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / 'raises.py').write_text('a = 1\nb = a / 0\n')
    line = error_of(capsys, 'raises.py')
    assert line.endswith('raises.py:2: ZeroDivisionError: division by zero')


def test_missing_base_is_suggested(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / 'orphan.py').write_text("_base_ = './confi.py'\n")
    line = error_of(capsys, 'orphan.py')
    assert "'orphan.py' needs '" in line
    assert re.search(r'Did you mean \S*/project\d/config\.py', line)


def test_missing_checkpoint_is_suggested(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / 'iter_2000.pth').touch()
    for option in ('--resume', '--resume-from', '--load-from'):
        line = error_of(capsys, 'config.py', option, 'iter_200.pth')
        assert "no checkpoint 'iter_200.pth'." in line
        assert line.endswith('Did you mean iter_2000.pth?')


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        (
            ['optim_wrapper.type=mmstable.SafeAmpOptimWrapper']
            + ['optim_wrapper.loss_scale=0'],
            '`init_scale` must be a finite number above 0, got 0',
        ),
        (
            ['optim_wrapper.type=mmstable.SafeAmpOptimWrapper']
            + ['optim_wrapper.los_scale=2'],
            "unexpected keyword argument 'los_scale'",
        ),
        (
            ['optim_wrapper.type=mmstable.SafeAmpOptimWrapper']
            + ['optim_wrapper.fp32_modules=nothing'],
            "'nothing' matches nothing. There is data_preprocessor, head.",
        ),
        (
            ['train_dataloader.batch_size=0'],
            'train_dataloader.batch_size must be an int of at least 1, got 0.',
        ),
        (
            ['optim_wrapper.accumulative_counts=5'],
            'the whole run has 4: 4 // 5 = 0 full steps',
        ),
        (
            ['train_cfg.type=mmstable.SafeIterBasedTrainLoop']
            + ['train_dataloader.drop_last=True']
            + ['train_dataloader.batch_size=9'],
            '8 // batch_size 9 = 0 full batches, and drop_last=True',
        ),
    ],
)
def test_wrong_setting_is_one_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    message: str,
) -> None:
    line = error_of(
        capsys,
        'config.py',
        '--work-dir',
        str(tmp_path),
        '--cfg-options',
        *options,
    )
    assert message in line


def test_misspelt_type_is_suggested(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for option, message in {
        'model.type=ToyToolModl': (
            "asks for the model 'ToyToolModl', which is not registered in "
            "scope 'mmengine'. Did you mean ToyToolModel?"
        ),
        'optim_wrapper.type=mmstable.SafeOptimWraper': (
            "asks for the optim_wrapper 'mmstable.SafeOptimWraper', which is "
            "not registered in scope 'mmengine'. Did you mean "
            'mmstable.SafeOptimWrapper'
        ),
    }.items():
        line = error_of(
            capsys,
            'config.py',
            *('--work-dir', str(tmp_path), '--cfg-options', option),
        )
        assert message in line


def test_misspelt_argument_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ['--work-dir', str(tmp_path), '--cfg-options', 'model.napp=1']
    line = error_of(capsys, 'config.py', *options)
    assert 'the config has a wrong argument: ' in line
    assert "unexpected keyword argument 'napp'" in line


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        ([], 'the following arguments are required: config'),
        (['config.py', '--launcher', 'k8s'], 'invalid choice'),
        (['config.py', '--gpu-id', '-1'], '--gpu-id'),
        (['config.py', '--wrok-dir', 'x'], 'unrecognized arguments'),
        (['config.py', '--resume', 'a', '--load-from', 'b'], 'not allowed'),
        (['config.py', '--cfg-options', 'lr'], "KEY=VALUE, got 'lr'"),
        (
            ['config.py', '--cfg-options', 'model.a=[1,2'],
            'Imbalanced brackets',
        ),
        (
            ['config.py', '--cfg-options', 'optim_wraper.a=1'],
            "the config has no 'optim_wraper', needed by 'optim_wraper.a'. "
            'Did you mean optim_wrapper?',
        ),
    ],
)
def test_misused_option_is_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in error_of(capsys, *arguments)
