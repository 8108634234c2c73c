"""Train under a real limit of the address space; run as a script.

    python limited_run.py FOLDER EXTRA_MIB

It leaves ``events.json`` and ``weights.pt`` in the folder.
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

import torch
from mmengine.hooks import Hook
from torch import nn
from torch.utils.data import DataLoader

from tests.memory.scenes import SceneNet, Scenes, scene_run

WIDTH, SIDE, BATCH = 32, 64, 32


class Wide(SceneNet):
    """Whole batches take some hundred MiB of activations."""

    def __init__(self):
        super().__init__(loss='ignore_index')
        torch.manual_seed(0)
        layers: list[nn.Module] = [nn.Conv2d(3, WIDTH, 3, padding=1)]
        for _ in range(4):
            layers += [nn.GroupNorm(4, WIDTH), nn.GELU()]
            layers += [nn.Conv2d(WIDTH, WIDTH, 3, padding=1)]
        self.limit = self.limited
        self.backbone = nn.Sequential(*layers)
        self.head = nn.Conv2d(WIDTH, 5, 1)

    @property
    def limited(self):
        return self._modules.get('limit') or self.backbone[3]


class AddressSpace(Hook):
    """Leaves some MiB from the second iteration on."""

    def __init__(self, extra: int) -> None:
        self.extra = extra

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if runner.iter == 1 and self.extra:
            status = Path('/proc/self/status').read_text()
            (line,) = [x for x in status.splitlines() if 'VmSize' in x]
            now = int(line.split()[1]) * 1024
            limit = now + self.extra * 2**20
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def train(folder: str, extra: int) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    runner, hook = scene_run(
        folder,
        model=Wide(),
        train_dataloader=DataLoader(Scenes(2 * BATCH, SIDE), BATCH),
        hooks=(AddressSpace(extra),),
        max_iters=2,
        default_hooks=dict(checkpoint=None),
    )
    torch.set_num_threads(threads)
    flat = [p.detach().flatten() for p in runner.model.parameters()]
    torch.save(torch.cat(flat), Path(folder, 'weights.pt'))
    events = [(e.iteration, e.rung, e.gradients) for e in hook.events]
    Path(folder, 'events.json').write_text(json.dumps(events))


if __name__ == '__main__':
    train(sys.argv[1], int(sys.argv[2]))
