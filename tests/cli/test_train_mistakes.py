"""A mistake in a config or a command line is one line."""

from __future__ import annotations

import re
import resource
import signal
from pathlib import Path

import pytest

from mmstable.cli.main import main
from mmstable.cli.mistakes import explain_mistake

pytestmark = pytest.mark.usefixtures('in_project')
VALIDATION = """
val_dataloader = dict(
    batch_size=2,
    dataset=dict(type='ToyToolDataset'),
    sampler=dict(type='DefaultSampler', shuffle=False),
)
val_cfg = dict(type='ValLoop')
val_evaluator = dict(type='DumpResults', out_file_path='x.pkl')
"""


def error_of(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """The one line that ``main`` prints for a mistake."""
    assert main(['train', *args, '--quiet']) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    ours = [line for line in lines if line.startswith('mmstable train')]
    assert len(ours) == 1
    assert not any('Traceback' in line for line in lines)
    return ours[0]


def test_misspelt_config_is_suggested(
    capsys: pytest.CaptureFixture[str],
) -> None:
    # Other tests may have left more of them beside it.
    assert error_of(capsys, 'confg.py').startswith(
        "mmstable train: error: no config file 'confg.py'. "
        'Did you mean config.py'
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


def test_a_config_for_tests_has_nothing_to_train(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ('train_cfg', 'train_dataloader', 'optim_wrapper')
    lines = [f'{name} = None' for name in ('param_scheduler', *names)]
    text = '\n'.join(["_base_ = './config.py'", *lines])
    (project / 'test_only.py').write_text(text)
    line = error_of(capsys, 'test_only.py')
    assert line.endswith(': there is nothing to train.')


def test_missing_base_is_suggested(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / 'orphan.py').write_text("_base_ = './confi.py'\n")
    line = error_of(capsys, 'orphan.py')
    assert "'orphan.py' needs '" in line
    assert re.search(r'Did you mean \S*/project\d/config\.py', line)


@pytest.mark.parametrize(
    ('texts', 'circle'),
    [
        ({'a.py': "_base_ = './a.py'\n"}, 'a.py -> a.py'),
        (
            {'a.py': "_base_ = ['b.py']\n", 'b.py': "_base_ = ['a.py']\n"},
            'a.py -> b.py -> a.py',
        ),
        ({'a.yaml': '_base_: a.yaml\n'}, 'a.yaml -> a.yaml'),
    ],
)
def test_a_config_that_inherits_from_itself(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    texts: dict[str, str],
    circle: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in texts.items():
        Path(name).write_text(text)
    name = circle.partition(' ')[0]
    line = error_of(capsys, name)
    assert line.endswith(f"'{name}' inherits from itself: {circle}.")


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
            ['optim_wrapper.optimizer.type=AdmW'],
            "there is no optimizer 'AdmW'; did you mean 'AdamW'?",
        ),
        (
            ['optim_wrapper.optimizer.lr=abc'],
            "`optim_wrapper.optimizer.lr` must be a number, got 'abc'.",
        ),
        (
            ['optim_wrapper.optimizer.lr=-1'],
            'a wrong value for SGD: Invalid learning rate: -1',
        ),
        (
            ['train_cfg.max_iters=sixty'],
            'a wrong value for SafeIterBasedTrainLoop: invalid literal for',
        ),
        (
            ['optim_wrapper.type=mmstable.SafeAmpOptimWrapper']
            + ['optim_wrapper.loss_scale=0'],
            '`init_scale` must be a finite number above 0, got 0',
        ),
        (
            ['optim_wrapper.type=mmstable.SafeAmpOptimWrapper']
            + ['optim_wrapper.los_scale=2'],
            "unexpected keyword argument 'los_scale'. Did you mean loss_scale",
        ),
        (
            ['optim_wrapper.typ=OptimWrapper'],
            "unexpected keyword argument 'typ'. Did you mean type",
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


@pytest.mark.parametrize(
    ('setting', 'message'),
    [
        (
            "optim_wrapper = dict(optimizer=dict(lr='0.01'))",
            "`optim_wrapper.optimizer.lr` is the string '0.01': write 0.01 "
            'without quotes.',
        ),
        (
            "train_cfg = dict(max_iters='60')",
            "`train_cfg.max_iters` is the string '60'",
        ),
        (
            "param_scheduler = [dict(type='LinearLR', end='1e3')]",
            "`param_scheduler.0.end` is the string '1e3'",
        ),
        (
            "test_cfg = dict(type='TestLoop')",
            'the config has test_cfg, but not test_dataloader, '
            'test_evaluator: mmengine needs all of them, or none',
        ),
        (
            "param_scheduler = [dict(type='LinearLR', begin=9, end=4)]",
            'Is the warm-up longer than the training (train_cfg)?',
        ),
        (
            'default_hooks = dict(checkpoints=dict(interval=20))',
            '`default_hooks.checkpoints` has no `type`, so it cannot be '
            'built. Did you mean checkpoint?',
        ),
        (
            'custom_hooks = [dict(interval=20)]',
            "`custom_hooks.0` is {'interval': 20}, but",
        ),
        (
            "custom_hooks = [dict(type='GradNanLoggerHook', lnag='en')]",
            "unexpected keyword argument 'lnag'. Did you mean lang?",
        ),
        (
            'train_dataloader = dict(batchsize=3)',
            "argument 'batchsize'. Did you mean batch_size?",
        ),
        (
            f'{VALIDATION}val_dataloader["num_worker"] = 3',
            "argument 'num_worker'. Did you mean num_workers?",
        ),
        (
            'train_dataloader = dict(persistent_workers=True)',
            '`train_dataloader.persistent_workers` needs `num_workers` above',
        ),
        (
            'train_dataloader = dict(timeout=-1)',
            'a wrong setting: timeout option should be non-negative',
        ),
        (
            'train_dataloader = dict(collate_fn=3)',
            'wrong setting: collate_fn should be a dict or callable object',
        ),
        (
            'randomness = dict(sed=1)',
            "argument 'sed'. Did you mean seed?",
        ),
        (
            'log_processor = dict(window=3)',
            "argument 'window'. Did you mean window_size?",
        ),
        (
            "log_level = 'INF'",
            'wrong setting: `log_level` must be one of CRITICAL, FATAL, '
            # Some packages add levels of their own.
            'ERROR, WARN, WARNING, INFO, DEBUG, NOTSET',
        ),
        (
            "runner_type = 'Runer'",
            "asks for the runner 'Runer', which is not registered in scope "
            "'mmengine'. Did you mean Runner?",
        ),
    ],
)
def test_wrong_config_file_is_one_line(
    project: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    setting: str,
    message: str,
) -> None:
    (project / 'mistaken.py').write_text(
        f"_base_ = './config.py'\n{setting}\n"
    )
    line = error_of(capsys, 'mistaken.py', '--work-dir', str(tmp_path))
    assert message in line


@pytest.mark.parametrize(
    ('name', 'message'),
    [
        ('model', 'model should be a nn.Module object or dict, but got 5'),
        ('train_cfg', 'train_loop should be a Loop object or dict, but got 5'),
        ('randomness', 'set_randomness() argument after ** must be a mapping'),
    ],
)
def test_a_number_for_a_dict_is_one_line(
    project: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    message: str,
) -> None:
    text = (project / 'config.py').read_text()
    (project / 'number.py').write_text(f'{text}\n{name} = 5\n')
    line = error_of(capsys, 'number.py', '--work-dir', str(tmp_path))
    assert f'the config has a wrong setting: {message}' in line.replace(
        'mmengine.runner.runner.Runner.', ''
    )


def test_what_only_a_test_needs_does_not_refuse_a_training(
    project: Path, tmp_path: Path
) -> None:
    (project / 'tested.py').write_text(
        f"_base_ = './config.py'\n{VALIDATION.replace('val_', 'test_')}"
        "test_cfg = dict(type='TestLoop')\n"
        "test_dataloader['persistent_workers'] = True\n"
    )
    assert main(['train', 'tested.py', '--work-dir', str(tmp_path)]) == 0


def test_a_text_that_cannot_be_read_is_no_wrong_setting() -> None:
    with pytest.raises(UnicodeDecodeError) as found:
        # Code of mmstable, whose other ValueErrors are about settings.
        exec(r"b'\xff'.decode()", {'__name__': 'mmstable.somewhere'})
    assert explain_mistake(found.value) is None


@pytest.mark.parametrize(
    ('text', 'message'),
    [
        (
            "_base_ = './config.py'\n"
            "model = dict(type='mmrotate.Net', _delete_=True)\n",
            "model needs the package 'mmrotate', which is not installed: pip "
            'install mmrotate',
        ),
        (
            "_base_ = './config.py'\ndefault_scope = 'mmaction'\n"
            "model = dict(type='Recognizer3D', _delete_=True)\n",
            "model needs the package 'mmaction', which is not installed: pip "
            'install mmaction2',
        ),
        (
            "_base_ = './config.py'\n"
            "custom_imports = dict(imports=['mmrotate.models'])\n",
            "needs.py needs the package 'mmrotate', which is not installed: "
            'pip install mmrotate',
        ),
        (
            'from mmrotate.models import Net\nmodel = dict(type=Net)\n',
            "needs.py needs the package 'mmrotate', which",
        ),
        (
            "_base_ = 'mmrotate::_base_/default_runtime.py'\n",
            "needs.py needs the package 'mmrotate', which",
        ),
        (
            "custom_imports = dict(imports=['my_lost_module'])\n",
            "needs the module 'my_lost_module', which cannot be found.",
        ),
    ],
)
def test_a_missing_package_is_one_line(
    project: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    text: str,
    message: str,
) -> None:
    (project / 'needs.py').write_text(text)
    line = error_of(capsys, 'needs.py', '--work-dir', str(tmp_path / 'run'))
    assert message in line
    # Before a log begins.
    assert not (tmp_path / 'run').exists()


def test_yaml_is_known_for_its_exponents(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / 'wrong.yaml').write_text(
        '_base_: ./config.py\noptim_wrapper: {optimizer: {lr: 1e-4}}\n'
    )
    line = error_of(capsys, 'wrong.yaml', '--work-dir', str(tmp_path))
    assert 'YAML reads 1e-4 as a string; write 1.0e-4' in line


def test_text_that_is_no_number_is_left_alone(
    project: Path, tmp_path: Path
) -> None:
    (project / 'fine.py').write_text(
        "_base_ = './config.py'\n"
        "env_cfg = dict(dist_cfg=dict(backend='gloo', port='29500'))\n"
        "optim_wrapper = dict(clip_grad=dict(max_norm=1, norm_type='inf'))\n"
    )
    assert main(['train', 'fine.py', '--work-dir', str(tmp_path)]) == 0


@pytest.mark.parametrize(
    ('below', 'reason'), [('', 'File exists'), ('/run', 'Not a directory')]
)
def test_a_file_is_no_work_dir(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], below: str, reason: str
) -> None:
    (tmp_path / 'file').touch()
    path = f'{tmp_path}/file{below}'
    line = error_of(capsys, 'config.py', '--work-dir', path)
    assert line.endswith(f"the work dir '{path}' cannot be used: {reason}.")


def test_a_full_disk_is_no_work_dir(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / 'run'
    # A file that may not grow fails as one on a full disk does.
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16 << 10, before[1]))
    try:
        line = error_of(capsys, 'config.py', '--work-dir', str(path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert line.endswith(f"'{path}' cannot be used: File too large.")
    assert list(path.iterdir()) == []


def test_misspelt_type_is_suggested(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for option, message in {
        'model.type=ToyToolModl': (
            "`model.type`: there is no model 'ToyToolModl'; did you mean "
            "'ToyToolModel'?"
        ),
        'optim_wrapper.type=mmstable.SafeOptimWraper': (
            "there is no optim_wrapper 'mmstable.SafeOptimWraper'; did you "
            "mean 'mmstable.SafeOptimWrapper'?"
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
        (
            ['config.py', '--cfg-options', 'max_iters=20'],
            "nothing reads 'max_iters' at the top of a config, so it would "
            'have no effect. Did you mean train_cfg.max_iters?',
        ),
        (
            ['config.py', '--cfg-options', 'lr=0.1'],
            'Did you mean optim_wrapper.optimizer.lr?',
        ),
        (
            ['config.py', '--cfg-options', 'max_epochs=2'],
            'Did you mean train_cfg.max_epochs?',
        ),
        (
            ['config.py', '--cfg-options', 'load_form=x'],
            'Did you mean load_from?',
        ),
        (['config.py', '--amp', 'fp8'], "invalid choice: 'fp8'"),
        (['config.py', '--auto-scale-lr'], '`auto_scale_lr = dict(base_'),
        ([], 'the following arguments are required: config'),
        (['config.py', '--launcher', 'k8s'], 'invalid choice'),
        (
            ['config.py', '--wrok-dir', 'x'],
            'unrecognized arguments: --wrok-dir x. Did you mean --work-dir?',
        ),
        (['config.py', '--resume', 'a', '--load-from', 'b'], 'not allowed'),
        (['config.py', '--cfg-options', 'lr'], "KEY=VALUE, got 'lr'"),
        (
            ['config.py', '--cfg-options', 'model.a=[1,2'],
            'Imbalanced brackets',
        ),
        (
            ['config.py', '--cfg-options', 'randomness.seed=1']
            + ["custom_hooks=[dict(type='EMAHook',begin_iter=1)]"],
            "(type='EMAHook',begin_iter=1)]' cannot be read",
        ),
        (
            ['config.py', '--cfg-options']
            + ["custom_hooks=[dict(type='EMAHook')]"],
            '`custom_hooks.0` is "dict(type=\'EMAHook\')", but',
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
