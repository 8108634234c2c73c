"""The command ``mmstable``, whatever its sub-command is."""

from __future__ import annotations

import gc
import io
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mmstable.cli.main import COMMANDS, build_parsers, main
from mmstable.version import __version__
from tests.cli.runs import (
    ROOT,
    Screen,
    console_script,
    path_without_torch,
    run,
)

TOOLS = {
    'check': 'tools/check.py',
    'check-data': 'tools/check_data.py',
    'doctor': 'tools/doctor.py',
    'estimate': 'tools/estimate.py',
    'probe': 'tools/probe.py',
    'profile': 'tools/profile_training.py',
    'protect': 'tools/protect.py',
    'replay': 'tools/replay.py',
    'report': 'tools/report.py',
    'train': 'tools/train.py',
    'upgrade': 'tools/upgrade_config.py',
}


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(['--version']) == 0
    assert capsys.readouterr().out == f'{__version__}\n'


@pytest.mark.parametrize('words', [['--help'], ['-h'], []])
def test_help_names_every_command(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 0
    out = capsys.readouterr().out
    assert out.startswith('usage: mmstable ')
    for name, help in COMMANDS.items():
        assert name in out.split()
        assert help in ' '.join(out.split())


@pytest.mark.parametrize('name', COMMANDS)
def test_help_of_a_command(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([name, '--help']) == 0
    assert capsys.readouterr().out.startswith(f'usage: mmstable {name} ')


@pytest.mark.parametrize(
    ('words', 'message'),
    [
        (
            ['trian', 'config.py'],
            "mmstable: error: unknown command 'trian' (did you mean 'train'?)",
        ),
        (['--trian'], 'mmstable: error: unrecognized arguments: --trian'),
        (
            ['train', 'config.py', '--seeed', '1'],
            'mmstable train: error: unrecognized arguments: --seeed 1',
        ),
        (
            ['train', 'nothing.py'],
            "mmstable train: error: no config file 'nothing.py'.",
        ),
    ],
)
def test_a_mistake_is_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ''
    assert captured.err.startswith(message)
    assert captured.err.count('\n') == 1


ALL_PARSERS = """
import mmstable_command
from mmstable.cli.main import build_parsers
print('usage: mmstable', *build_parsers()[1])
"""


def test_help_imports_neither_torch_nor_mmengine(tmp_path: Path) -> None:
    path = path_without_torch(tmp_path)
    (tmp_path / 'parsers.py').write_text(ALL_PARSERS)
    doors = [[sys.executable, 'parsers.py']]
    doors += [
        [*console_script(tmp_path), *w, '--help'] for w in ([], ['train'])
    ]
    if sys.version_info >= (3, 10):
        doors.append([sys.executable, '-m', 'mmstable', 'check', '--help'])
    for door in doors:
        code, out, err = run(door, tmp_path, path=path)
        assert (code, err) == (0, ''), door
        assert out.startswith('usage: mmstable')


@pytest.mark.parametrize('name', TOOLS)
def test_every_tool_is_a_door(name: str, tmp_path: Path) -> None:
    tool = [sys.executable, str(ROOT / TOOLS[name]), '--help']
    path = path_without_torch(tmp_path)
    code, out, err = run(tool, tmp_path, path=path)
    assert (code, err) == (0, '')
    assert out.startswith(f'usage: mmstable {name} ')


@pytest.mark.parametrize(
    ('words', 'answer'),
    [
        (['--help'], 'usage: mmstable '),
        (['train', '--help'], 'usage: mmstable train '),
        (['train', 'gone.py'], "mmstable train: error: no config file 'gone"),
        (['dist-train', 'gone.py', '2'], 'mmstable dist-train: error: no con'),
    ],
)
def test_what_needs_no_config_is_quick(
    words: list[str], answer: str, tmp_path: Path
) -> None:
    times: list[float] = []
    path = path_without_torch(tmp_path)
    # Of the processor, which other processes slow down: the best of many.
    while len(times) < 3 or (min(times) >= 0.3 and len(times) < 20):
        before = os.times()
        command = [*console_script(tmp_path), *words]
        _, out, err = run(command, tmp_path, path=path)
        after = os.times()
        times.append(sum(after[2:4]) - sum(before[2:4]))
        assert (out + err).startswith(answer)
    assert 0 < min(times) < 0.3


@pytest.mark.parametrize(
    ('encoding', 'words'),
    [
        ('ascii', ['train', '--help', '--lang', 'zh_cn']),
        ('ascii', ['check', '--list', '--lang', 'zh_cn']),
        ('ascii', ['protect', 'config.py', '--lang', 'zh_cn']),
        ('latin-1', ['protect', '中 文.py']),
    ],
)
def test_what_the_terminal_cannot_show_is_escaped(
    encoding: str,
    words: list[str],
    project: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shutil.copytree(project, tmp_path, dirs_exist_ok=True)
    shutil.copy(tmp_path / 'config.py', tmp_path / '中 文.py')
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    written = io.BytesIO()
    with monkeypatch.context() as patch:
        patch.setattr(sys, 'stdout', io.TextIOWrapper(written, encoding))
        assert main(words) == 0
        sys.stdout.flush()
        assert '\\u' in written.getvalue().decode(encoding)


def test_a_stand_in_for_the_terminal_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, 'stdout', screen)
    assert main(['--help', '--lang', 'zh_cn']) == 0
    assert '训练' in screen.getvalue()


@pytest.mark.parametrize('door', ['script', 'module', 'tool'])
def test_ctrl_c_during_import_is_one_line(door: str, tmp_path: Path) -> None:
    if door == 'module' and sys.version_info < (3, 10):
        pytest.skip('this Python does not tell which module is run')
    (tmp_path / 'config.py').touch()
    (tmp_path / 'slow').mkdir()
    (tmp_path / 'slow/torch.py').write_text(
        'import os, signal, time\n'
        'os.kill(os.getpid(), signal.SIGINT)\n'
        'time.sleep(60)\n'
    )
    command = {
        'script': [*console_script(tmp_path), 'train'],
        'module': [sys.executable, '-m', 'mmstable', 'train'],
        'tool': [sys.executable, str(ROOT / TOOLS['train'])],
    }[door]
    path = f'{tmp_path}/slow:{ROOT}'
    code, _, err = run([*command, 'config.py'], tmp_path, path=path)
    assert code == 130
    assert err == 'mmstable train: interrupted\n'


@pytest.mark.soak
def test_python_may_be_told_to_keep_the_folder_out(
    project: Path, tmp_path: Path
) -> None:
    if sys.version_info < (3, 11):
        pytest.skip('this Python has no PYTHONSAFEPATH')
    command = [*console_script(tmp_path), 'train', 'config.py']
    code, _, err = run(command, project, PYTHONSAFEPATH='1')
    assert code == 2
    assert 'Failed to import' in err


@pytest.mark.parametrize(
    ('words', 'expected'),
    [
        (['a/config.py'], None),
        (['a/config.py', '--probe'], 'socket'),
        (['--probe', 'a/config.py'], 'socket'),
        (['--probe', '--amp', 'a/config.py'], 'socket'),
        (['a/config.py', '--probe', '--amp'], 'socket'),
        (['a/config.py', '--probe', 'probing'], 'probing'),
        (['--probe', 'probing', 'a/config.py'], 'probing'),
        (['--probe=probing', 'a/config.py'], 'probing'),
        (['--probe=socket', 'a/config.py'], 'socket'),
    ],
)
def test_probe_takes_its_value_and_no_config(words, expected):
    _, parsers = build_parsers()
    args = parsers['train'].parse_args(words)
    assert (args.config, args.probe) == ('a/config.py', expected)


@pytest.mark.parametrize(
    ('words', 'error'),
    [
        (['config.py', '--probe', 'probe'], "invalid choice: 'probe'"),
        (['config.py', '--probe=config.py'], "invalid choice: 'config.py'"),
        (['config.py', '--prob'], 'Did you mean --probe?'),
    ],
)
def test_another_value_of_probe_is_refused(words, error, capsys):
    assert main(['train', *words]) == 2
    assert error in capsys.readouterr().err


COLLECTOR = """
import gc
print('frozen', gc.get_freeze_count() > 100_000, gc.isenabled())
"""


def test_collections_of_a_command_pass_over_its_imports(
    tmp_path: Path,
) -> None:
    config = tmp_path / 'config.py'
    config.write_text(COLLECTOR)
    command = [sys.executable, '-m', 'mmstable', 'check', str(config)]
    # Not a copy of another interpreter, which has frozen its own imports.
    env = {**os.environ, 'PYTHONPATH': str(Path(__file__).parents[2])}
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert 'frozen True True' in done.stdout


def test_a_program_that_calls_main_keeps_its_garbage(tmp_path: Path) -> None:
    config = tmp_path / 'config.py'
    config.write_text('')
    before = gc.get_freeze_count()
    main(['check', str(config)])
    # Fewer if one of them is gone.
    assert gc.get_freeze_count() <= before
