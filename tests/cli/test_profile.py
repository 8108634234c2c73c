"""``mmstable profile``, as a user would call it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from mmengine.hooks import Hook
from mmengine.registry import HOOKS

from mmstable.cli.main import main
from tests.cli.runs import run

pytestmark = pytest.mark.usefixtures('in_project')
# The loop of mmengine sleeps for longer than all else takes.
SAFE_LOOP = 'train_cfg.type=mmstable.SafeIterBasedTrainLoop'
SHORT = ['--iters', '4', '--warmup', '2']


def everything_in(folder: Path) -> set[Path]:
    return {
        path.relative_to(folder)
        for path in folder.rglob('*')
        if '__pycache__' not in path.parts
    }


def test_a_table_a_trace_and_nothing_else(project, tmp_path, capsys):
    before = everything_in(project)
    figures = tmp_path / 'figures.json'
    words = ['--work-dir', str(tmp_path / 'out'), '--json', str(figures)]
    options = ['--cfg-options', SAFE_LOOP]
    assert main(['profile', 'config.py', *SHORT, *words, *options]) == 0
    shown = capsys.readouterr()
    assert 'mean of 4' in shown.out
    for row in ('data', 'forward', 'backward', 'step', 'forward of head'):
        assert row in shown.out
    assert 'num_workers=0' in shown.out
    assert '2 iterations to warm up, 4 to measure and 3 to trace' in shown.err
    assert everything_in(project) == before
    assert everything_in(tmp_path) == {
        Path(one) for one in ('out', 'out/trace.json', 'figures.json')
    }
    known = json.loads(figures.read_text())
    assert (known['iterations'], known['workers']) == (4, 0)
    assert sum(known['phases'].values()) == pytest.approx(known['seconds'])
    assert 'head' in known['modules']
    names = {
        event.get('name')
        for event in json.loads((tmp_path / 'out/trace.json').read_text())[
            'traceEvents'
        ]
    }
    assert {'module: head', 'backward: optim_wrapper'} <= names
    assert any(name and name.startswith('aten::') for name in names)
    assert any(name and 'RuntimeInfoHook' in name for name in names)


@pytest.mark.soak
def test_the_default_folder_is_below_the_one_of_the_run(
    project, tmp_path, capsys
):
    options = ['--cfg-options', f'work_dir={tmp_path / "runs"}']
    assert main(['profile', 'config.py', *SHORT, *options]) == 0
    assert everything_in(tmp_path) == {
        Path(one)
        for one in ('runs', 'runs/profile', 'runs/profile/trace.json')
    }


def test_an_epoch_based_run_that_is_shorter(project, tmp_path, capsys):
    options = [
        '--cfg-options',
        'train_cfg.type=EpochBasedTrainLoop',
        'train_cfg.max_epochs=1',
        'model.nap=0.03',
        'default_hooks.checkpoint.by_epoch=True',
        f'default_hooks.checkpoint.out_dir={tmp_path / "elsewhere"}',
        'default_hooks.checkpoint.interval=1',
    ]
    words = ['--work-dir', str(tmp_path / 'out')]
    config = Path('by_epoch.py')
    text = Path('config.py').read_text().replace('max_iters=4', 'max_epochs=1')
    config.write_text(text)
    try:
        assert main(['profile', str(config), *SHORT, *words, *options]) == 0
    finally:
        config.unlink()
    assert not (tmp_path / 'elsewhere').exists()
    assert not list(tmp_path.rglob('*.pth'))
    assert 'forward' in capsys.readouterr().out


def with_hook(project: Path, folder: Path, kind: str) -> str:
    path = folder / 'config.py'
    base = f"_base_ = '{project / 'config.py'}'"
    path.write_text(f"{base}\ncustom_hooks = [dict(type='{kind}')]\n")
    return str(path)


def test_a_hook_that_is_not_there(project, tmp_path, capsys):
    config = with_hook(project, tmp_path, 'SlowTolHook')
    words = ['--work-dir', str(tmp_path)]
    assert main(['profile', config, *words]) == 2
    assert 'Did you mean SlowToolHook' in capsys.readouterr().err


@HOOKS.register_module(force=True)
class SlowToolHook(Hook):
    def after_train_iter(self, runner, *args, **kwargs):
        import time

        # Far above what the data takes on a busy machine.
        time.sleep(0.4)


def test_the_verdict_is_the_last_line(project, tmp_path, capfd):
    words = ['--work-dir', str(tmp_path), '--lang', 'zh_cn']
    config = with_hook(project, tmp_path, 'SlowToolHook')
    options = ['--cfg-options', SAFE_LOOP]
    assert main(['profile', config, *SHORT, *words, *options]) == 0
    shown = capfd.readouterr()
    # Lines that kineto prints when a trace begins.
    assert 'USDT' not in shown.err
    assert shown.out.splitlines()[-1].startswith('hook SlowToolHook 占用')


@pytest.mark.parametrize(
    ('words', 'message'),
    [
        (['nothing.py'], "no config file 'nothing.py'"),
        (['config.py', '--iters', '0'], 'argument --iters: .* got .?0'),
        (['config.py', '--itres', '3'], 'Did you mean --iters'),
        (
            ['config.py', '--cfg-options', 'train_cfg=None'],
            'the config has no `train_cfg`',
        ),
        (
            ['config.py', '--work-dir', 'config.py/a'],
            "work dir 'config.py/a' cannot be used: Not a directory",
        ),
        (
            ['config.py', '--json', 'nowhere/a.json'],
            "no folder 'nowhere' to write to",
        ),
        (
            ['config.py', '--cfg-options', 'model.type=ToyToolModle'],
            'ToyToolModle',
        ),
    ],
)
def test_what_is_refused(words, message, tmp_path, capsys):
    extra = [] if '--work-dir' in words else ['--work-dir', str(tmp_path)]
    assert main(['profile', *words, *extra]) == 2
    import re

    assert re.search(message, capsys.readouterr().err)


@pytest.mark.soak
def test_a_fault_of_the_model_is_shown_as_it_is(tmp_path):
    command = [sys.executable, '-m', 'mmstable', 'profile', 'config.py']
    options = ['--cfg-options', 'model.fail=True']
    words = [*SHORT, '--work-dir', str(tmp_path), *options]
    code, out, err = run([*command, *words], Path.cwd())
    assert code == 1
    assert 'RuntimeError: a fault in the model' in err
    assert not list(tmp_path.iterdir())
