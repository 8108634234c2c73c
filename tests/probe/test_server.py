"""The socket of a run, and those who mean it no good."""

from __future__ import annotations

import errno
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

from mmstable.probe import server as server_module
from mmstable.probe import server as sockets
from mmstable.probe.server import (
    LONGEST_REQUEST,
    ProbeError,
    ProbeServer,
    ask,
    connect,
    find_sockets,
)
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


def server_threads():
    return [t for t in threading.enumerate() if t.name == 'mmstable probe']


def test_nothing_is_left_behind(server, folder):
    server.close()
    assert list(folder.iterdir()) == []
    assert not server_threads()


@pytest.mark.parametrize(
    ('line', 'error'),
    [
        (b'\n', 'Expecting value'),
        (b'\x00\xff\xfe\n', "can't decode"),
        (b'[1, 2]\n', 'must be an object'),
        (
            b'{"command": "eval", "code": "1"}\n',
            'must be one of double',
        ),
        (b'{"command": ["double"]}\n', 'must be one of double'),
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
    monkeypatch.setattr(server_module, 'LONGEST_ANSWER', 200)
    with pytest.raises(ProbeError, match='the answer has 3.. bytes'):
        ask(server.path, 'double', number='x' * 150)


def clients():
    return [one for one in threading.enumerate() if 'request' in one.name]


def test_a_silent_client_is_dropped(server, monkeypatch):
    monkeypatch.setattr(server_module._Client, 'timeout', 0.2)
    with connect(server.path, 60.0) as silent:
        assert silent.recv(10) == b''
    assert ask(server.path, 'double', number=1) == 2


def test_other_users_are_turned_away(server, monkeypatch):
    monkeypatch.setattr(sockets, '_is_own', lambda connection: False)
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


def test_two_servers_do_not_collide(server, monkeypatch):
    # One in a process is enough, so the first one would be closed.
    monkeypatch.setattr(server_module, '_open', None)
    other = ProbeServer({}, never)
    assert sorted([server.path, other.path]) == find_sockets(os.getpid())
    assert find_sockets(1) == []
    other.close()


def test_the_end_does_not_wait_for_clients(server):
    with connect(server.path, 60.0) as silent:
        wait_until(clients)
        server.close()
        assert not server_threads()
        assert silent.fileno() >= 0


def test_the_end_of_the_run_ends_the_server(folder):
    over = threading.Event()
    ProbeServer({}, over.is_set)
    assert server_threads()
    over.set()
    wait_until(lambda: not server_threads())
    assert find_sockets() == []


def test_without_a_free_descriptor_it_waits(server, monkeypatch):
    asked = []

    def fail(self):
        asked.append(time.monotonic())
        raise OSError(errno.EMFILE, 'Too many open files')

    accept = socket.socket.accept
    monkeypatch.setattr(socket.socket, 'accept', fail)
    with connect(server.path, 60.0) as one:
        wait_until(lambda: len(asked) > 1)
        assert asked[1] - asked[0] >= server_module._INTERVAL_S
        monkeypatch.setattr(socket.socket, 'accept', accept)
        one.sendall(b'{"command": "double", "number": 4}\n')
        assert one.recv(100) == b'{"answer": 8}\n'


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
