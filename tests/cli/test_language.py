"""One switch makes all that a command prints Chinese."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mmstable.cli.main import COMMANDS, main
from mmstable.messages import _
from tests.cli.runs import log_of
from tests.messages.test_translations import CHINESE

pytestmark = pytest.mark.usefixtures('in_project')

SAFE = """
_base_ = './config.py'
optim_wrapper = dict(type='mmstable.SafeAmpOptimWrapper')
train_cfg = dict(type='mmstable.SafeIterBasedTrainLoop')
default_hooks = dict(
    checkpoint=dict(type='mmstable.SafeCheckpointHook'),
    guard=dict(
        type='mmstable.DivergenceGuardHook', actions=dict(poisoned='stop')
    ),
)
custom_hooks = [
    dict(type='mmstable.GradNanLoggerHook'{lang}),
    dict(type='mmstable.EventLogHook'),
    dict(
        type='mmstable.FaultInjectorHook',
        enabled=True,
        faults=[dict(kind='nan_weight', param='head.bias', at=4)],
    ),
]
"""


def lines_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What the command itself has printed, without its name."""
    lines = capsys.readouterr().err.splitlines()
    ours = [line for line in lines if line.startswith('mmstable')]
    texts = [line.partition(': ')[2] for line in ours]
    return [text.replace('错误：', '') for text in texts]


def english(lines: list[str]) -> list[str]:
    return [line for line in lines if not CHINESE.search(line)]


@pytest.mark.parametrize('lang', [['--lang', 'zh_cn'], ['--lang=zh_cn']])
def test_the_language_ahead_of_the_command(
    lang: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*lang, 'train', 'confg.py']) == 2
    (text,) = lines_of(capsys)
    assert CHINESE.search(text)
    assert 'confg.py' in text


@pytest.mark.parametrize(
    'words',
    [
        ['trian', 'config.py'],
        ['train', 'confg.py'],
        ['train', 'config.py', '--sead', '1'],
        ['train', 'config.py', '--cfg-options', 'max_iters=3'],
        ['train', 'config.py', '--cfg-options', 'model.type=ToyToolModl'],
        ['train', 'config.py', '--cfg-options', 'model.napp=1'],
        ['train', 'config.py', '--cfg-options', 'optim_wraper.x=1'],
        ['train', 'config.py', '--cfg-options', 'x'],
        ['train', 'config.py', '--auto-scale-lr'],
        ['train', 'config.py', '--resume-from', 'nothing.pth'],
        ['train', 'config.py', '--load-from', 'config.py'],
        ['train', 'config.py', '--override-lr-schedule'],
        ['train', 'config.py', '--resume', '--trust-checkpoint'],
        ['upgrade', 'config.py', '-o', 'x.json'],
    ],
)
def test_mistakes(
    words: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if words[0] == 'train':
        words = [*words, '--work-dir', str(tmp_path)]
    assert main([*words, '--lang', 'zh_cn']) in (2, 3)
    spoken = lines_of(capsys)
    assert spoken
    assert english(spoken) == []
    # By the environment alone.
    monkeypatch.setenv('MMSTABLE_LANG', 'zh_cn')
    main(words)
    assert lines_of(capsys) == spoken
    # The option wins.
    main([*words, '--lang=en'])
    assert english(lines_of(capsys)) != []


def stop_and_resume(
    folder: Path, capsys: pytest.CaptureFixture[str], *words: str
) -> tuple[list[str], str]:
    work = ['--work-dir', str(folder)]
    assert main(['train', 'safe.py', *work, *words]) == 4
    assert main(['train', 'safe.py', *work, *words, '--resume']) == 4
    return lines_of(capsys), log_of(folder)


@pytest.mark.parametrize('switch', ['option', 'environment', 'hook'])
def test_a_run_that_stops_and_is_resumed(
    switch: str,
    project: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lang = ", lang='zh_cn'" if switch == 'hook' else ''
    (project / 'safe.py').write_text(SAFE.replace('{lang}', lang))
    if switch == 'environment':
        monkeypatch.setenv('MMSTABLE_LANG', 'zh_cn')
    words = ['--lang', 'zh_cn'] if switch == 'option' else []
    spoken, log = stop_and_resume(tmp_path, capsys, *words)
    assert len(spoken) > 2
    assert english(spoken) == []
    assert '训练在第 4 次迭代停止' in log
    # Once for each of the two runs.
    assert log.count('混合精度训练已启用') == 2


def test_the_option_wins_over_a_hook(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / 'safe.py').write_text(SAFE.replace('{lang}', ", lang='zh_cn'"))
    spoken, log = stop_and_resume(tmp_path, capsys, '--lang', 'en')
    assert english(spoken) == spoken
    assert 'training is stopped at iteration 4' in log


def test_a_wrong_variable_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('MMSTABLE_LANG', 'fr')
    assert main(['train', 'config.py']) == 2
    assert lines_of(capsys) == [
        'error: the environment variable MMSTABLE_LANG must be one of en, '
        "zh_cn, got 'fr'."
    ]
    assert main(['--help']) == 0


OLD = """
optimizer = dict(type='SGD', lr=0.1, constructor='Mine')
optimizer_config = dict(type='Own', cumulative_iters=2, grad_clip=None)
fp16 = dict(loss_scale=512.)
runner = dict(type='EpochBasedRunner', max_epochs=2)
lr_config = dict(policy='step', step=[1])
workflow = [('train', 1), ('val', 1)]
checkpoint_config = dict(interval=1, create_symlink=True, meta=dict(a=1))
log_config = dict(hooks=[dict(type='PaviLoggerHook')])
evaluation = dict(interval=1, metric='mIoU', save_best='mIoU')
custom_hooks = [dict(type='MyHook'), dict(type='IterTimerHook')]
gpu_ids = [0]
data = dict(samples_per_gpu=2, val=dict(type='X'), train=dict(
    type='X', pipeline=[dict(type='DefaultFormatBundle')]))
model = dict(type='M')
optimzer_config = dict()
"""


def test_notes_about_a_config_of_mmcv(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / 'old.py').write_text(OLD)
    new = tmp_path / 'new.py'
    words = ['upgrade', 'old.py', '-o', str(new)]
    assert main([*words, '--lang', 'zh_cn']) == 5
    lines = capsys.readouterr().err.splitlines()
    notes = [line for line in lines if ' -> ' not in line]
    assert len(notes) > 15
    assert english(notes) == []
    assert main(words) == 5
    assert english(capsys.readouterr().err.splitlines())


def test_help_works_in_every_language(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for command in COMMANDS:
        assert main([command, '--help']) == 0
        out = capsys.readouterr().out
        assert out.startswith(f'usage: mmstable {command} ')
        assert not CHINESE.search(out)
        assert main([command, '--help', '--lang', 'zh_cn']) == 0
        out = capsys.readouterr().out
        assert out.startswith(f'usage: mmstable {command} ')
        # Besides the usage, its words and the names of options.
        text = out[out.index('\n\n') :]
        assert re.findall(r'  [a-z]+ [a-z]+ [a-z]+', text) == []


def test_help_of_all_commands(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('MMSTABLE_LANG', 'zh_cn')
    assert main(['--help']) == 0
    out = capsys.readouterr().out
    for help in COMMANDS.values():
        assert _(help) in out
        assert CHINESE.search(_(help))


@pytest.mark.parametrize(
    ('words', 'text'),
    [
        # What argparse says by itself is English.
        ([], 'the following arguments are required: config'),
        (['--work-dir'], 'argument --work-dir: expected one argument'),
        (['--launcher', 'x'], "argument --launcher: invalid choice: 'x'"),
        (['--max-restarts', 'a'], "应是从 0 开始的整数，实际为 'a'"),
        (['--allow-partial', '3'], "比例应大于 0 且不超过 1，实际为 '3'"),
    ],
)
def test_a_wrong_command_line(
    words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(['train', '--lang', 'zh_cn', *words]) == 2
    err = capsys.readouterr().err
    assert err.startswith('mmstable train: 错误：')
    assert text in err
    assert err.endswith('（见 --help）\n')


@pytest.mark.parametrize(
    ('option', 'text'),
    [
        (
            'optim_wrapper.loss_scale=0',
            '`init_scale` 必须是大于 0 的有限数值，实际为 0。',
        ),
        (
            'train_cfg.replay=maybe',
            "`replay` 必须是布尔值（bool），实际为 'maybe'。",
        ),
        (
            'optim_wrapper.clip_grad.warmup=9',
            '没有设置 `warmup`，可用的有 max_norm',
        ),
    ],
)
def test_a_wrong_setting(
    project: Path,
    tmp_path: Path,
    option: str,
    text: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (project / 'safe.py').write_text(SAFE.format(lang=''))
    words = ['safe.py', '--work-dir', str(tmp_path), '--lang', 'zh_cn']
    assert main(['train', *words, '--cfg-options', option]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert text in line
    assert line.startswith('mmstable train: 错误：配置中有错误的设置：')
