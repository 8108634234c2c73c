"""The socket of a run, and those who mean it no good."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from mmstable.liveness.probe import server as server_module
from mmstable.liveness.probe import sockets
from mmstable.liveness.probe.client import ProbeError, ask
from mmstable.liveness.probe.server import LONGEST_REQUEST, ProbeServer
from mmstable.liveness.probe.sockets import connect, find_sockets
from tests.patience import wait_until


@pytest.fixture
def folder(tmp_path, monkeypatch):
    path = tmp_path / 'sockets'
    monkeypatch.setenv(sockets.VARIABLE, str(path))
    return path


@pytest.fixture
def server(folder):
    one = ProbeServer(
        {
            'double': lambda request: 2 * request['number'],
            'sleep': lambda request: time.sleep(request['seconds']),
        },
        never,
    )
    yield one
    one.close()


def never() -> bool:
    return False


def raw(path: Path, content: bytes) -> bytes:
    with connect(path, 20.0) as connection:
        try:
            connection.sendall(content)
        except (BrokenPipeError, ConnectionResetError):
            return b''
        connection.shutdown(socket.SHUT_WR)
        parts = []
        try:
            while part := connection.recv(1 << 16):
                parts.append(part)
        except ConnectionResetError:
            # It has not read all.
            pass
        return b''.join(parts)


def test_a_question_is_answered(server):
    assert ask(server.path, 'double', number=4) == 8


def test_only_its_user_can_enter(server, folder):
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(server.path.lstat().st_mode) == 0o600
    assert list(folder.iterdir()) == [server.path]


def test_nothing_is_left_behind(server, folder):
    server.close()
    assert list(folder.iterdir()) == []
    assert not any(t.name == 'mmstable probe' for t in threading.enumerate())


@pytest.mark.parametrize(
    ('line', 'error'),
    [
        (b'\n', 'Expecting value'),
        (b'\x00\xff\xfe\n', "can't decode"),
        (b'[1, 2]\n', 'must be an object'),
        (
            b'{"command": "eval", "code": "1"}\n',
            'must be one of double, sleep',
        ),
        (b'{"command": ["double"]}\n', 'must be one of double, sleep'),
        (b'[' * 60000 + b'\n', 'nested too deeply'),
        (b'{"command": "double", "number": ' + b'9' * 30 + b'}\n', 'digits'),
        (b'{"command": "double"}\n', 'KeyError'),
    ],
)
def test_garbage_gets_an_error(server, line, error):
    assert error in json.loads(raw(server.path, line))['error']
    assert ask(server.path, 'double', number=1) == 2


def test_a_huge_line_is_not_read(server):
    answer = raw(server.path, b'x' * (LONGEST_REQUEST * 20))
    assert answer == b'' or 'has more than' in json.loads(answer)['error']
    assert ask(server.path, 'double', number=1) == 2


def test_a_huge_answer_is_not_sent(server, monkeypatch):
    monkeypatch.setattr(server_module, 'LONGEST_ANSWER', 10)
    with pytest.raises(ProbeError, match='the answer has 15 bytes'):
        ask(server.path, 'double', number=10)


def clients():
    return [one for one in threading.enumerate() if 'client' in one.name]


def test_slow_clients_get_no_more_than_their_share(server, monkeypatch):
    monkeypatch.setattr(server_module, '_PATIENCE', 0.5)
    silent = [connect(server.path, 10.0) for _ in range(30)]
    wait_until(clients)
    assert len(clients()) <= server_module._MOST
    # They are gone in the end, with those that have waited behind them.
    wait_until(lambda: not clients())
    assert ask(server.path, 'double', number=1) == 2
    for one in silent:
        one.close()


def test_a_client_that_drips_is_ended(server, monkeypatch):
    monkeypatch.setattr(server_module, '_PATIENCE', 0.5)
    errors = (BrokenPipeError, ConnectionResetError)
    with connect(server.path, 10.0) as connection, pytest.raises(errors):
        # It takes two minutes to fill a line.
        for _ in range(2400):
            connection.sendall(b'x')
            time.sleep(0.05)


def test_other_users_are_turned_away(server, monkeypatch):
    monkeypatch.setattr(sockets, 'peer_uid', lambda connection: 12345)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(server.path))
        connection.settimeout(5)
        assert connection.recv(10) == b''
    with pytest.raises(PermissionError, match='of another user'):
        ask(server.path, 'double', number=1)


OTHER_USER = """
import os, socket, sys
os.setgid(65534)
os.setuid(65534)
with socket.socket(socket.AF_UNIX) as one:
    one.settimeout(5)
    try:
        one.connect(sys.argv[1])
        one.sendall(b'{"command": "double", "number": 1}\\n')
        print(one.recv(100))
    except OSError as error:
        print(type(error).__name__)
"""


@pytest.mark.skipif(os.getuid() != 0, reason='only root can be someone else')
@pytest.mark.parametrize('is_open', [False, True])
def test_a_real_other_user(monkeypatch, is_open):
    # Others cannot enter the folders of pytest.
    with tempfile.TemporaryDirectory(dir='/tmp') as top:
        os.chmod(top, 0o755)
        folder = Path(top, 'sockets')
        monkeypatch.setenv(sockets.VARIABLE, str(folder))
        server = ProbeServer({'double': lambda request: 2}, never)
        if is_open:
            # As if somebody had opened the doors: the kernel tells who it is.
            folder.chmod(0o777)
            server.path.chmod(0o777)
        done = subprocess.run(
            [sys.executable, '-c', OTHER_USER, str(server.path)],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        server.close()
    turned_away = ("b''", 'ConnectionResetError', 'BrokenPipeError')
    expected = turned_away if is_open else ('PermissionError',)
    assert done.stdout.strip() in expected


def test_a_folder_of_others_is_not_used(folder):
    folder.mkdir()
    folder.chmod(0o755)
    with pytest.raises(PermissionError, match='not a folder of mode 700'):
        ProbeServer({}, never)
    assert find_sockets() == []


def test_a_planted_link_is_not_followed(folder, tmp_path):
    (tmp_path / 'other').mkdir(mode=0o700)
    folder.symlink_to(tmp_path / 'other')
    with pytest.raises(PermissionError, match='not a folder of mode 700'):
        ProbeServer({}, never)
    assert list((tmp_path / 'other').iterdir()) == []


def test_a_link_in_the_place_of_a_socket_is_left_alone(folder, tmp_path):
    folder.mkdir(mode=0o700)
    victim = tmp_path / 'victim'
    victim.write_text('mine')
    link = folder / f'{os.getpid()}-00000000.sock'
    link.symlink_to(victim)
    one = ProbeServer({'hi': lambda request: 'hi'}, never)
    assert one.path != link
    assert ask(one.path, 'hi') == 'hi'
    one.close()
    assert victim.read_text() == 'mine'


def test_sockets_of_dead_processes_are_removed(folder):
    folder.mkdir(mode=0o700)
    dead = folder / '99999999-0123abcd.sock'
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(dead))
    other = folder / 'notes.txt'
    other.write_text('not a socket')
    server = ProbeServer({}, never)
    assert not dead.exists()
    assert other.exists()
    server.close()


def test_two_sockets_do_not_collide(folder):
    folder.mkdir(mode=0o700)
    pairs = [sockets.listen(folder) for _ in range(2)]
    assert sorted(path for _, path in pairs) == find_sockets(os.getpid())
    assert find_sockets(1) == []
    for one, _ in pairs:
        one.close()


@pytest.mark.skipif(
    not os.path.isdir('/proc/self/fd'), reason='needs the files of a process'
)
def test_a_path_can_be_longer_than_an_address(tmp_path, monkeypatch):
    folder = tmp_path / ('long' * 30) / ('path' * 30)
    folder.parent.mkdir()
    monkeypatch.setenv(sockets.VARIABLE, str(folder))
    server = ProbeServer({'hi': lambda request: 'hi'}, never)
    assert len(str(server.path)) > 200
    assert ask(server.path, 'hi') == 'hi'
    assert find_sockets() == [server.path]
    server.close()
