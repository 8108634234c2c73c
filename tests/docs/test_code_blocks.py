"""What the README and the docs show is run."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from mmstable.cli.config import load_config
from mmstable.optim.clipping import parse_clip_grad
from mmstable.optim.loss_scale import ScalePolicy
from mmstable.registry import HOOKS, OPTIM_WRAPPERS
from tests.docs.pages import PAGES, blocks, page_id
from tests.preloaded import run_script
from tests.protection.healthy import stock_config
from tests.toys import Sabotage, toy_runner

BASE = """
model = dict(type='Model')
optim_wrapper = dict(
    type='OptimWrapper', optimizer=dict(type='SGD', lr=0.1){more})
"""
# The second as the schedules of mmseg have it.
CLIPS = ['', ', clip_grad=None', ', clip_grad=dict(max_norm=1)']


# The Chinese pages have the same code, see test_pages.py.
PYTHON = [
    (page, block.text)
    for page in PAGES
    for block in blocks(page)
    if block.language == 'python' and 'zh' not in str(page)
]


def is_config(block):
    return block.startswith('# my_') or '_base_ = ' in block


CONFIGS = [(page, text) for page, text in PYTHON if is_config(text)]
SCRIPTS = [(page, text) for page, text in PYTHON if not is_config(text)]


@pytest.mark.parametrize('clip', CLIPS)
@pytest.mark.parametrize(('page', 'block'), CONFIGS, ids=page_id)
def test_configs_load_and_name_what_exists(tmp_path, page, block, clip):
    (tmp_path / 'my_config.py').write_text(BASE.replace('{more}', clip))
    path = tmp_path / 'shown.py'
    path.write_text(block, encoding='utf-8')
    cfg = load_config(str(path))
    wrapper = cfg.optim_wrapper.type
    if wrapper.startswith('mmstable.'):
        assert OPTIM_WRAPPERS.get(wrapper.partition('.')[2]) is not None
        parse_clip_grad(cfg.optim_wrapper.get('clip_grad'))
        scale = cfg.optim_wrapper.get('loss_scale', 'dynamic')
        assert ScalePolicy.from_config(scale)
    for hook in cfg.get('custom_hooks', []):
        settings = dict(hook)
        assert HOOKS.get(settings.pop('type').partition('.')[2])(**settings)


@pytest.fixture(scope='module')
def event_file(tmp_path_factory):
    """What a run with a bad step leaves behind."""
    folder = tmp_path_factory.mktemp('run')
    hooks = [Sabotage(loss=[2]), dict(type='mmstable.EventLogHook')]
    runner = toy_runner(folder, max_iters=3, hooks=hooks)
    runner.train()
    return Path(runner.log_dir, 'stability', 'events.jsonl')


@pytest.mark.parametrize(('page', 'block'), SCRIPTS, ids=page_id)
def test_scripts_print_what_they_say(tmp_path, event_file, page, block):
    for path in re.findall(r'[\w/]+/events.jsonl', block):
        (tmp_path / path).parent.mkdir(parents=True)
        shutil.copy(event_file, tmp_path / path)
    if 'my_config.py' in block:
        stock_config().dump(tmp_path / 'my_config.py')
    code, printed = run_script(block, tmp_path)
    assert code == 0, printed
    for line in re.findall(r'^# (.+)$', block, re.M):
        assert line in printed
