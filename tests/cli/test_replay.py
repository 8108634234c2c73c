"""A bundle of a real run is replayed, and nothing else of it is run."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.runner import Runner

from mmstable.cli.command import show
from mmstable.cli.main import main
from mmstable.cli.replay import EXIT_NOT_REPRODUCED, module_tree
from mmstable.forensics.frames import ModuleRanges, Place
from tests.cli import replay_project

_RUNS = itertools.count()
FP16 = dict(
    type='mmstable.SafeAmpOptimWrapper', dtype='float16', loss_scale=1.0
)


@pytest.fixture(scope='module')
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp('replay_project')
    replay_project.write(folder)
    return folder


@pytest.fixture(scope='module')
def bundles(project):
    """Makes the bundle of a run; one for each kind of run."""
    made = {}

    def make(options=None, settings=None):
        key = str((options, settings))
        if key not in made:
            made[key] = train(project, options or {}, settings or {})
        return made[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(project))
        yield make
    sys.modules.pop('replay_toys', None)


def train(project, options, settings):
    cfg = Config.fromfile(project / 'config.py')
    number = next(_RUNS)
    cfg.experiment_name = f'replay_{number}'
    cfg.work_dir = str(project / f'run_{number}')
    cfg.merge_from_dict(options)
    cfg.custom_hooks[0].update(settings)
    Runner.from_cfg(cfg).train()
    found = sorted(Path(cfg.work_dir).glob('*/stability/faults/iter_*'))
    return found[0]


@pytest.fixture
def bundle(bundles, tmp_path):
    """A copy that may be damaged."""
    return shutil.copytree(bundles(), tmp_path / 'bundle')


def replay(capsys, *words):
    """Exit code, and what was printed."""
    capsys.readouterr()
    code = main(['replay', *map(str, words)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_what_is_shown(bundles, project, capsys):
    code, out, err = replay(
        capsys, bundles(), '--config', str(project / 'config.py')
    )
    assert (code, err) == (0, '')
    lines = out.splitlines()
    assert lines[0].startswith('in the run: Iter 2: first NaN in head (')
    again = lines[0].partition(': ')[2].replace(f'{project}/', '')
    assert lines[2].replace(f'{project}/', '') == again
    assert 'return self.fc(x).sum(1) * total / total' in lines[2]
    assert 'in sample 2 (path=data/6.png)' in lines[2]
    assert lines[3].startswith('Verdict: aten.div.Tensor in loss is undefined')
    tree = lines[5:]
    assert tree[0].startswith('ReplayModel  forward float32 ')
    assert tree[1].startswith('├── data_preprocessor: BaseDataPreprocessor')
    assert re.fullmatch('├── body: Sequential  forward float32 [^N]*', tree[2])
    assert re.match(r'└── head: Head .*NaN.*  <- NaN begins here', tree[3])
    assert tree[4].startswith('    └── fc: Linear  forward float32 ')
    assert 'From there to the loss or the gradient:' in lines
    assert lines[-1].startswith('1. first NaN in forward: aten.div.Tensor')


def test_the_config_of_the_bundle_if_it_is_trusted(bundles, capsys):
    code, out, err = replay(capsys, bundles(), '--trust-config')
    assert (code, err) == (0, '')
    assert 'NaN begins here' in out


def test_no_config_is_run_unasked(bundle, capsys):
    (bundle / 'config.py').write_text("open('ran', 'w')", encoding='utf-8')
    code, out, err = replay(capsys, bundle)
    assert code == 2
    assert 'Name the config that builds the model with --config FILE' in err
    assert f"'{bundle}/config.py' with --trust-config" in err
    assert not Path('ran').exists()


def test_not_both_configs(bundle, capsys):
    words = ['--config', 'config.py', '--trust-config']
    code, _, err = replay(capsys, bundle, *words)
    assert code == 2
    assert 'not allowed with argument --config' in err


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16', 'float16'])
def test_in_another_dtype(bundles, capsys, dtype):
    options = dict(optim_wrapper=FP16, model=dict(steep=True))
    words = [bundles(options), '--trust-config', '--dtype', dtype]
    code, out, _ = replay(capsys, *words)
    if dtype == 'float16':
        assert code == 0
        assert 'Verdict: fp16 overflow' in out
    else:
        assert code == EXIT_NOT_REPRODUCED
        assert f'The step is finite with --dtype {dtype}' in out
        assert 'begins here' not in out
        assert '├── body: Sequential' in out


def test_modules_in_full_precision_stay_so(bundles, capsys):
    options = dict(
        optim_wrapper=dict(FP16, fp32_modules=['body']),
        model=dict(steep=True),
    )
    code, out, _ = replay(capsys, bundles(options), '--trust-config')
    assert code == 0
    assert re.search('body: Sequential  forward float32 ', out)


def test_a_sample_alone(bundles, capsys):
    words = [bundles(), '--trust-config', '--sample']
    code, out, _ = replay(capsys, *words, '2')
    assert code == 0
    assert out.count('in sample 2 (path=data/6.png)') == 2
    assert replay(capsys, *words, '1')[0] == EXIT_NOT_REPRODUCED
    assert replay(capsys, *words, '1', '--sample', '2')[0] == 0


@pytest.mark.parametrize(
    ('words', 'message'),
    [
        (['--sample', '4'], '--sample 4: the batch has 4 samples, counted'),
        (['--sample', '-1'], '--sample: a number from 0 on is expected, '),
        (['--sample', 'x'], "a number from 0 on is expected, got 'x'"),
        (['--dtype', 'int8'], "invalid choice: 'int8'"),
        (['--config', 'none.py'], "no config file 'none.py'"),
    ],
)
def test_wrong_words(bundles, capsys, words, message):
    code, _, err = replay(capsys, bundles(), *words)
    assert code == 2
    assert message in err
    assert err.count('\n') == 1


def test_other_weights(bundles, capsys):
    folder = bundles(dict(model=dict(deep=True)))
    words = [folder, '--trust-config', '--checkpoint']
    (good,) = folder.parents[3].glob('iter_1.pth')
    code, out, _ = replay(capsys, *words, good)
    assert code == 0
    assert 'SqrtBackward0' in out
    assert re.search(r'body: Sequential  forward [^N]*  backward .*NaN', out)
    assert 'another fault' not in out
    content = torch.load(good, weights_only=False)
    content['state_dict']['body.0.bias'][:] = torch.nan
    bad = folder / 'bad.pth'
    torch.save(content, bad)
    code, out, _ = replay(capsys, *words, bad)
    assert code == 0
    assert 'Verdict: bad weights. body.0.bias' in out
    assert 'another fault than in the run, where it began in aten.' in out


def test_weights_that_do_not_fit(bundles, capsys, tmp_path):
    words = [bundles(), '--trust-config', '--checkpoint']
    torch.save({'state_dict': {'a': torch.ones(1)}}, tmp_path / 'a.pth')
    code, _, err = replay(capsys, *words, tmp_path / 'a.pth')
    assert code == 3
    assert 'does not fit the model: it has no such body.0.weight' in err
    torch.save([1], tmp_path / 'b.pth')
    assert replay(capsys, *words, tmp_path / 'b.pth')[0] == 3
    assert replay(capsys, *words, tmp_path / 'none.pth')[0] == 3


def test_large_weights_come_from_their_checkpoint(bundles, capsys):
    folder = bundles(settings=dict(max_bundle_size=5e-4))
    assert not (folder / 'model.pth').exists()
    code, out, _ = replay(capsys, folder, '--trust-config')
    assert code == 0
    assert 'note: weights are those of' in out


def test_the_checkpoint_of_a_bundle_must_be_the_same(
    bundles, capsys, tmp_path
):
    folder = bundles(settings=dict(max_bundle_size=5e-4))
    copy = shutil.copytree(folder, tmp_path / 'copy')
    change(copy, checkpoint_sha256='0' * 64)
    assert replay(capsys, copy, '--trust-config')[0] == 3
    change(copy, checkpoint=None)
    code, _, err = replay(capsys, copy, '--trust-config')
    assert code == 2
    assert 'has no weights and names no checkpoint; name one with' in err


def change(folder, **facts):
    path = folder / 'bundle.json'
    content = json.loads(path.read_text(encoding='utf-8'))
    path.write_text(json.dumps({**content, **facts}), encoding='utf-8')


def test_a_batch_that_was_left_out(bundles, capsys):
    folder = bundles(settings=dict(max_bundle_size=1e-6))
    code, _, err = replay(capsys, folder, '--trust-config')
    assert code == 3
    assert 'it has no batch to do the step with (' in err
    assert 'the batch is not saved' in err


def test_damaged_and_foreign_bundles(bundle, capsys, tmp_path):
    def refused(folder):
        code, out, err = replay(capsys, folder, '--trust-config')
        assert (code, out) == (3, '')
        assert err.count('\n') == 1
        return err

    assert 'No such file' in refused(tmp_path / 'none')
    assert 'is no bundle of a fault' in refused(tmp_path)
    content = (bundle / 'step.pth').read_bytes()
    (bundle / 'step.pth').write_bytes(content[:-100])
    assert re.search('truncated|corrupt', refused(bundle))
    change(bundle, schema=9)
    assert 'schema 9 is of a newer mmstable' in refused(bundle)


def test_several_optimizers(bundles, capsys):
    folder = bundles(
        dict(
            model=dict(type='ReplayGan'),
            optim_wrapper=dict(_delete_=True, constructor='OneForEach'),
        )
    )
    code, out, _ = replay(capsys, folder, '--trust-config')
    assert code == 0
    assert 'SqrtBackward0' in out and 'reached loss_head' in out
    assert 'in sample 2 (path=data/6.png)' in out
    code, out, _ = replay(capsys, folder, '--trust-config', '--sample', 1)
    assert code == 7
    assert 'The step is finite with --sample 1' in out
    assert 'hardware' not in out


def test_links_and_pipes_are_not_followed_for_ever(bundle, capsys):
    for name in ('bundle.json', 'step.pth', 'model.pth', 'verdict.json'):
        kept = (bundle / name).read_bytes()
        (bundle / name).unlink()
        (bundle / name).symlink_to('/dev/zero')
        code, _, err = replay(capsys, bundle, '--trust-config')
        assert (code, 'not a regular file' in err) == (3, True)
        (bundle / name).unlink()
        os.mkfifo(bundle / name)
        code, _, err = replay(capsys, bundle, '--trust-config')
        assert (code, 'not a regular file' in err) == (3, True)
        (bundle / name).unlink()
        (bundle / name).write_bytes(kept)


@pytest.mark.parametrize(
    ('facts', 'message'),
    [
        (dict(schema='x'), '`schema`: must be an integer'),
        (dict(schema=None), '`schema`: must be an integer'),
        (dict(iteration=True), '`iteration`: must be an integer'),
        (dict(setups=[]), '`setups`: must be an object'),
        (dict(versions={'torch': 1}), '`versions`: `torch`: must be a string'),
    ],
)
def test_an_index_with_other_types(bundle, capsys, facts, message):
    change(bundle, **facts)
    code, _, err = replay(capsys, bundle, '--trust-config')
    assert code == 3
    assert message in err


@pytest.mark.parametrize(
    'path', ['/etc/passwd', '../../../etc/passwd', 'http://localhost:1/a.pth']
)
def test_a_checkpoint_that_is_none_is_read_as_data(bundle, capsys, path):
    (bundle / 'model.pth').unlink()
    change(bundle, checkpoint=path, checkpoint_sha256='')
    code, _, err = replay(capsys, bundle, '--trust-config')
    assert code == 3
    assert re.search('is foreign|is missing', err)


def test_the_verdict_of_a_bundle_may_hold_anything(bundle, capsys):
    strange = dict(text='a\x1b[2Jb', op=[1], module={}, fault='x')
    (bundle / 'verdict.json').write_text(json.dumps(strange))
    code, out, _ = replay(capsys, bundle, '--trust-config')
    assert code == 0
    assert out.startswith('in the run: a\\x1b[2Jb\n')


@pytest.mark.parametrize(
    ('model', 'message'),
    [
        ("dict(type='ReplayModel', blocks=2, size=3)", 'size'),
        ("dict(type='ReplayModle')", 'ReplayModle'),
        ("dict(type='ReplayModel', blocks=10)", 'another model than the one'),
        ('None', 'has no `model`'),
    ],
)
def test_a_config_of_another_model(bundles, project, capsys, model, message):
    text = f"custom_imports = dict(imports=['replay_toys'])\nmodel = {model}"
    path = project / 'other.py'
    path.write_text(text, encoding='utf-8')
    code, _, err = replay(capsys, bundles(), '--config', path)
    assert code == 2
    assert message in err


def test_a_step_that_cannot_be_done_again(bundle, project, capsys):
    text = (bundle / 'config.py').read_text(encoding='utf-8')
    text += "\ncustom_imports = dict(imports=['replay_raises'])\n"
    text = text.replace("type='ReplayModel'", "type='RaisingModel'")
    (bundle / 'config.py').write_text(text, encoding='utf-8')
    (project / 'replay_raises.py').write_text(
        'from mmengine.registry import MODELS\n'
        'from replay_toys import ReplayModel\n\n\n'
        '@MODELS.register_module()\n'
        'class RaisingModel(ReplayModel):\n'
        '    def forward(self, **kwargs):\n'
        "        raise RuntimeError('not here')\n"
    )
    code, out, _ = replay(capsys, bundle, '--trust-config')
    assert code == 1
    assert 'the replay failed: RuntimeError: not here' in out


@pytest.mark.parametrize(
    ('deep', 'asked', 'answer'),
    [
        (False, 'total.tolist()', '[3.0, 3.0, 0.0, 3.0]'),
        (True, 'origin.node', "'SqrtBackward0'"),
    ],
)
def test_the_debugger_stops_there(
    bundles, capsys, monkeypatch, deep, asked, answer
):
    folder = bundles(dict(model=dict(deep=deep)) if deep else None)
    lines = iter([f'p {asked}', 'continue'])
    monkeypatch.setattr('builtins.input', lambda prompt='': next(lines))
    code, out, _ = replay(capsys, folder, '--trust-config', '--pdb')
    assert code == 0
    assert answer in out
    assert next(lines, None) is None


def test_the_debugger_stops_at_a_bad_tensor_and_can_be_left(
    bundles, capsys, monkeypatch, tmp_path
):
    folder = shutil.copytree(bundles(), tmp_path / 'copy')
    state = torch.load(folder / 'model.pth')
    state['body.3.bias'][1] = torch.inf
    torch.save(state, folder / 'model.pth')
    lines = iter(['p type(self).__name__', 'quit'])
    monkeypatch.setattr('builtins.input', lambda prompt='': next(lines))
    code, out, _ = replay(capsys, folder, '--trust-config', '--pdb')
    assert code == 0
    assert "'ReplayModel'" in out
    assert next(lines, None) is None


def test_it_speaks_chinese(bundles, capsys):
    words = [bundles(), '--trust-config', '--lang', 'zh_cn']
    code, out, _ = replay(capsys, *words)
    assert code == 0
    assert '<- NaN 始于此处' in out
    assert '结论：' in out


def test_far_modules_are_counted(capsys):
    model = torch.nn.Sequential(*(torch.nn.ReLU() for _ in range(20)))
    ranges = ModuleRanges()
    values = torch.tensor([1.0, torch.nan, -2.0])
    ranges.note('forward', 'aten.relu.default', Place('10'), values)
    show(module_tree(model, ranges, '10', 'here'))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 10
    assert lines[0] == 'Sequential  forward float32 -2..1 (1 NaN of 3)'
    assert lines[1] == '├── (7 more)'
    assert lines[2] == '├── 7: ReLU  not reached'
    assert lines[5].startswith(
        '├── 10: ReLU  forward float32 -2..1 (1 NaN of 3)'
    )
    assert lines[5].endswith('  <- here')
    assert lines[-1] == '└── (6 more)'
    show(module_tree(model, ranges, 'gone', 'x'))
    assert capsys.readouterr().out.splitlines()[0] == lines[0]
