"""Configs that are read, and must not be run."""

from __future__ import annotations

from pathlib import Path

import mmengine
import pytest
from mmengine.config import Config
from mmengine.fileio.handlers import file_handlers

from mmstable.cli.config import direct_bases, load_config
from mmstable.cli.main import main
from mmstable.errors import UsageError
from tests.cli.conftest import TOY

OLD = 'optimizer:\n  type: SGD\n  lr: 0.1\ntotal_epochs: 3\n'
TAGS = [
    '!!python/object/apply:os.mkdir [marker]',
    '!!python/object/new:os.mkdir [marker]',
    '!!python/object:os.stat_result [marker]',
    '!!python/name:os.system',
    '!!python/module:this',
    '!mine [marker]',
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = dict(file_handlers)
    yield tmp_path
    assert not (tmp_path / 'marker').exists()
    # mmengine reads YAML as before.
    assert file_handlers == before


def refused(
    capsys: pytest.CaptureFixture[str], config: str, culprit: str, line: int
) -> None:
    """Neither command takes a config; both say why in one line."""
    for command in ('upgrade', 'train'):
        assert main([command, config]) == 2
        (said,) = capsys.readouterr().err.splitlines()
        assert f"{culprit}: TagRefused: line {line}: the tag '!" in said
        assert 'such tags can run code' in said


def test_what_the_tag_would_do(folder: Path) -> None:
    # Otherwise the tests below would test nothing.
    (folder / 'a.yaml').write_text(f'x: {TAGS[0]}\n')
    mmengine.load(str(folder / 'a.yaml'))
    (folder / 'marker').rmdir()


@pytest.mark.parametrize('tag', TAGS)
@pytest.mark.parametrize('name', ['a.yaml', 'a.yml'])
def test_a_tag_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], name: str, tag: str
) -> None:
    (folder / name).write_text(f'{OLD}x: {tag}\n')
    refused(capsys, name, str(folder / name), 5)


@pytest.mark.parametrize('leaf', ['leaf.yaml', 'leaf.py', 'leaf.json'])
def test_a_tag_in_a_base_of_a_base_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], leaf: str
) -> None:
    (folder / 'root.yaml').write_text(f'x: {TAGS[0]}\n')
    (folder / 'middle.yml').write_text('_base_: ./root.yaml\n')
    (folder / leaf).write_text(
        {
            '.yaml': f'_base_: [./middle.yml]\n{OLD}',
            '.py': "_base_ = './middle.yml'\ntotal_epochs = 3\n",
            '.json': '{"_base_": "./middle.yml", "total_epochs": 3}',
        }[Path(leaf).suffix]
    )
    refused(capsys, leaf, str(folder / 'root.yaml'), 1)


def test_a_tag_that_shows_up_late_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # mmengine replaces text before it parses it.
    late = '{{$NO_SUCH_NAME:!!python/name:os.system}}'
    (folder / 'a.yaml').write_text(f'x: {late}\n')
    refused(capsys, 'a.yaml', str(folder / 'a.yaml'), 1)


def test_a_base_key_is_read_without_running_anything(folder: Path) -> None:
    (folder / 'a.yaml').write_text(f'_base_: b.yaml\nx: {TAGS[0]}\n')
    assert direct_bases('a.yaml') == []
    (folder / 'b.yaml').write_text('_base_: [c.yaml]\n')
    assert direct_bases('b.yaml') == ['c.yaml']


def test_what_mmengine_writes_can_be_read(folder: Path) -> None:
    cfg = Config(dict(size=(4, 3), nested=[dict(betas=(0.9, 0.99))], a=None))
    for name in ('a.yaml', 'a.json'):
        cfg.dump(str(folder / name))
    assert '!!python/tuple' in (folder / 'a.yaml').read_text()
    read = load_config('a.yaml')
    assert read.size == (4, 3)
    assert read.nested[0].betas == (0.9, 0.99)
    assert load_config('a.json').size == [4, 3]


def test_broken_yaml_is_one_line() -> None:
    Path('a.yaml').write_text('x: [1, 2\n')
    with pytest.raises(UsageError, match=r'a\.yaml: ParserError: .*expected'):
        load_config('a.yaml')


TRAINED = """
custom_imports: {imports: [toy_tool_project]}
model: {type: ToyToolModel}
train_dataloader:
  batch_size: 2
  num_workers: 0
  dataset: {type: ToyToolDataset}
  sampler: {type: DefaultSampler, shuffle: false}
  collate_fn: {type: default_collate}
train_cfg: {type: IterBasedTrainLoop, max_iters: 2}
optim_wrapper: {optimizer: {type: SGD, lr: 0.1}}
experiment_name: plain_yaml
"""


def test_a_yaml_config_trains(folder: Path) -> None:
    (folder / 'toy_tool_project.py').write_text(TOY)
    (folder / 'base.yaml').write_text(TRAINED)
    (folder / 'a.yaml').write_text(
        '_base_: ./base.yaml\ntrain_cfg: {max_iters: 3}\n'
    )
    assert main(['train', 'a.yaml', '--work-dir', 'work']) == 0
    # What mmengine keeps of it.
    assert load_config('work/a.yaml').train_cfg.max_iters == 3


@pytest.mark.parametrize('leaf', ['old.py', 'old.yaml'])
def test_upgrade_imports_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str], leaf: str
) -> None:
    module = f'marking_{leaf[4:]}'
    (folder / f'{module}.py').write_text(
        'from pathlib import Path\nPath(__file__).with_name("marker").mkdir()'
    )
    (folder / 'old.yaml').write_text(
        OLD + 'custom_imports: {imports: ['
        f'{module}]}}\n'
        'custom_hooks:\n- type: MyHook\n'
    )
    (folder / 'old.py').write_text("_base_ = './old.yaml'\n")
    assert main(['upgrade', leaf, '-o', 'new.py']) == 5
    told = capsys.readouterr().err
    assert '`custom_imports` is not imported; hooks from there' in told
    assert 'MyHook is unknown here and not changed' in told
    new = load_config('new.py', import_modules=False)
    assert new.custom_imports == dict(imports=[module])
    assert new.custom_hooks[0] == dict(type='MyHook')


def test_what_upgrade_says_and_writes_is_printable(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / 'old.yaml').write_text(
        OLD + 'evaluation: {interval: 1, "met\\e[2Jric\\nx = 1": 3}\n'
        'custom_hooks:\n- type: "My\\e[31mHook\\u202e"\n'
        'note: "\\x7b{$HOME:x}} \\x7b{ fileBasename }}\\e"\n'
        'names: {"\\x7b{$HOME:y}}": 1}\n'
    )
    assert main(['upgrade', 'old.yaml', '-o', 'new.py']) == 5
    told = capsys.readouterr().err
    assert all(line.isprintable() for line in told.splitlines())
    assert r'My\x1b[31mHook\u202e' in told
    text = (folder / 'new.py').read_text()
    assert all(line.isprintable() for line in text.splitlines())
    # Nothing has got out of its comment or its quotes.
    new = load_config('new.py')
    assert 'x' not in new
    assert new.note == '{{$HOME:x}} {{ fileBasename }}\x1b'
    assert new.names == {'{{$HOME:y}}': 1}


def test_bases_of_packages_are_found_by_import(folder: Path) -> None:
    configs = folder / 'some_package' / '.mim' / 'configs' / 'resnet'
    configs.mkdir(parents=True)
    (folder / 'some_package' / '__init__.py').touch()
    (configs / 'base.py').write_text("hook = dict(type='A')\n")
    (folder / 'leaf.py').write_text(
        "_base_ = ['some_package::resnet/base.py', './local.py']\n"
        'mine = _base_.hook\n'
    )
    (folder / 'local.py').write_text('local = 3\n')
    before = Config._get_cfg_path
    cfg = load_config('leaf.py')
    # Classes of the package are looked for there.
    assert cfg.mine == dict(type='A', _scope_='some_package')
    assert cfg.local == 3
    assert Config._get_cfg_path is before


def test_own_bases_need_no_installation(folder: Path) -> None:
    (folder / 'leaf.py').write_text(
        "_base_ = 'mmstable::_base_/loss_scale/dynamic.py'\n"
    )
    assert 'loss_scale' in load_config('leaf.py')


def test_a_package_that_is_missing_is_named(folder: Path) -> None:
    (folder / 'leaf.py').write_text("_base_ = 'no_package::a/b.py'\n")
    with pytest.raises(UsageError, match="needs the module 'no_package'"):
        load_config('leaf.py')
