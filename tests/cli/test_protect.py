"""``mmstable protect``, ``mmstable train`` and the starter config."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from mmengine.config import Config

from mmstable.cli.main import main
from mmstable.settings import config_path
from tests.cli.runs import iterations, log_of, run
from tests.toys import assert_same, read_saved

pytestmark = pytest.mark.usefixtures('in_project')
# What the train script of every OpenMMLab project comes down to.
OTHER_SCRIPT = """
import sys
from mmengine.config import Config
from mmengine.runner import Runner

cfg = Config.fromfile(sys.argv[1])
cfg.work_dir = sys.argv[2]
runner = Runner.from_cfg(cfg)
runner.train()
print(type(runner.train_loop).__name__, type(runner.optim_wrapper).__name__)
print(*[type(hook).__name__ for hook in runner.hooks])
"""
PYTHON_CONFIG = """
from mmengine.dataset import DefaultSampler
from mmengine.optim import OptimWrapper
from mmengine.runner import IterBasedTrainLoop
from torch.optim import SGD
from torch.utils.data import default_collate
from toy_tool_project import ToyToolDataset, ToyToolModel

experiment_name = 'python_style'
model = dict(type=ToyToolModel)
train_dataloader = dict(
    batch_size=2, num_workers=0, dataset=dict(type=ToyToolDataset),
    sampler=dict(type=DefaultSampler, shuffle=False),
    collate_fn=dict(type=default_collate))
train_cfg = dict(type=IterBasedTrainLoop, max_iters=2)
optim_wrapper = dict(type=OptimWrapper, optimizer=dict(type=SGD, lr=0.1))
log_processor = dict(by_epoch=False)
"""


def train(work: Path, *words: str, config: str = 'config.py') -> int:
    return main(['train', config, '--work-dir', str(work), *words])


def protect(*words: str) -> int:
    return main(['protect', *map(str, words)])


def dumped(work: Path) -> Config:
    return Config.fromfile(next(work.glob('*.py')))


def said(capsys: pytest.CaptureFixture[str]) -> list[str]:
    lines = capsys.readouterr().err.splitlines()
    return [x.partition(': ')[2] for x in lines if x.startswith('mmstable ')]


def test_a_plain_config_is_protected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(tmp_path) == 0
    cfg = dumped(tmp_path)
    assert cfg.train_cfg.type == 'mmstable.SafeIterBasedTrainLoop'
    assert cfg.optim_wrapper.type == 'mmstable.SafeOptimWrapper'
    assert cfg.default_hooks.checkpoint.type == 'mmstable.SafeCheckpointHook'
    assert cfg.default_hooks.checkpoint.interval == 2
    assert (next(tmp_path.glob('*/stability/events.jsonl'))).exists()
    title, classes, hooks, back_ends = said(capsys)
    assert title == 'protected with preset default (--as-is changes nothing):'
    assert 'optim_wrapper, train_cfg, default_hooks.param_sch' in classes
    assert 'FaultForensicsHook' in hooks
    assert 'LocalVisBackend' in back_ends


def test_as_is_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(tmp_path, '--as-is') == 0
    text = next(tmp_path.glob('*.py')).read_text()
    assert 'mmstable' not in text.replace('resume_command', '').replace(
        'mmstable train', ''
    )
    assert said(capsys) == []


def test_the_dumped_config_trains_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = tmp_path / 'first', tmp_path / 'second'
    assert train(first, '--seed', '1') == 0
    (path,) = first.glob('*.py')
    capsys.readouterr()
    assert train(second, config=str(path)) == 0
    assert said(capsys) == []
    states = [
        read_saved(folder / 'iter_4.pth')['state_dict']
        for folder in (first, second)
    ]
    assert_same(*states)


@pytest.mark.parametrize(
    ('before', 'after'), [(['--as-is'], []), ([], ['--as-is'])]
)
def test_a_run_may_be_protected_later(
    tmp_path: Path, before: list[str], after: list[str]
) -> None:
    assert train(tmp_path, *before) == 0
    longer = ['--resume', '--cfg-options', 'train_cfg.max_iters=6']
    assert train(tmp_path, *after, *longer) == 0
    assert iterations(tmp_path) == [1, 2, 3, 4, 5, 6]
    assert (tmp_path / 'iter_6.pth').exists()


def test_presets_are_chosen(tmp_path: Path) -> None:
    words = ['--preset', 'safe', '--amp', 'bf16']
    assert train(tmp_path, *words) == 0
    cfg = dumped(tmp_path)
    assert cfg.optim_wrapper.clip_grad.max_norm == 1.0
    assert cfg.default_hooks.guard.lr_factor == 0.3
    # bf16 has no scale.
    assert 'loss_scale' not in cfg.optim_wrapper


def test_who_observes_does_not_skip(project: Path, tmp_path: Path) -> None:
    (project / 'bad.py').write_text(
        "_base_ = './config.py'\n"
        "custom_hooks = [dict(type='mmstable.FaultInjectorHook', "
        "enabled=True, faults=[dict(kind='nan_loss', at=2)])]\n"
    )
    words = ['--preset', 'observe_only']
    assert train(tmp_path / 'a', *words, config='bad.py') == 0
    assert 'Iter 2: loss is NaN or Inf, WEIGHTS UPDATED' in log_of(
        tmp_path / 'a'
    )
    assert train(tmp_path / 'b', config='bad.py') == 0
    assert 'Iter 2: loss is NaN or Inf, step skipped' in log_of(tmp_path / 'b')


@pytest.mark.parametrize(
    ('words', 'message'),
    [
        (['--as-is', '--preset', 'safe'], 'does not go with --preset'),
        (['--as-is', '--memory', 'balanced'], 'does not go with --memory'),
        (
            ['--preset', 'observe_only', '--memory', 'balanced'],
            'choose one of them',
        ),
        (['--preset', 'saef'], "invalid choice: 'saef'"),
    ],
)
def test_contradictions_are_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(['train', 'config.py', *words]) == 2
    assert message in capsys.readouterr().err


def test_the_language_of_a_hook_is_spoken(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / 'chinese.py').write_text(
        "_base_ = './config.py'\ncustom_hooks = "
        "[dict(type='mmstable.GradNanLoggerHook', lang='zh_cn')]\n"
    )
    assert train(tmp_path, config='chinese.py') == 0
    assert said(capsys)[0].startswith('已按预设 default 保护')


def test_python_configs_are_protected(project: Path, tmp_path: Path) -> None:
    (project / 'python_style.py').write_text(PYTHON_CONFIG)
    assert train(tmp_path, config='python_style.py') == 0
    text = next(tmp_path.glob('*.py')).read_text()
    assert 'mmstable.SafeOptimWrapper' in text
    assert 'mmstable.SafeIterBasedTrainLoop' in text


def test_a_flexible_runner_is_protected_but_for_its_checkpoints(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / 'flexible.py').write_text(
        "_base_ = './config.py'\nrunner_type = 'FlexibleRunner'\n"
    )
    assert train(tmp_path / 'run', config='flexible.py') == 0
    assert 'fits: default_hooks.checkpoint' in capsys.readouterr().err


@pytest.mark.parametrize(
    'kind', ['plain', pytest.param('python', marks=pytest.mark.soak)]
)
def test_the_overlay_works_in_any_train_script(
    kind: str, project: Path, tmp_path: Path
) -> None:
    (project / 'other_script.py').write_text(OTHER_SCRIPT)
    (project / 'python_style.py').write_text(PYTHON_CONFIG)
    config = {'plain': 'config.py', 'python': 'python_style.py'}[kind]
    output = f'{kind}_protected.py'
    assert protect(config, '-o', output, '--force') == 0
    command = [sys.executable, 'other_script.py', output, str(tmp_path)]
    code, out, err = run(command, project)
    assert code == 0, err
    *_, classes, hooks = out.strip().splitlines()
    assert classes == 'SafeIterBasedTrainLoop SafeOptimWrapper'
    assert {'SafeCheckpointHook', 'DivergenceGuardHook'} <= set(hooks.split())


def test_a_protected_config_needs_nothing(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert protect('config.py', '-o', 'once.py') == 0
    capsys.readouterr()
    assert protect('once.py', '-o', 'twice.py') == 0
    assert said(capsys) == [
        "'once.py' is protected already: nothing is written."
    ]
    assert not (project / 'twice.py').exists()
    assert protect('config.py', '-o', 'once.py') == 0
    assert said(capsys)[-1].startswith("'once.py' says that already")


def test_nothing_is_overwritten(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = project / 'mine.py'
    mine.write_text('a = 1\n')
    assert protect('config.py', '-o', 'mine.py') == 2
    assert said(capsys)[-1].endswith('--force overwrites it.')
    assert mine.read_text() == 'a = 1\n'
    assert protect('config.py', '-o', 'mine.py', '--force') == 0
    assert '_base_' in mine.read_text()
    before = (project / 'config.py').read_text()
    assert protect('config.py', '-o', './config.py', '--force') == 2
    assert 'would inherit from itself' in said(capsys)[-1]
    assert (project / 'config.py').read_text() == before


def test_without_a_file_it_is_printed_in_the_language(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert protect('config.py', '--lang', 'zh_cn', '--quiet') == 0
    out, err = capsys.readouterr()
    assert err == ''
    assert '# 按预设 default 保护 ./config.py' in out


def test_old_configs_are_upgraded_first(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / 'old.py').write_text("optimizer = dict(type='SGD', lr=1)\n")
    assert protect('old.py') == 2
    assert 'mmstable upgrade' in said(capsys)[-1]


def uncommented(text: str) -> list[str]:
    """The config with one block of settings after the other switched on."""
    head, *blocks = text.strip().split('\n\n')
    texts = []
    for block in blocks:
        # Settings follow the words about them.
        about, code = re.split(r'\n(?=# \w+ = )', block, maxsplit=1)
        lines = [line[2:] for line in code.splitlines()]
        texts.append('\n'.join([head, about, *lines, '']))
    return texts


def test_every_setting_of_the_starter_trains(
    project: Path, tmp_path: Path
) -> None:
    starter = Path(config_path('starter.py')).read_text()
    base = re.compile(r'^_base_ = \[.*?^\]$', re.DOTALL | re.MULTILINE)
    text, count = base.subn("_base_ = ['./config.py']", starter)
    assert count == 1
    options = ['--cfg-options', 'train_cfg.max_iters=2']
    for number, block in enumerate(uncommented(text)):
        (project / 'block.py').write_text(block)
        work = tmp_path / str(number)
        assert train(work, *options, config='block.py') == 0, block


def test_a_copy_of_the_starter_is_the_demo(tmp_path: Path) -> None:
    copy = tmp_path / 'mine.py'
    copy.write_text(Path(config_path('starter.py')).read_text())
    assert Config.fromfile(copy).model.type == 'mmstable.TinyFCN'
