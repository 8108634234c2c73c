"""Which class does a config string mean, before mmstable is imported?"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.preloaded import ROOT, Preloaded

BUILD = """
import torch
from mmengine.optim import build_optim_wrapper
from mmengine.registry import DefaultScope, init_default_scope

def build(kind):
    cfg = dict(type=kind, optimizer=dict(type='SGD', lr=0.1))
    return type(build_optim_wrapper(torch.nn.Linear(1, 1), cfg))
"""
FOREIGN = """
from mmengine.optim import OptimWrapper
from mmengine.registry import OPTIM_WRAPPERS

@OPTIM_WRAPPERS.register_module()
class SafeAmpOptimWrapper(OptimWrapper):
    pass
"""
OTHER_SCOPE = """
from mmengine import registry
OTHER = registry.Registry(
    'optim_wrapper', parent=registry.OPTIM_WRAPPERS, scope='other',
    locations=['other'])
"""


def run(folder: Path, code: str) -> str:
    words = [code] if code.endswith('.py') else ['-c', BUILD + code]
    env = {**os.environ, 'PYTHONPATH': f'{folder}:{ROOT}'}
    process = Preloaded(words, folder, env, subprocess.STDOUT)
    output, __ = process.communicate(timeout=100)
    assert process.returncode == 0, output
    return output


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    other = tmp_path / 'other'
    other.mkdir()
    (other / '__init__.py').touch()
    (other / 'registry.py').write_text(OTHER_SCOPE)
    (tmp_path / 'bare.py').write_text(
        "custom_imports = dict(imports=['mmstable'])\n"
    )
    return tmp_path


def test_scoped_name_needs_no_import(folder: Path) -> None:
    code = """
import sys
for scope in ('mmengine', 'other'):
    init_default_scope(scope)
    for name in ('SafeOptimWrapper', 'SafeAmpOptimWrapper'):
        found = build(f'mmstable.{name}')
        print(found.__module__.split('.')[0], found.__name__)
"""
    output = run(folder, code)
    assert output.count('mmstable SafeOptimWrapper') == 2
    assert output.count('mmstable SafeAmpOptimWrapper') == 2


def test_bare_name_works_in_every_scope(folder: Path) -> None:
    code = """
from mmengine.config import Config
Config.fromfile('bare.py')
for scope in ('mmengine', 'other'):
    init_default_scope(scope)
    print(build('SafeOptimWrapper'), build('SafeAmpOptimWrapper'))
"""
    output = run(folder, code)
    assert output.count('mmstable.optim.wrapper.SafeOptimWrapper') == 2
    assert output.count('mmstable.optim.wrapper.SafeAmpOptimWrapper') == 2
    assert 'already registered' not in output


def test_foreign_class_of_that_name_is_left_alone(folder: Path) -> None:
    code = """
from mmengine.config import Config
Config.fromfile('bare.py')
init_default_scope('mmengine')
print('bare', build('SafeAmpOptimWrapper').__module__)
print('scoped', build('mmstable.SafeAmpOptimWrapper').__module__)
"""
    output = run(folder, FOREIGN + code)
    assert 'bare __main__' in output
    assert 'scoped mmstable.optim.wrapper' in output
    assert (
        "'SafeAmpOptimWrapper' is already registered in mmengine by __main__, "
        "and stays so. Write type='mmstable.SafeAmpOptimWrapper'"
    ) in output


OWN_HOOK = """
from mmengine.hooks import Hook
from mmengine.registry import HOOKS

@HOOKS.register_module()
class AnotherHook(Hook):
    pass

@HOOKS.register_module()
class EventLogHook(Hook):
    pass
"""


def test_a_command_leaves_bare_names_to_the_config(folder: Path) -> None:
    (folder / 'own.py').write_text(OWN_HOOK)
    (folder / 'config.py').write_text(
        "custom_imports = dict(imports=['own'])\n"
        "custom_hooks = [dict(type='EventLogHook')]\n"
    )
    # As the script `mmstable` does.
    (folder / 'program.py').write_text("""
import mmstable_command
from mmstable import register_all
register_all()
from mmengine.registry import HOOKS
print("before", HOOKS.module_dict.get("EventLogHook"))
from mmstable.cli.config import load_config
from mmstable.protection import find_changes
from mmstable.cli.config import plain_settings

cfg = load_config('config.py')
print('bare', HOOKS.get('EventLogHook').__module__)
print('scoped', HOOKS.get('mmstable.EventLogHook').__module__)
print('other', HOOKS.get('SafeCheckpointHook').__module__)
added = [one.value for one in find_changes(plain_settings(cfg)).changes]
print(dict(type='mmstable.EventLogHook') in added)
""")
    output = run(folder, 'program.py')
    assert 'before None\n' in output
    assert 'bare own\n' in output
    assert 'scoped mmstable.hooks.event_log_hook\n' in output
    assert 'other mmstable.hooks.safe_checkpoint_hook\n' in output
    assert 'True\n' in output
    assert "'EventLogHook' is already registered in mmengine by own" in output


def test_public_names() -> None:
    import mmstable

    assert {
        'Culprit',
        'Fault',
        'Outcome',
        'SafeAmpOptimWrapper',
        'SafeOptimWrapper',
        'StepReport',
        'config_path',
    } <= set(mmstable.__all__)
    assert all(hasattr(mmstable, name) for name in mmstable.__all__)


def test_config_path_suggests_near_names() -> None:
    import mmstable

    with pytest.raises(
        FileNotFoundError,
        match="no config '_base_/loss_scale/fp16_1023.py'. Did you mean "
        '_base_/loss_scale/fp16_1024.py',
    ):
        mmstable.config_path('_base_/loss_scale/fp16_1023.py')
