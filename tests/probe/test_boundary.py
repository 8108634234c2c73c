"""Work for the thread that trains, and code that is run there."""

from __future__ import annotations

import json
import threading
import time
from contextlib import nullcontext

import pytest

from mmstable.probe.probing import Console
from mmstable.probe.run import Boundary


def test_a_job_waits_for_the_boundary():
    boundary, names = Boundary(), []
    job = boundary.post(lambda: names.append(threading.get_ident()) or 5)
    assert boundary.waiting
    assert not job.done()
    boundary.visit()
    assert job.done()
    assert (job.result(), names) == (5, [threading.get_ident()])
    assert not boundary.waiting


def test_a_job_that_was_cancelled_is_not_done():
    boundary, done = Boundary(), []
    job = boundary.post(lambda: done.append(1))
    assert job.cancel()
    boundary.visit()
    assert done == []


def test_an_error_goes_to_who_asked():
    boundary = Boundary()
    job = boundary.post(lambda: 1 / 0)
    boundary.visit()
    with pytest.raises(ZeroDivisionError, match='division'):
        job.result()


def interrupt():
    raise KeyboardInterrupt('by the user')


def test_an_interrupt_ends_the_training_and_the_wait():
    boundary = Boundary()
    job = boundary.post(interrupt)
    with pytest.raises(KeyboardInterrupt, match='by the user'):
        boundary.visit()
    assert job.done()


def test_after_the_end_everybody_gets_an_answer():
    boundary = Boundary()
    early = boundary.post(lambda: 1)
    boundary.close()
    late = boundary.post(lambda: 2)
    assert early.done() and late.done()
    assert (early.result(), late.result()) == (1, 2)


class Training(threading.Thread):
    """Comes to the end of a step now and then, or never."""

    def __init__(self, boundary: Boundary, steps: bool = True) -> None:
        super().__init__(daemon=True)
        self.boundary, self.steps, self.over = boundary, steps, False

    def run(self) -> None:
        while not self.over:
            time.sleep(0.01)
            if self.steps:
                self.boundary.visit()


@pytest.fixture
def push(request):
    boundary = Boundary()
    training = Training(boundary, getattr(request, 'param', True))
    training.start()
    names = dict(training=training, threading=threading)
    names['begun'], names['over'] = threading.Event(), threading.Event()
    # A thread may be late on a busy machine; one that never comes is not.
    patience = 60.0 if training.steps else 0.2
    console = Console(boundary, names, lambda code: nullcontext([]), patience)

    def push(code):
        return json.loads(console.push(code))

    push.names = names
    yield push
    names['over'].set()
    training.over = True


def test_code_runs_on_the_thread_that_trains(push):
    answer = push('threading.get_ident() == training.ident')
    assert answer == {'status': 'ok', 'output': 'True', 'traceback': []}


def test_a_lone_loop_runs_and_names_live_on(push):
    assert push('for i in range(3):\n    print(i)')['output'] == '0\n1\n2'
    assert push('i')['output'] == '2'
    assert push('j = i + 1')['output'] == ''
    assert push('print(j)\nj * 2')['output'] == '3\n6'


@pytest.mark.parametrize(
    ('code', 'error'),
    [
        ('1 / 0', 'ZeroDivisionError: division by zero'),
        ('if', 'SyntaxError'),
        ('exit()', 'SystemExit'),
        ('raise KeyboardInterrupt', 'KeyboardInterrupt'),
        ('print(1)\nnothing', "NameError: name 'nothing' is not defined"),
    ],
)
def test_bad_code_is_told_and_ends_nothing(push, code, error):
    answer = push(code)
    assert answer['status'] == 'error'
    assert error in '\n'.join(answer['traceback'])
    assert push('1 + 1')['output'] == '2'


@pytest.mark.parametrize('push', [False], indirect=True)
def test_code_for_a_run_that_hangs_runs_at_once_and_says_so(push):
    answer = push('print(threading.get_ident() == training.ident)')
    first, note = answer['output'].split('\n')
    assert first == 'False'
    assert note.startswith('[mmstable: no step ended within 0.2 s')


@pytest.mark.parametrize('push', [False], indirect=True)
def test_code_that_never_ends_blocks_nobody(push, capsys):
    threading.Thread(
        target=push, args=('begun.set()\nover.wait()',), daemon=True
    ).start()
    assert push.names['begun'].wait(60)
    print('of the training')
    assert 'of the training' in capsys.readouterr().out
    answer = push('1 + 1')
    assert answer['status'] == 'error'
    assert 'is still running' in answer['traceback'][0]


def test_a_long_answer_is_cut(push):
    assert len(push("'x' * 10**7")['output']) < 2**20 + 10
