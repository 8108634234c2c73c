"""Secrets of a command line stay out of what a run leaves behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mmstable.cli.main import main

pytestmark = pytest.mark.usefixtures('in_project')
SECRET = 'correct-horse'
FAULT = f"""
_base_ = './config.py'
custom_imports = dict(imports=['toy_tool_project', 'tracking_hook'])
custom_hooks = [
    dict(type='TrackingHook', api_key='{SECRET}'),
    dict(
        type='mmstable.FaultInjectorHook', enabled=True,
        faults=[dict(kind='nan_weight', param='head.bias', at=2)],
    ),
]
"""
HOOK = """
from mmengine.hooks import Hook
from mmengine.registry import HOOKS


@HOOKS.register_module()
class TrackingHook(Hook):
    def __init__(self, api_key):
        assert api_key != '***'
"""
OPTIONS = (
    f'env_cfg.api_key={SECRET}',
    f'env_cfg.init_kwargs.token={SECRET}',
    'env_cfg.num_keys=3',
)


def leaves_no_secret(folder: Path) -> list[Path]:
    """What mmstable has written; mmengine writes the config itself."""
    own = [p for p in folder.rglob('stability/**/*') if p.is_file()]
    for path in own:
        assert SECRET.encode() not in path.read_bytes(), path
    return own


def test_secrets_of_a_config(tmp_path: Path, project: Path) -> None:
    (project / 'fault.py').write_text(FAULT)
    (project / 'tracking_hook.py').write_text(HOOK)
    main(['train', 'fault.py', '--work-dir', str(tmp_path)])
    own = leaves_no_secret(tmp_path)
    (config,) = (p for p in own if p.name == 'config.py')
    assert "api_key='***'" in config.read_text()
    (events,) = (p for p in own if p.name == 'events.jsonl')
    first = json.loads(events.read_text().splitlines()[0])
    assert first['custom_hooks'][0]['api_key'] == '***'


def test_what_a_run_leaves_behind(tmp_path: Path, capsys) -> None:
    words = ['train', 'config.py', '--work-dir', str(tmp_path)]
    with pytest.raises(RuntimeError, match='a fault in the model'):
        main([*words, '--cfg-options', *OPTIONS, 'model.fail=True'])
    err = capsys.readouterr().err
    (events,) = tmp_path.rglob('events.jsonl')
    first = json.loads(events.read_text().splitlines()[0])
    assert "'env_cfg.api_key=***'" in first['resume_command']
    assert 'env_cfg.num_keys=3' in first['resume_command']
    assert 'the command line has secrets' in err
    assert events in leaves_no_secret(tmp_path)
    assert main(['report', str(tmp_path), '-o', str(tmp_path / 'r.html')]) == 0
    assert SECRET not in (tmp_path / 'r.html').read_text()


@pytest.mark.parametrize(
    'words',
    [
        ['--cfg-options', f'env_cfg.api_key=[{SECRET},('],
        [f'--api-key={SECRET}'],
        ['--max-restarts', '1', '--launcher', 'pytorch']
        + ['--cfg-options', f'env_cfg.api_key={SECRET}'],
    ],
)
def test_a_command_line_that_is_refused(words, capsys) -> None:
    assert main(['train', 'config.py', *words]) == 2
    err = capsys.readouterr().err
    assert SECRET not in err, err
