"""``mmstable upgrade``, as a user meets it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from mmengine.config import Config

from mmstable.cli.config import load_config
from mmstable.cli.main import main
from tests.some_files import some_files

ROOT = Path(__file__).resolve().parents[2]
MODEL = "model = dict(type='Net', head=dict(classes=3, drop=0.1))\n"
RUNTIME = """
log_config = dict(interval=7, hooks=[dict(type='TextLoggerHook')])
fp16 = dict(loss_scale=1024.0)
workflow = [('train', 1)]
"""
SCHEDULE = """
optimizer = dict(type='AdamW', lr=3e-4)
optimizer_config = dict(grad_clip=dict(max_norm=35, norm_type=2))
lr_config = dict(policy='poly', by_epoch=False)
runner = dict(type='IterBasedRunner', max_iters=200000)
"""
LEAF = """
_base_ = ['./base/model.py', './base/runtime.py', './base/schedule.py']
model = dict(head=dict(_delete_=True, classes=5))
optimizer = dict(lr=1e-3)
"""


def upgrade(arguments: list[str]) -> int:
    return main(['upgrade', *arguments])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / 'base').mkdir()
    (tmp_path / 'base/model.py').write_text(MODEL)
    (tmp_path / 'base/runtime.py').write_text(RUNTIME)
    (tmp_path / 'base/schedule.py').write_text(SCHEDULE)
    (tmp_path / 'old.py').write_text(LEAF)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_bases_are_merged_once_and_new_ones_kept(folder: Path) -> None:
    assert upgrade(['old.py', '-o', 'new.py']) == 0
    text = (folder / 'new.py').read_text()
    assert text.startswith(
        '# Translated from old.py (mmcv 1.x) by `mmstable upgrade`.\n'
        "_base_ = ['./base/model.py']\n"
        '\n'
        'model = dict(head=dict(_delete_=True, classes=5))\n'
    )
    assert '# From fp16, optimizer, optimizer_config.\noptim_wr' in text
    new = load_config('new.py')
    assert new.model == dict(type='Net', head=dict(classes=5))
    assert new.optim_wrapper.optimizer == dict(type='AdamW', lr=1e-3)
    assert new.optim_wrapper.loss_scale == 1024.0
    assert new.train_cfg.max_iters == 200000


def test_bases_of_old_bases_are_kept_too(folder: Path) -> None:
    (folder / 'base/leaf.py').write_text(
        "_base_ = '../old.py'\nmodel = dict(head=dict(classes=7))\n"
    )
    assert upgrade(['base/leaf.py', '-o', 'base/new.py']) == 0
    text = (folder / 'base/new.py').read_text()
    assert "_base_ = ['./model.py']\n" in text
    assert 'model = dict(head=dict(_delete_=True, classes=7))\n' in text
    new = load_config('base/new.py')
    assert new.model == dict(type='Net', head=dict(classes=7))


def test_the_new_config_may_be_in_another_folder(folder: Path) -> None:
    (folder / 'sub').mkdir()
    assert upgrade(['old.py', '-o', 'sub/new.py']) == 0
    new = load_config('sub/new.py')
    assert new.model == dict(type='Net', head=dict(classes=5))


def test_twice_is_the_same(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert upgrade(['old.py', '-o', 'new.py']) == 0
    first = (folder / 'new.py').read_bytes()
    assert upgrade(['old.py', '-o', 'new.py']) == 0
    assert (folder / 'new.py').read_bytes() == first
    capsys.readouterr()
    assert upgrade(['new.py', '-o', 'again.py']) == 0
    assert (folder / 'again.py').read_bytes() == first
    assert 'no keys of mmcv 1.x, nothing to translate' in (
        capsys.readouterr().err
    )
    assert upgrade(['new.py']) == 0
    assert capsys.readouterr().out.encode() == first


@pytest.mark.parametrize(
    'config',
    some_files(ROOT, 'configs/**/*.py'),
    ids=lambda path: path.name,
)
def test_new_configs_stay_as_they_are(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert upgrade([str(config)]) == 0
    assert capsys.readouterr().out == config.read_text()


def test_the_written_file_is_formatted(folder: Path) -> None:
    pytest.importorskip('ruff')
    upgrade(['old.py', '-o', 'new.py'])
    done = subprocess.run(
        [sys.executable, '-m', 'ruff', 'format', '--diff']
        + ['--config', str(ROOT / 'pyproject.toml'), 'new.py'],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_settings_without_counterpart_are_told(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (folder / 'old.py').open('a') as file:
        file.write(
            "evaluation = dict(interval=10, metric='mIoU')\n"
            'optimzer_config = dict()\n'
            "custom_hooks = [dict(type='MyHook')]\n"
        )
    assert upgrade(['old.py', '-o', 'new.py']) == 5
    told = capsys.readouterr().err
    assert 'runner, evaluation -> train_cfg\n' in told
    assert 'mmstable upgrade: no mmengine equivalent, ignored\n' in told
    assert '  evaluation.metric: mmcv datasets evaluated ' in told
    assert '  custom_hooks[0]: MyHook is unknown here ' in told
    assert 'Did you mean optimizer_config?\n' in told
    assert told.endswith('have no mmengine equivalent (exit 5)\n')
    text = (folder / 'new.py').read_text()
    assert '# evaluation.metric: mmcv datasets evaluated' in text


def test_what_would_train_differently_is_told(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (folder / 'old.py').open('a') as file:
        file.write("lr_config = dict(_delete_=True, policy='YOLOX')\n")
    assert upgrade(['old.py', '-o', 'new.py']) == 5
    told = capsys.readouterr().err
    assert 'would train differently, to be resolved by you\n' in told
    assert "  lr_config.policy: unknown policy 'YOLOX'" in told


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        ([], 'the following arguments are required: config'),
        (['odl.py'], "no config file 'odl.py'. Did you mean old.py?"),
        (['old.py', '-o', 'new.json'], "a .py file, got 'new.json'"),
        (['old.py', '-o', 'no/new.py'], "there is no folder 'no' to write"),
        (['old.py', '--outptu', 'x.py'], 'unrecognized arguments'),
        (['orphan.py'], 'which does not exist. Did you mean '),
    ],
)
def test_a_mistake_is_one_line(
    folder: Path,
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (folder / 'orphan.py').write_text("_base_ = './odl.py'\n")
    assert upgrade(arguments) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith('mmstable upgrade: error: ')
    assert message in lines[0]


def test_a_new_config_with_bases_is_not_torn_from_them(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / 'sub').mkdir()
    upgrade(['old.py', '-o', 'new.py'])
    assert upgrade(['new.py', '-o', 'sub/new.py']) == 2
    assert 'is found from its own folder only' in capsys.readouterr().err


def test_old_code_is_not_needed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ('old.py', 'base/model.py'):
        with (folder / name).open('a') as file:
            file.write("custom_imports = dict(imports=['no_such_module'])\n")
    assert upgrade(['old.py', '-o', 'new.py']) == 0
    assert '`custom_imports` is not imported' in capsys.readouterr().err
    assert 'custom_imports' not in (folder / 'new.py').read_text()
    assert "_base_ = ['./base/model.py']" in (folder / 'new.py').read_text()


def test_json_and_yaml_become_python(folder: Path) -> None:
    (folder / 'a.json').write_text(
        '{"optimizer": {"type": "SGD", "lr": 0.1}, "total_epochs": 3}'
    )
    (folder / 'a.yaml').write_text(
        'optimizer:\n  type: SGD\n  lr: 0.1\ntotal_epochs: 3\n'
    )
    for name in ('a.json', 'a.yaml'):
        assert upgrade([name, '-o', 'new.py']) == 0
        new = Config.fromfile('new.py')
        assert new.optim_wrapper.optimizer == dict(type='SGD', lr=0.1)
        assert new.train_cfg.max_epochs == 3


@pytest.mark.soak
def test_the_tool_does_the_same(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert upgrade(['old.py']) == 0
    text = capsys.readouterr().out
    done = subprocess.run(
        [sys.executable, str(ROOT / 'tools/upgrade_config.py'), 'old.py'],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    assert done.stdout == text
