"""What the README and the docs show is run."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mmstable.cli.config_file import load_config
from mmstable.numerics.clip_settings import parse_clip_grad
from mmstable.numerics.scale_policy import ScalePolicy
from mmstable.registry import HOOKS, OPTIM_WRAPPERS
from tests.some_files import some_files
from tests.toys import Sabotage, toy_runner

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    path.relative_to(ROOT)
    for path in [*some_files(ROOT, '*.md'), *some_files(ROOT, 'docs/**/*.md')]
)
BASE = """
model = dict(type='Model')
optim_wrapper = dict(
    type='OptimWrapper', optimizer=dict(type='SGD', lr=0.1){more})
"""
# The second as the schedules of mmseg have it.
CLIPS = ['', ', clip_grad=None', ', clip_grad=dict(max_norm=1)']


def blocks(page, language='python'):
    text = (ROOT / page).read_text(encoding='utf-8')
    return re.findall(rf'```{language}\n(.*?)```', text, re.S)


def is_config(block):
    return block.startswith('# my_') or '_base_ = ' in block


CONFIGS = [(p, b) for p in PAGES for b in blocks(p) if is_config(b)]
SCRIPTS = [(p, b) for p in PAGES for b in blocks(p) if not is_config(b)]


def page_of(value):
    return str(value) if isinstance(value, Path) else ''


@pytest.mark.parametrize('clip', CLIPS)
@pytest.mark.parametrize(('page', 'block'), CONFIGS, ids=page_of)
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


@pytest.mark.parametrize(('page', 'block'), SCRIPTS, ids=page_of)
def test_scripts_print_what_they_say(tmp_path, event_file, page, block):
    for path in re.findall(r'[\w/]+/events.jsonl', block):
        (tmp_path / path).parent.mkdir(parents=True)
        shutil.copy(event_file, tmp_path / path)
    done = subprocess.run(
        [sys.executable, '-c', block],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    for line in re.findall(r'^# (.+)$', block, re.M):
        assert line in done.stdout


@pytest.mark.parametrize('page', PAGES, ids=page_of)
def test_links_lead_somewhere(page):
    text = (ROOT / page).read_text(encoding='utf-8')
    for target in re.findall(r'\]\(([^)#]+)\)', text):
        if not target.startswith('http'):
            assert (ROOT / page).parent.joinpath(target).exists(), target


def test_every_page_has_its_twin():
    english = {p.name for p in some_files(ROOT, 'docs/en/*.md')}
    chinese = {p.name for p in some_files(ROOT, 'docs/zh_cn/*.md')}
    assert english == chinese


def test_what_the_readme_promises_early():
    lines = (ROOT / 'README.md').read_text().splitlines()
    assert any('pip install mmstable' in line for line in lines[:25])
