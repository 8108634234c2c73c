"""tools/train.py, as a user meets it."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.optim import OptimWrapper

from mmstable.cli import config_edits as edits
from mmstable.cli.main import main as mmstable_command
from mmstable.cli.train import main
from mmstable.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]
TOY = """
import time
import torch
from mmengine.model import BaseModel
from mmengine.registry import DATASETS, MODELS
from torch.utils.data import Dataset


@MODELS.register_module()
class ToyToolModel(BaseModel):
    def __init__(self, nap=0.0, fail=False):
        super().__init__()
        self.head = torch.nn.Linear(4, 2)
        self.nap, self.fail = nap, fail

    def forward(self, x, y, mode='loss'):
        if self.fail:
            raise RuntimeError('a fault in the model')
        time.sleep(self.nap)
        out = self.head(x)
        if mode == 'loss':
            return dict(loss=torch.nn.functional.cross_entropy(out, y))
        return out


@DATASETS.register_module()
class ToyToolDataset(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.full((4,), float(index)), index % 2
"""
CONFIG = """
# mmengine names a run by the second; several of one second would mix.
experiment_name = __import__('uuid').uuid4().hex
custom_imports = dict(imports=['toy_tool_project'])
model = dict(type='ToyToolModel')
train_dataloader = dict(
    batch_size=2,
    num_workers=0,
    dataset=dict(type='ToyToolDataset'),
    sampler=dict(type='DefaultSampler', shuffle=False),
    collate_fn=dict(type='default_collate'),
)
train_cfg = dict(type='IterBasedTrainLoop', max_iters=4)
optim_wrapper = dict(optimizer=dict(type='SGD', lr=0.1))
default_hooks = dict(
    checkpoint=dict(type='CheckpointHook', interval=2, by_epoch=False),
    logger=dict(type='LoggerHook', interval=1),
)
log_processor = dict(by_epoch=False)
"""


@pytest.fixture(scope='session')
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp('project')
    (folder / 'toy_tool_project.py').write_text(TOY)
    (folder / 'config.py').write_text(CONFIG)
    return folder


@pytest.fixture(autouse=True)
def _importable(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(project))
    monkeypatch.chdir(project)
    # A run that is configured by the command line must not leak into others.
    monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '')


def start(project: Path, *args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(ROOT / 'tools/train.py'), *args],
        cwd=project,
        env={**os.environ, 'PYTHONPATH': f'{project}:{ROOT}'},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def iterations(folder: Path) -> list[int]:
    logs = folder.rglob('*.log')
    text = ''.join(path.read_text() for path in sorted(logs))
    return [int(n) for n in re.findall(r'Iter\(train\)\s+\[\s*(\d+)/', text)]


def error_of(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """The one line that ``main`` prints for a mistake."""
    assert main(list(args)) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    ours = [line for line in lines if line.startswith('mmstable train')]
    assert len(ours) == 1
    assert not any('Traceback' in line for line in lines)
    return ours[0]


def test_script_trains_then_resumes(project: Path, tmp_path: Path) -> None:
    first, second = tmp_path / 'first', tmp_path / 'second'
    out, err = start(
        project, 'config.py', '--work-dir', str(first), '--seed', '7'
    ).communicate(timeout=100)
    assert (first / 'iter_4.pth').exists(), err
    assert 'seed: 7' in out + err
    assert iterations(first) == [1, 2, 3, 4]

    process = start(
        project,
        'config.py',
        '--resume-from',
        str(first / 'iter_2.pth'),
        '--work-dir',
        str(second),
    )
    _, err = process.communicate(timeout=100)
    assert process.returncode == 0, err
    assert iterations(second) == [3, 4]
    weights = [
        torch.load(folder / 'iter_4.pth')['state_dict']['head.weight']
        for folder in (first, second)
    ]
    assert torch.equal(*weights)


def test_resume_without_a_value_takes_the_newest(
    tmp_path: Path,
) -> None:
    work = ['--work-dir', str(tmp_path)]
    longer = ['--cfg-options', 'train_cfg.max_iters=6']
    assert main(['config.py', *work]) == 0
    assert main(['config.py', *work, '--resume', *longer]) == 0
    assert iterations(tmp_path) == [1, 2, 3, 4, 5, 6]


def test_load_from_starts_a_new_run(tmp_path: Path) -> None:
    first, second = tmp_path / 'first', tmp_path / 'second'
    assert main(['config.py', '--work-dir', str(first)]) == 0
    checkpoint = str(first / 'iter_4.pth')
    options = ['--work-dir', str(second), '--load-from', checkpoint]
    assert main(['config.py', *options]) == 0
    assert iterations(second) == [1, 2, 3, 4]


def test_amp_trains_with_the_safe_wrapper(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ['optim_wrapper.loss_scale=64', 'train_cfg.max_iters=1']
    code = main(
        ['config.py', '--work-dir', str(tmp_path), '--amp', '--cfg-options']
        + options
    )
    assert code == 0
    log = ''.join(path.read_text() for path in tmp_path.rglob('*.log'))
    assert 'FP16 mixed precision enabled (loss_scale=64.0' in log


def test_work_dir_is_named_after_the_config(project: Path) -> None:
    options = ['--cfg-options', 'train_cfg.max_iters=2']
    assert main(['config.py', *options]) == 0
    assert (project / 'work_dirs/config/iter_2.pth').exists()


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


def test_fault_in_training_keeps_its_traceback(tmp_path: Path) -> None:
    options = ['--cfg-options', 'model.fail=True']
    with pytest.raises(RuntimeError, match='a fault in the model'):
        main(['config.py', '--work-dir', str(tmp_path), *options])


def test_gpu_ids_on_a_cpu_are_ignored_aloud(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if torch.cuda.is_available():
        pytest.skip('needs a machine without a GPU')
    options = ['--work-dir', str(tmp_path), '--gpu-ids', '1', '2']
    assert main(['config.py', *options]) == 0
    assert os.environ['CUDA_VISIBLE_DEVICES'] == '1,2'
    assert '--gpu-ids [1, 2]: no such GPU here' in capsys.readouterr().err


def test_ctrl_c_is_one_line(project: Path, tmp_path: Path) -> None:
    process = start(
        project,
        *('config.py', '--work-dir', str(tmp_path), '--cfg-options'),
        *('model.nap=0.2', 'train_cfg.max_iters=1000'),
    )
    deadline = time.time() + 60
    while not iterations(tmp_path) and time.time() < deadline:
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert 'mmstable train: interrupted' in err
    assert 'Traceback' not in err


def test_command_runs_train(capsys: pytest.CaptureFixture[str]) -> None:
    assert mmstable_command(['train', 'nothing.py']) == 2
    assert "no config file 'nothing.py'" in capsys.readouterr().err
    assert mmstable_command(['trian']) == 2
    assert "no command 'trian', there is train" in capsys.readouterr().err
    assert mmstable_command(['--help']) == 0
    assert 'usage: mmstable {train,' in capsys.readouterr().out


@pytest.mark.parametrize('script', ['dist_train.sh', 'slurm_train.sh'])
def test_shell_script_asks_for_its_arguments(script: str) -> None:
    done = subprocess.run(
        [str(ROOT / 'tools' / script)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert 'usage: ' in done.stderr


@pytest.mark.dist
def test_two_processes_train_on_the_cpu(project: Path, tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        port = probe.getsockname()[1]
    done = subprocess.run(
        [str(ROOT / 'tools/dist_train.sh'), 'config.py', '2']
        + ['--work-dir', str(tmp_path / 'a b')],
        cwd=project,
        env={
            **os.environ,
            'PYTHON': sys.executable,
            'PYTHONPATH': f'{project}:{ROOT}',
            'PORT': str(port),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert iterations(tmp_path / 'a b') == [1, 2, 3, 4]


SAFE_AMP = 'mmstable.SafeAmpOptimWrapper'


@pytest.mark.parametrize(
    'kind',
    [
        None,
        'OptimWrapper',
        'AmpOptimWrapper',
        'mmengine.AmpOptimWrapper',
        'mmstable.SafeOptimWrapper',
        OptimWrapper,
    ],
)
def test_amp_replaces_plain_wrappers(kind: object) -> None:
    wrapper = dict(optimizer=dict(type='SGD'), accumulative_counts=3)
    if kind is not None:
        wrapper['type'] = kind
    cfg = Config(dict(optim_wrapper=wrapper))
    edits.enable_amp(cfg)
    assert cfg.optim_wrapper.type == SAFE_AMP
    assert cfg.optim_wrapper.accumulative_counts == 3


def test_amp_replaces_each_wrapper_of_several() -> None:
    one = dict(type='OptimWrapper', optimizer=dict(type='SGD'))
    wrapper = dict(constructor='Mine', generator=one, critic=dict(one))
    cfg = Config(dict(optim_wrapper=wrapper))
    edits.enable_amp(cfg)
    assert cfg.optim_wrapper.generator.type == SAFE_AMP
    assert cfg.optim_wrapper.critic.type == SAFE_AMP
    assert 'type' not in cfg.optim_wrapper


def test_amp_refuses_other_wrappers() -> None:
    cfg = Config(dict(optim_wrapper=dict(type='ApexOptimWrapper')))
    with pytest.raises(UsageError, match=r"--amp: .*got 'ApexOptimWrapper'"):
        edits.enable_amp(cfg)
    with pytest.raises(UsageError, match='has no `optim_wrapper`'):
        edits.enable_amp(Config())


def test_seed_keeps_other_randomness() -> None:
    cfg = Config(dict(randomness=dict(seed=1, diff_rank_seed=True)))
    edits.set_seed(cfg, 5, deterministic=True)
    assert cfg.randomness == dict(
        seed=5, diff_rank_seed=True, deterministic=True
    )


def test_no_validate_removes_what_needs_a_metric() -> None:
    cfg = Config(
        dict(
            val_cfg=dict(type='ValLoop'),
            val_dataloader=dict(batch_size=1),
            val_evaluator=dict(type='Acc'),
            default_hooks=dict(checkpoint=dict(save_best='auto', interval=1)),
        )
    )
    edits.disable_validation(cfg)
    assert cfg.val_cfg is cfg.val_dataloader is cfg.val_evaluator is None
    assert cfg.default_hooks.checkpoint == dict(interval=1)


def test_resume_overrides_the_config() -> None:
    cfg = Config(dict(resume=False, load_from='weights_of_the_config.pth'))
    edits.set_checkpoint(cfg, resume='auto')
    assert cfg.resume is True
    assert cfg.load_from is None
