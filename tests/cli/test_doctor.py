"""``mmstable doctor``, through the front door."""

from __future__ import annotations

import io
import json
import os
from contextlib import nullcontext
from pathlib import Path

import pytest

from mmstable.cli.doctor import TESTS as NAMES
from mmstable.cli.main import main
from mmstable.doctor import Fact, MachineTest, Plan, found
from mmstable.doctor.examine import TESTS, examine
from tests.cli.runs import Screen, console_script, path_without_torch, run
from tests.patience import wait_until

XID = 'NVRM: Xid (PCI:0000:07:00): {}, pid=1, name=python3\n'
QUICK = ['--only', 'versions', 'host', 'clock', 'precision', 'xid']


def test_all_of_it(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(['doctor', *QUICK, 'disk']) in (0, 8)
    captured = capsys.readouterr()
    assert captured.out.splitlines()[-1].startswith('Verdict: fit to train')
    assert 'mmstable doctor: test 6 of 6: kernel log\n' in captured.err
    assert os.listdir(tmp_path) == []


def test_the_names_are_those_of_the_tests() -> None:
    assert tuple(test.id for test in TESTS) == NAMES


@pytest.mark.parametrize(
    ('number', 'code', 'verdict'),
    [
        (45, 0, 'Verdict: fit to train; '),
        (31, 8, 'Verdict: fit to train, with doubts; '),
        (48, 9, 'Verdict: do not train here yet; '),
    ],
)
def test_the_exit_code_is_that_of_the_worst(
    number: int,
    code: int,
    verdict: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    log = tmp_path / 'kern.log'
    log.write_text(XID.format(number) + XID.format(45))
    assert main(['doctor', '--only', 'xid', '--log', str(log)]) == code
    out = capsys.readouterr().out
    assert out.splitlines()[-1].startswith(verdict)
    assert f'xid_{number}  GPU 0000:07:00' in out


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / 'kern.log'
    log.write_text(XID.format(79))
    words = ['doctor', '--only', 'xid', 'versions', '--json']
    assert main([*words, '--log', str(log)]) == 9
    content = json.loads(capsys.readouterr().out)
    assert content['exit_code'] == 9
    assert content['findings'][0]['id'] == 'xid_79'
    assert list(content['facts']) == ['versions', 'xid']


def test_chinese(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / 'kern.log'
    log.write_text(XID.format(79))
    words = ['doctor', '--only', 'xid', '--lang', 'zh_cn', '--log', str(log)]
    assert main(words) == 9
    assert 'GPU 从总线掉线' in capsys.readouterr().out


@pytest.mark.parametrize(
    ('words', 'message'),
    [
        (['--log', 'none.log'], '--log: none.log: No such file'),
        (['--log', 'binary.log'], '--log: binary.log is no text'),
        (['--log', '.'], '--log: .: '),
        (['--work-dir', 'none'], '--work-dir: no folder none'),
        (['--watch'], 'unrecognized arguments: --watch'),
        (['--only', 'gpu'], "'gpu'"),
    ],
)
def test_mistakes_are_one_line(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path('binary.log').write_bytes(b'\0\1\2')
    assert main(['doctor', *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ''
    assert captured.err.startswith('mmstable doctor: error: ')
    assert message in captured.err
    assert captured.err.count('\n') == 1


def test_it_works_where_torch_does_not(tmp_path: Path) -> None:
    blocked = path_without_torch(tmp_path)
    for path in (tmp_path / 'blocked').iterdir():
        path.write_text('raise ImportError("libcudart.so.12")\n')
    words = ['doctor', '--only', 'versions', 'precision', 'host']
    command = [*console_script(tmp_path), *words]
    code, out, err = run(command, tmp_path, path=blocked)
    assert code == 9, err
    assert 'torch cannot be imported: ImportError: libcudart.so.12' in out
    assert 'half precision: ImportError' in out
    assert 'shared memory' in out


def test_a_test_that_fails_hides_no_other() -> None:
    def breaks(plan: Plan):
        yield Fact('cores', '2', 'cores')
        raise RuntimeError('CUDA error: unknown error')

    def works(plan: Plan):
        yield found('swapping', 'swap', used=1, total=2)
        yield found('remap_failed', 'GPU 0')

    tests = [
        MachineTest('gpus', 'state of the GPUs', breaks),
        MachineTest('host', 'host', works),
    ]
    report = examine(Plan(), tests, lambda test: nullcontext())
    assert [one.id for one in report.findings] == ['remap_failed', 'swapping']
    (unseen,) = report.not_seen
    assert unseen.what == 'state of the GPUs'
    assert unseen.why == 'RuntimeError: CUDA error: unknown error'
    assert [one.value for one in report.facts[tests[0]]] == ['2']


@pytest.mark.parametrize('is_terminal', [True, False])
def test_a_slow_test_shows_that_it_goes_on(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(plan: Plan):
        if is_terminal:
            wait_until(lambda: '0:00:01' in screen.getvalue())
        yield Fact('cores', '2', 'cores')

    screen = Screen() if is_terminal else io.StringIO()
    monkeypatch.setattr('sys.stderr', screen)
    monkeypatch.setattr('mmstable.cli.command._PATIENCE_S', 0.0)
    test = MachineTest('gpus', 'state of the GPUs', slow)
    monkeypatch.setattr('mmstable.doctor.examine.TESTS', [test])
    assert main(['doctor', '--json']) == 0
    line, _, rest = screen.getvalue().partition('\n')
    assert line == 'mmstable doctor: test 1 of 1: state of the GPUs'
    if is_terminal:
        *shown, left = rest.split('\x1b[2K')
        assert 'state of the GPUs' in ''.join(shown)
        assert 'state of the GPUs' not in left
    else:
        assert rest == ''
