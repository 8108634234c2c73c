"""What the memory presets save, and what they cost.

A small transformer and a CNN are trained as they are, and as each preset of
configs/_base_/memory would have it, with 16 samples in a step. Peak bytes of
tensors are counted by torch's MemTracker, on pictures of a real size and
tensors without data. Times are CPU times of whole steps on one core, on
smaller pictures, taken in turns.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from interleaved import Contender, Race, race
from mmengine.model import BaseModel
from results import DEFAULT_FOLDER, Row, publish
from torch import nn
from torch.nn import functional as F

from mmstable.memory.estimate import PRESETS, Preset, StepMeter, make_fake
from mmstable.messages import readable
from mmstable.oom.recompute import blocks_of, choose_modules, recomputed

SAMPLES = 16
# Side of the pictures whose bytes are counted.
SIDE = 224
PLAIN = Preset('as it is', None, 1)


class Block(nn.Module):
    """A block of a transformer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run it."""
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class Patches(nn.Module):
    """A picture as a sequence."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, width, 8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run it."""
        return self.conv(x).flatten(2).transpose(1, 2)


class Stage(nn.Module):
    """Two convolutions with BatchNorm."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for number, width in enumerate((inputs, outputs)):
            layers += [
                nn.Conv2d(width, outputs, 3, 1 + number, 1, bias=False),
                nn.BatchNorm2d(outputs),
                nn.ReLU(inplace=True),
            ]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run it."""
        return self.layers(x)


class Mean(nn.Module):
    """The mean over positions."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run it."""
        return x.mean(1) if x.dim() == 3 else x.mean((2, 3))


class Classifier(BaseModel):
    """A backbone and a linear layer."""

    def __init__(self, backbone: nn.Module, width: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = nn.Sequential(Mean(), nn.Linear(width, 100))

    def forward(
        self, inputs: torch.Tensor, labels: torch.Tensor, mode: str = 'tensor'
    ) -> Any:
        """Run it."""
        outputs = self.head(self.backbone(inputs))
        if mode == 'loss':
            return dict(loss=F.cross_entropy(outputs.float(), labels))
        return outputs


def transformer(width: int = 192, depth: int = 8) -> Classifier:
    blocks = [Block(width) for _ in range(depth)]
    return Classifier(nn.Sequential(Patches(width), *blocks), width)


def cnn() -> Classifier:
    widths = [3, 32, 64, 128, 256]
    stages = [Stage(a, b) for a, b in zip(widths, widths[1:])]
    return Classifier(nn.Sequential(*stages), widths[-1])


MODELS: dict[str, Callable[[], Classifier]] = {
    'transformer': transformer,
    'CNN': cnn,
}


def batch_of(size: int, side: int) -> dict[str, torch.Tensor]:
    return dict(
        inputs=torch.randn(size, 3, side, side),
        labels=torch.randint(100, (size,)),
    )


class Trainer:
    """Trains a model as a preset says.

    Args:
        build (Callable): Gives the model.
        preset (Preset): The preset.
        side (int): Side of a picture.
        is_fake (bool): Whether tensors hold no data. Defaults to False.
    """

    def __init__(
        self,
        build: Callable[[], Classifier],
        preset: Preset,
        side: int,
        is_fake: bool = False,
    ) -> None:
        torch.manual_seed(0)
        self.model, self.preset = build(), preset
        self.mode = make_fake(self.model) if is_fake else None
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.dtype = preset.dtype and getattr(torch, preset.dtype)
        self.batch = batch_of(SAMPLES // preset.accumulation, side)
        blocks = [
            block
            for one in choose_modules(self.model, None, '').values()
            for block in blocks_of(one)
        ]
        # Left open, and kept: it would end with the object.
        self.recomputed = recomputed(
            blocks if preset.name != PLAIN.name else []
        )
        self.recomputed.__enter__()

    def step(self) -> None:
        """One step, of all its batches."""
        for _ in range(self.preset.accumulation):
            with torch.autocast('cpu', self.dtype, self.dtype is not None):
                loss = self.model(**self.batch, mode='loss')['loss']
            (loss / self.preset.accumulation).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def peak(self) -> int:
        """The most bytes of tensors in a step."""
        meter = StepMeter(self.model, self.optimizer, self.mode, self.dtype)
        waits = self.preset.accumulation > 1
        return meter.measure(self.batch, waits).total


def compare(name: str, side: int, rounds: int) -> tuple[list[Row], Race]:
    """Bytes and times of a model with all presets."""
    build, all_presets = MODELS[name], (PLAIN, *PRESETS)
    peaks = {
        preset.name: Trainer(build, preset, SIDE, is_fake=True).peak()
        for preset in all_presets
    }
    trainers = [Trainer(build, preset, side) for preset in all_presets]
    result = race(
        [Contender(one.preset.name, one.step) for one in trainers],
        rounds,
        warmup=1,
        clock=time.process_time,
    )
    rows = []
    for preset in PRESETS:
        rows += _rows(name, preset, peaks, result)
    return rows, result


def _rows(
    name: str, preset: Preset, peaks: dict[str, int], result: Race
) -> list[Row]:
    key, base = preset.name, PLAIN.name
    size = SAMPLES // preset.accumulation
    case = f'{name}, {key}: {size} x {preset.accumulation}'
    return [
        Row(
            case=case,
            what='peak bytes of tensors / as it is',
            value=peaks[key] / peaks[base],
            note=f'{readable(peaks[key])} / {readable(peaks[base])}',
        ),
        Row(
            case=case,
            what='CPU time of a step / as it is',
            value=result.ratio(key, base),
            best=result.best_ratio(key, base),
            noise=result.noise,
            note=f'{1e3 * result.median(key):.0f} ms / '
            f'{1e3 * result.median(base):.0f} ms',
        ),
    ]


def main() -> None:
    """Print the table, and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--quick', action='store_true', help='does it run?')
    parser.add_argument(
        '--json', type=Path, default=DEFAULT_FOLDER / 'memory_presets.json'
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    side, rounds = (32, 1) if args.quick else (64, 5)
    rows: list[Row] = []
    races = {}
    for name in MODELS:
        found, result = compare(name, side, rounds)
        rows += found
        races[name] = result.as_dict()
    publish(args.json, rows, races)


if __name__ == '__main__':
    main()
