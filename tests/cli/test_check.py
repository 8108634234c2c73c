"""``mmstable check``, and what ``mmstable train`` says at its start."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from mmstable.check.rule import RULES
from mmstable.cli.check import rule_table
from mmstable.cli.main import main
from mmstable.messages import use_language
from tests.cli.runs import ROOT

pytestmark = pytest.mark.usefixtures('in_project')
QUICK_START = ROOT / 'configs/quickstart/digit-scenes_fcn_fp16.py'
SICK = """\
_base_ = './config.py'
optim_wrapper = dict(
    type='AmpOptimWrapper',
    loss_scale=512,
    clip_grad=dict(max_norm=1.0, error_if_nonfinite=True))
default_hooks = dict(
    checkpoint=dict(max_keep_ckpts=1))
custom_hooks = [dict(type='EMAHook'), dict(type='EMAHook')]
param_scheduler = [dict(type='PolyLR', by_epoch=False, end=40)]
"""
ERRORS = {'int_scale', 'error_if_nonfinite'}
WARNINGS = {'keeps_one_checkpoint', 'hook_twice', 'schedule_ends_late'}
LAZY = """\
from mmengine.config import read_base
from mmengine.optim import AmpOptimWrapper
with read_base():
    from .lazy_base import *
optim_wrapper = dict(
    type=AmpOptimWrapper,
    loss_scale=512,
    optimizer=dict(type='SGD', lr=0.1))
"""


@pytest.fixture
def project(project: Path, tmp_path: Path) -> Path:
    """A copy, so that others do not see what is written here."""
    return Path(shutil.copytree(project, tmp_path / 'project'))


@pytest.fixture
def sick(project: Path) -> Path:
    path = project / 'sick.py'
    path.write_text(SICK)
    return path


def check(
    capsys: pytest.CaptureFixture[str], *words: str
) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(['check', *map(str, words)])
    return code, *capsys.readouterr()


def found_in(
    capsys: pytest.CaptureFixture[str], path: object, *words: str
) -> dict[str, dict[str, Any]]:
    _, out, _ = check(capsys, str(path), '--format', 'json', *words)
    return {one['id']: one for one in json.loads(out)['findings']}


def test_text_names_the_line_and_the_fix(
    sick: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = check(capsys, 'sick.py')
    assert code == 9
    assert (
        'error  int_scale  optim_wrapper.loss_scale (sick.py:4)\n'
        '    `loss_scale=512` is an int.\n'
    ) in out
    fix = "optim_wrapper = dict(type='mmstable.SafeAmpOptimWrapper')"
    assert f'    fix: {fix}\n' in out
    last = out.splitlines()[-1]
    assert re.fullmatch(
        r'sick\.py: 2 errors, 3 warnings, 5 hints \(\d+ rules checked\)', last
    )


def test_json_has_everything(
    sick: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = found_in(capsys, 'sick.py')
    assert found.keys() >= ERRORS | WARNINGS
    assert found['hook_twice'] == {
        'id': 'hook_twice',
        'severity': 'warning',
        'path': 'custom_hooks.1',
        'what': found['hook_twice']['what'],
        'why': found['hook_twice']['why'],
        'fix': "custom_hooks = [dict(type='EMAHook')]",
        'source': 'sick.py:8',
    }


def test_github_annotates_lines(
    sick: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, _ = check(capsys, 'sick.py', '--format', 'github')
    lines = out.splitlines()
    start = '::error file=sick.py,line=4,title=int_scale::optim_wrapper.'
    assert sum(line.startswith(start) for line in lines) == 1
    levels = {line.split()[0] for line in lines}
    assert levels == {'::error', '::warning', '::notice'}


@pytest.mark.parametrize(
    ('text', 'code'),
    [
        ('', 0),
        ('resume = True\nload_from = "config.py"\n', 8),
        ('activation_checkpointing = ["head"]\n', 9),
    ],
)
def test_exit_code_is_the_worst(
    project: Path, capsys: pytest.CaptureFixture[str], text: str, code: int
) -> None:
    (project / 'coded.py').write_text(f"_base_ = './config.py'\n{text}")
    assert check(capsys, 'coded.py')[0] == code


def test_the_fix_mends_what_it_names(
    sick: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = check(capsys, 'sick.py', '--fix', 'fixed.py')
    assert code == 9
    assert 'mmstable check: written to fixed.py' in err
    text = Path('fixed.py').read_text()
    assert "_base_ = './sick.py'" in text
    # Only what differs, with a comment for each block.
    assert 'lr=' not in text
    assert text.count('\n# ') >= text.count('\n\n')
    assert check(capsys, 'fixed.py')[0] == 0
    assert not found_in(capsys, 'fixed.py')


def test_the_fix_trains(
    sick: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    check(capsys, 'sick.py', '--fix', 'trained.py')
    words = ['trained.py', '--work-dir', str(tmp_path), '--check']
    assert main(['train', *words]) == 0
    assert list(tmp_path.glob('*.pth'))


def test_the_fix_in_another_folder(
    sick: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / 'fixed.py'
    check(capsys, 'sick.py', '--fix', str(out))
    assert not found_in(capsys, out).keys() & (ERRORS | WARNINGS)


def test_nothing_to_fix(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / 'fine.py').write_text(
        "_base_ = './config.py'\nresume = True\nload_from = 'config.py'\n"
        "default_hooks = dict(checkpoint=dict(type='SafeCheckpointHook'))\n"
        "train_cfg = dict(type='SafeIterBasedTrainLoop')\n"
    )
    _, _, err = check(capsys, 'fine.py', '--fix', 'no.py')
    assert (
        'nothing that can be fixed automatically; no.py is not written' in err
    )
    assert 'to be decided by you: resume_and_load_from' in err
    assert not Path('no.py').exists()


@pytest.mark.parametrize(
    ('text', 'key', 'fix'),
    [
        (
            'optim_wraper = dict(clip_grad=dict(max_norm=1))',
            'optim_wraper',
            'optim_wrapper = dict(clip_grad=dict(max_norm=1))',
        ),
        (
            'defalt_hooks = dict(logger=dict(interval=7))',
            'defalt_hooks',
            'default_hooks = dict(logger=dict(interval=7))',
        ),
        (
            "optim_wraper = dict(_delete_=True, optimizer=dict(type='Lion'))",
            'optim_wraper',
            "optim_wrapper = dict(optimizer=dict(type='Lion'))",
        ),
        (
            'optim_wraper = dict(paramwise_cfg={"a.b": 1}, optimizer={})',
            'optim_wraper',
            "optim_wrapper = dict(paramwise_cfg={'a.b': 1})",
        ),
    ],
)
def test_a_misspelt_key_that_a_base_has_right(
    project: Path,
    capsys: pytest.CaptureFixture[str],
    text: str,
    key: str,
    fix: str,
) -> None:
    (project / 'slip.py').write_text(f"_base_ = './config.py'\n{text}\n")
    found = found_in(capsys, 'slip.py')['unknown_key']
    assert found['source'] == 'slip.py:2'
    assert (found['path'], found['fix']) == (key, fix)
    check(capsys, 'slip.py', '--fix', 'mended.py')
    assert 'unknown_key' not in found_in(capsys, 'mended.py')


@pytest.mark.parametrize(
    'text',
    [
        'optim_wraper = dict(a=1)\nmodel = dict(nap=optim_wraper["a"])',
        'optim_wraper = dict(a=1)\noptim_wrapper = dict(clip_grad=None)',
        # It says what the right one says.
        "optim_wraper = dict(optimizer=dict(type='SGD'))",
        'optim_wraper = dict()',
        'max_epochs = 3\nbase_lr = 0.1\ntrain_dataset = dict()',
    ],
)
def test_variables_are_no_misspelt_keys(
    project: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    (project / 'fine.py').write_text(f"_base_ = './config.py'\n{text}\n")
    assert 'unknown_key' not in found_in(capsys, 'fine.py')


@pytest.mark.parametrize(
    ('words', 'message'),
    [
        (['config.py', '--fix', 'a.json'], "is a .py file, got 'a.json'"),
        (['config.py', '--fix', 'no/a.py'], "there is no folder 'no'"),
        (
            ['config.py', '--fix', 'a.py', '--cfg-options', 'resume=True'],
            '--fix: leave --cfg-options out',
        ),
        (['old.py', '--fix', 'a.py'], 'old.py has keys of mmcv 1.x'),
        (['lazy.py', '--fix', 'a.py'], 'in the style of Python imports'),
        (['nothing.py'], "no config file 'nothing.py'"),
        ([], 'a config is missing'),
        (['wrong.py'], 'no setting `int_scal`'),
    ],
)
def test_mistakes(
    project: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    message: str,
) -> None:
    write_odd_configs(project)
    code, _, err = check(capsys, *words)
    assert code == 2
    assert message in err
    assert not Path('a.py').exists()


def write_odd_configs(project: Path) -> None:
    text = (project / 'config.py').read_text()
    (project / 'old.py').write_text(
        f'{text}\noptimizer_config = dict(grad_clip=dict(max_norm=1))\n'
    )
    (project / 'lazy_base.py').write_text(
        text.partition('custom_imports')[2].partition('\n')[2]
    )
    (project / 'lazy.py').write_text(LAZY)
    (project / 'wrong.py').write_text(
        "_base_ = './config.py'\n"
        "stability_checks = dict(ignore=['int_scal'])\n"
    )


def test_old_keys_are_found_and_the_rest_is_checked(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_odd_configs(project)
    found = found_in(capsys, 'old.py')
    assert found['legacy_key']['path'] == 'optimizer_config'
    assert found['legacy_key']['source'].startswith('old.py:')
    assert 'stock_loop' in found


def test_configs_by_import(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_odd_configs(project)
    found = found_in(capsys, 'lazy.py')
    assert found['int_scale']['source'] == 'lazy.py:7'
    assert 'rule_failed' not in found


def test_packages_that_are_not_there(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / 'absent.py').write_text(
        "_base_ = './config.py'\n"
        "default_scope = 'mmdet'\n"
        "custom_imports = dict(_delete_=True, imports=['no_such_module'])\n"
        "model = dict(_delete_=True, type='FasterRCNN', "
        "backbone=dict(type='mmpretrain.Swin'))\n"
    )
    found = found_in(capsys, 'absent.py')
    assert found['missing_package']['what'] == (
        'not installed here: mmdet, mmpretrain.'
    )
    assert 'no_such_module' in found['missing_import']['what']
    assert not {'unknown_type', 'rule_failed'} & set(found)


def test_ignored_ids_are_named(
    sick: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sick.write_text(SICK + "stability_checks = dict(ignore=['int_scale'])\n")
    _, out, _ = check(capsys, 'sick.py')
    assert 'ignored by `stability_checks`: int_scale\n' in out
    assert 'error  int_scale' not in out


def test_options_change_what_is_checked(
    sick: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ['--cfg-options', 'optim_wrapper.loss_scale=256.0']
    found = found_in(capsys, 'sick.py', *words)
    assert 'int_scale' not in found
    # No file is to blame.
    assert found['frozen_scale']['source'] == ''


def test_ranks(
    project: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (project / 'toy_8xb2.py').write_text("_base_ = './config.py'\n")
    assert 'lr_for_other_batch' in found_in(capsys, 'toy_8xb2.py')
    words = ['toy_8xb2.py', '--ranks', '8']
    assert 'lr_for_other_batch' not in found_in(capsys, *words)
    # The one below counts, unless the rate is another one.
    (project / 'mine.py').write_text("_base_ = './toy_8xb2.py'\n")
    assert 'lr_for_other_batch' in found_in(capsys, 'mine.py')
    (project / 'mine.py').write_text(
        "_base_ = './toy_8xb2.py'\n"
        'optim_wrapper = dict(optimizer=dict(lr=0.01))\n'
    )
    assert 'lr_for_other_batch' not in found_in(capsys, 'mine.py')
    monkeypatch.setenv('WORLD_SIZE', '8')
    assert 'lr_for_other_batch' not in found_in(capsys, 'toy_8xb2.py')


def test_list_has_every_rule(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = check(capsys, '--list')
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[:-1]] == list(RULES)


@pytest.mark.parametrize(('folder', 'lang'), [('en', 'en')] + [('zh_cn',) * 2])
def test_the_docs_have_every_rule(folder: str, lang: str) -> None:
    page = (ROOT / 'docs' / folder / 'check.md').read_text(encoding='utf-8')
    use_language(lang)
    try:
        table = rule_table()
    finally:
        use_language(None)
    # If not: python docs/write_rules.py
    assert table in page


def test_deep_finds_what_is_not_trained(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / 'deep_project.py').write_text(
        'import torch\n'
        'from mmengine.registry import MODELS\n'
        'from toy_tool_project import ToyToolModel\n'
        '@MODELS.register_module()\n'
        'class HalfUsed(ToyToolModel):\n'
        '    def __init__(self):\n'
        '        super().__init__()\n'
        '        self.spare = torch.nn.Linear(2, 2)\n'
        'from mmengine.optim import DefaultOptimWrapperConstructor\n'
        'from mmengine.registry import OPTIM_WRAPPER_CONSTRUCTORS as C\n'
        '@C.register_module()\n'
        'class WithoutHead(DefaultOptimWrapperConstructor):\n'
        '    def add_params(self, params, module, *args, **kwargs):\n'
        '        params.append(dict(params=[*module.spare.parameters()]))\n'
    )
    (project / 'deep.py').write_text(
        "_base_ = './config.py'\n"
        "custom_imports = dict(imports=['toy_tool_project', 'deep_project'])\n"
        "model = dict(type='HalfUsed')\n"
        "optim_wrapper = dict(constructor='WithoutHead',"
        ' paramwise_cfg=dict(bias_lr_mult=1.0))\n'
    )
    assert not {'no_gradient', 'unseen_parameters'} & set(
        found_in(capsys, 'deep.py')
    )
    found = found_in(capsys, 'deep.py', '--deep')
    named = 'spare.weight, spare.bias (2 of 4 parameters)'
    assert named in found['no_gradient']['what']
    named = 'head.weight, head.bias (2 of 4 parameters)'
    assert named in found['unseen_parameters']['what']
    assert 'deep_failed' not in found
    assert 'no_gradient' not in found_in(capsys, 'config.py', '--deep')


def test_deep_says_what_failed(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ['config.py', '--deep', '--cfg-options', 'model.fail=True']
    found = found_in(capsys, *words)
    assert found['deep_failed']['what'] == (
        'train_step failed: RuntimeError: a fault in the model'
    )


# What `mmstable train` says.


def said(err: str) -> list[str]:
    mine = [line for line in err.splitlines() if 'mmstable train: ' in line]
    return [line.partition('mmstable train: ')[2] for line in mine]


def test_train_check_stops_at_errors(
    sick: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    work = ['--work-dir', str(tmp_path / 'run')]
    words = ['sick.py', '--check', *work, '--as-is']
    assert main(['train', *words]) == 9
    err = capsys.readouterr().err
    assert 'error  int_scale  optim_wrapper.loss_scale (sick.py:4)' in err
    assert said(err)[-1] == (
        'error: --check: 2 errors in the config, nothing is trained'
    )
    assert not (tmp_path / 'run').exists()


def test_a_start_tells_the_worst_and_goes_on(
    project: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (project / 'doubtful.py').write_text(
        "_base_ = './config.py'\n"
        'default_hooks = dict(checkpoint=dict(max_keep_ckpts=1))\n'
    )
    words = ['doubtful.py', '--work-dir', str(tmp_path), '--as-is']
    assert main(['train', *words]) == 0
    assert said(capsys.readouterr().err) == [
        'warning: default_hooks.checkpoint.max_keep_ckpts: '
        "`max_keep_ckpts=1` with mmengine's CheckpointHook. "
        '(keeps_one_checkpoint)',
        'for details and fixes, run: `mmstable check doubtful.py`',
    ]


WIDE = """\
_base_ = './config.py'
val_dataloader = dict(
    batch_size=4,
    dataset=dict(type='ToyToolDataset'),
    sampler=dict(type='DefaultSampler', shuffle=False))
val_cfg = dict(type='ValLoop')
val_evaluator = dict(type='DumpResults', out_file_path='x.pkl')
train_cfg = dict(val_interval=4)
param_scheduler = dict(type='PolyLR', by_epoch=False, end=4)
"""


@pytest.mark.parametrize(
    ('options', 'id', 'text', 'start'),
    [
        (
            ['--cfg-options', 'param_scheduler.end=9', 'model.nap=1e-9'],
            'schedule_ends_late',
            'for details and fixes, run: ',
            'mmstable check wide.py',
        ),
        (
            ['--memory', 'conservative'],
            'large_val_batch',
            'for details and fixes, run: ',
            'mmstable train wide.py',
        ),
    ],
)
def test_the_command_that_explains_really_does(
    project: Path,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    id: str,
    text: str,
    start: str,
) -> None:
    monkeypatch.setattr('sys.argv', ['mmstable'])
    monkeypatch.setattr('mmstable.cli.mistakes.build_runner', MagicMock())
    (project / 'wide.py').write_text(WIDE)
    words = ['wide.py', *options, '--work-dir', str(tmp_path / 'run')]
    assert main(['train', *words]) == 0
    lines = said(capsys.readouterr().err)
    assert lines[0].endswith(f'({id})')
    name, _, command = lines[1].rstrip('`').rpartition('`')
    assert name == text
    assert command.startswith(start)
    main(shlex.split(command)[1:])
    out, err = capsys.readouterr()
    assert f'warning  {id}  ' in out + err


def test_a_missing_checkpoint_is_told_once(
    project: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (project / 'missing.py').write_text(
        "_base_ = './config.py'\nload_from = 'nofile.pth'\n"
    )
    assert 'missing_weights' in found_in(capsys, 'missing.py')
    words = ['missing.py', '--work-dir', str(tmp_path)]
    assert main(['train', *words]) == 2
    (line,) = said(capsys.readouterr().err)
    assert line == "error: the config: no checkpoint 'nofile.pth'."


def test_a_healthy_start_is_silent(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ['train', 'config.py', '--work-dir', str(tmp_path)]
    assert main([*words, '--as-is']) == 0
    assert said(capsys.readouterr().err) == []
    assert main([*words, '--quiet']) == 0
    assert said(capsys.readouterr().err) == []


def test_what_is_judged_is_what_is_trained(
    sick: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ['sick.py', '--check', '--work-dir', str(tmp_path / 'run')]
    assert main(['train', *words]) == 9
    err = capsys.readouterr().err
    # A safe wrapper takes an int for a loss scale.
    assert 'int_scale' not in err
    # Lines are those of the user's file.
    assert 'sick.py:' in err


def test_the_quick_start_is_healthy(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, _ = check(capsys, str(QUICK_START))
    assert code == 0
    assert 'no problems found (' in out
