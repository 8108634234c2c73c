"""The page on this machine, and only there."""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import sys
import threading
import time
from dataclasses import asdict, replace
from http.client import HTTPConnection
from pathlib import Path

import pytest

from mmstable.errors import UsageError
from mmstable.process_identity import ProcessIdentity
from mmstable.report.serve import make_server
from tests.report.event_files import end, header, heartbeat, write_run


@pytest.fixture
def server(tmp_path):
    write_run(tmp_path, heartbeat(50))
    with make_server([str(tmp_path)], 0) as made:
        thread = threading.Thread(target=made.serve_forever, daemon=True)
        thread.start()
        yield made
        made.shutdown()
        thread.join(10)


def ask(server, path='/', host=None):
    port = server.server_address[1]
    connection = HTTPConnection('127.0.0.1', port, timeout=30)
    headers = {'Host': host or f'127.0.0.1:{port}'}
    connection.request('GET', path, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.read(), answer.headers


def test_it_listens_on_this_machine_only(server):
    assert server.server_address[0] == '127.0.0.1'


def test_page_and_data(server):
    status, page, headers = ask(server)
    assert status == 200
    assert b'<!doctype html>' in page
    assert headers['X-Content-Type-Options'] == 'nosniff'
    assert json.loads(ask(server, '/data.json')[1])['works']


def test_news_change_the_stamp(server, tmp_path):
    before = json.loads(ask(server, '/data.json')[1])
    same = json.loads(ask(server, '/data.json')[1])
    write_run(tmp_path, heartbeat(50), end(60))
    after = json.loads(ask(server, '/data.json')[1])
    assert before['stamp'] == same['stamp'] != after['stamp']
    assert after['works'][0]['figures']['iterations'] == 60


def test_a_killed_process_changes_the_stamp(server, tmp_path):
    child = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=-1)
    own = ProcessIdentity.of_this_process()
    born = Path(f'/proc/{child.pid}/stat')
    if not born.exists():
        pytest.skip('this system does not tell when a process began')
    ticks = born.read_text().rpartition(')')[2].split()[19]
    process = asdict(replace(own, pid=child.pid, born=ticks))
    write_run(tmp_path, heartbeat(50), start=header(**process))
    before = json.loads(ask(server, '/data.json')[1])
    same = json.loads(ask(server, '/data.json')[1])
    child.kill()
    child.communicate()
    after = json.loads(ask(server, '/data.json')[1])
    assert before['works'][0]['figures']['state'] == 'running'
    assert before['stamp'] == same['stamp'] != after['stamp']
    assert after['works'][0]['figures']['state'] == 'killed'


@pytest.mark.parametrize('host', ['localhost', '127.0.0.1', 'localhost:1'])
def test_names_of_this_machine(server, host):
    # A browser leaves out port 80.
    assert ask(server, host=host)[0] == 200


@pytest.mark.parametrize('host', ['evil.example', 'evil.example:80', 'x:1:2'])
def test_other_names_are_refused(server, host):
    assert ask(server, host=host)[:2] == (403, b'forbidden')


@pytest.mark.parametrize('path', ['/../../etc/passwd', '/x', '/?a=1'])
def test_there_is_nothing_else(server, path):
    assert ask(server, path)[0] == 404


def test_a_folder_that_goes_away_is_told(server, tmp_path):
    (tmp_path / '20260101_120000/stability/events.jsonl').unlink()
    status, text, _ = ask(server)
    assert status == 503
    assert b'has no event file' in text


def test_a_port_that_is_taken(server, tmp_path):
    port = server.server_address[1]
    with pytest.raises(UsageError, match=f'cannot listen on port {port}'):
        make_server([str(tmp_path)], port)


def test_a_closed_tab_is_nothing_to_talk_about(server, tmp_path, capfd):
    # More than a socket takes in advance.
    names = [f'{i:05d}' * 100 for i in range(2000)]
    events = [
        dict(heartbeat(i), event='note', text=name)
        for i, name in enumerate(names)
    ]
    write_run(tmp_path, *events)
    with socket.create_connection(server.server_address) as tab:
        port = server.server_address[1]
        words = f'GET /data.json HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n'
        tab.sendall(words.encode())
        assert tab.recv(1)
        # Closed at once, with data on its way.
        tab.setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0)
        )
    assert ask(server)[0] == 200
    time.sleep(0.2)
    assert 'Traceback' not in capfd.readouterr().err
