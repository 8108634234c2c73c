"""Whether a process lives, and whether it is the one that is meant."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from mmstable.io.process import ProcessIdentity, is_alive
from tests.patience import wait_until


def test_this_process_lives():
    own = ProcessIdentity.of_this_process()
    assert own.pid == os.getpid()
    assert own.can_be_asked()
    assert own.is_alive()


@pytest.mark.parametrize('change', [dict(host='other'), dict(space='other')])
def test_a_process_elsewhere_cannot_be_asked(change):
    own = ProcessIdentity.of_this_process()
    assert not replace(own, **change).can_be_asked()


def test_another_process_with_the_same_number_is_not_meant():
    own = ProcessIdentity.of_this_process()
    if not own.born:
        pytest.skip('this system does not tell when a process began')
    assert not replace(own, born='1').is_alive()


@pytest.mark.skipif(
    not Path('/proc/self/stat').exists(),
    reason='this system does not tell the state of a process',
)
def test_a_dead_process_that_nobody_has_waited_for_is_dead():
    # As a process that trained is left in a container without an init.
    child = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=-1)
    assert is_alive(child.pid)
    child.kill()
    wait_until(lambda: not is_alive(child.pid))
    assert child.returncode is None
    assert not is_alive(child.pid)
    child.communicate()
    assert not is_alive(child.pid)
