"""Processes that show the outside of mmstable."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from tests.preloaded import run_script

ROOT = Path(__file__).resolve().parents[2]
# Of mmengine's own classes: `mmstable train` protects them. Whatever looks at
# the clock or the memory of the machine is told to stay silent.
CONFIG = """
custom_imports = dict(imports=['tests.golden.toy_project'])
model = dict(type='ToyModel')
train_dataloader = dict(
    batch_size=2,
    num_workers=0,
    dataset=dict(type='SpoiledData'),
    sampler=dict(type='InfiniteSampler', shuffle=False),
    collate_fn=dict(type='default_collate'))
train_cfg = dict(type='IterBasedTrainLoop', max_iters=12)
optim_wrapper = dict(
    type='AmpOptimWrapper',
    loss_scale=dict(init_scale=64.0),
    clip_grad=dict(max_norm=35.0),
    optimizer=dict(type='SGD', lr=0.01, momentum=0.9))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.5, by_epoch=False, end=12)]
default_hooks = dict(
    logger=dict(type='LoggerHook', interval=1),
    checkpoint=dict(type='CheckpointHook', interval=4, by_epoch=False))
custom_hooks = [
    dict(type='EMAHook'),
    dict(type='mmstable.EventLogHook', interval=4, report=False),
    dict(type='mmstable.HangWatchdogHook', min_limit=1e6, rare_limit=1e6),
    dict(type='mmstable.MemoryGuardHook', interval=1e6),
    # Not by the time that it takes.
    dict(type='mmstable.DivergenceGuardHook', snapshot_interval=50),
    dict(type='mmstable.FaultForensicsHook', max_seconds=1e6),
    dict(type='mmstable.FaultInjectorHook', enabled=True, faults=[
        dict(kind='nan_grad', param='net.head.weight', at=2),
        dict(kind='nan_loss', at=3),
        dict(kind='inf_grad', param='net.head.bias', at=5),
        dict(kind='oom', at=6),
        dict(kind='nan_input', at=7),
        dict(kind='nan_weight', param='net.head.weight', at=9),
        dict(kind='exception', at=11)])]
log_processor = dict(by_epoch=False)
randomness = dict(seed=0)
"""
TRAIN = """
import os
import sys
os.environ['CUDA_VISIBLE_DEVICES'] = ''
words = ['train', 'config.py', '--work-dir', 'work', *{words}]
# It is in the commands that a run tells.
sys.argv = ['mmstable', *words]
from tests.golden.outside import run_command
sys.exit(run_command(words))
"""
EXITS = """
import json
from tests.golden.outside import run_command
codes = [run_command(words) for words in {lines}]
with open('exits.json', 'w') as file:
    json.dump(codes, file)
"""


class Outside:
    """What processes have shown; each is run once, and only if needed.

    Args:
        folder: Where they leave their files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def fresh_import(self) -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, '-m', 'tests.golden.fresh_import'],
            env={**os.environ, 'PYTHONPATH': str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    @cache  # noqa: B019
    def run(self, lang: str) -> Path:
        """The folder of a run that fails and is resumed."""
        folder = self.folder / lang
        folder.mkdir()
        (folder / 'config.py').write_text(CONFIG)
        for words, code in (([], 1), (['--resume'], 0)):
            text = TRAIN.format(words=[*words, '--lang', lang])
            found, printed = run_script(text, folder)
            assert found == code, printed
            with (folder / 'all_printed').open('a', encoding='utf-8') as file:
                file.write(printed)
            # Runs of one second would share their log folder.
            while (folder / 'work' / time.strftime('%Y%m%d_%H%M%S')).exists():
                time.sleep(0.05)
        return folder

    def exit_codes(self, lines: list[list[str]]) -> list[int]:
        """Of several command lines, one after the other."""
        folder = self.folder / 'exits'
        folder.mkdir()
        code, printed = run_script(EXITS.format(lines=lines), folder)
        assert code == 0, printed
        return json.loads((folder / 'exits.json').read_text())
