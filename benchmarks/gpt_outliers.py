"""A tiny GPT with planted outliers: clipping and mmstable side by side.

Two kinds of outliers are planted, in runs of their own: batches of noise with
a loss 300 times as large, which are the same when they are repeated, and
gradients times 1000, which are not. ZClip (arXiv 2504.02507) and AdaGC (arXiv
2502.11034) are written after their papers, in a few lines each. The spike
score is the percentage of losses more than seven deviations above the mean of
the last 100 (batches of noise themselves left out).
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.registry import DATASETS, HOOKS, MODELS
from mmengine.runner import Runner
from protocols import _Notes
from torch import Tensor, nn
from torch.utils.data import Dataset

from mmstable.protection import apply_changes, find_changes

WORDS, LENGTH, WIDTH = 48, 32, 64


@DATASETS.register_module()
class MarkovText(Dataset):
    """Sequences of a random chain: each word has three successors."""

    def __init__(self) -> None:
        draw = torch.Generator().manual_seed(3)
        likely = torch.randint(WORDS, (WORDS, 3), generator=draw)
        text = torch.zeros(4096, LENGTH + 1, dtype=torch.long)
        text[:, 0] = torch.randint(WORDS, (4096,), generator=draw)
        pick = torch.randint(3, (4096, LENGTH + 1), generator=draw)
        for place in range(1, LENGTH + 1):
            text[:, place] = likely[text[:, place - 1], pick[:, place]]
        self.text = text

    def __len__(self) -> int:
        return len(self.text)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return dict(inputs=self.text[index])


@MODELS.register_module()
class TinyGpt(BaseModel):
    """Two blocks of attention over words and places."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            WIDTH, 4, 2 * WIDTH, 0.0, batch_first=True, norm_first=True
        )
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Parameter(torch.zeros(LENGTH, WIDTH))
        self.blocks = nn.TransformerEncoder(
            layer, 2, enable_nested_tensor=False
        )
        self.head = nn.Linear(WIDTH, WORDS)
        mask = torch.full((LENGTH, LENGTH), -math.inf).triu(1)
        self.register_buffer('mask', mask, persistent=False)

    def forward(self, inputs: Tensor, mode: str = 'tensor') -> Any:
        """Return the loss of the next words."""
        before, after = inputs[:, :-1], inputs[:, 1:]
        features = self.words(before) + self.places
        logits = self.head(self.blocks(features, mask=self.mask))
        loss = F.cross_entropy(logits.flatten(0, 1), after.flatten())
        # A batch of noise is marked by equal first words.
        is_noise = (inputs[:, 0] == inputs[0, 0]).all()
        return dict(loss=loss * (300.0 if is_noise else 1.0))


@HOOKS.register_module()
class PlantOutliers(Hook):
    """Makes some batches noise, and some gradients a thousand times larger.

    Args:
        noise (list[int]): Iterations whose batch is noise.
        faults (list[int]): Iterations whose gradients are enlarged, once.
    """

    priority = 'VERY_HIGH'

    def __init__(self, noise: list[int], faults: list[int]) -> None:
        self.noise, self.faults = set(noise), set(faults)

    def before_train_iter(
        self, runner: Any, batch_idx: int, data_batch: Any = None
    ) -> None:
        """Plant what is due in this iteration."""
        now = runner.iter + 1
        if now in self.noise:
            draw = torch.Generator().manual_seed(now)
            text = data_batch['inputs']
            text[:] = torch.randint(WORDS, text.shape, generator=draw)
            text[:, 0] = 0
        if now in self.faults:
            for param in runner.model.parameters():
                _enlarge_once(param)


def _enlarge_once(param: Tensor) -> None:
    def enlarge(grad: Tensor) -> Tensor:
        handle.remove()
        return grad * 1000.0

    handle = param.register_hook(enlarge)


class _Clipping(Hook):
    """Clips right before the optimizer, by a rule."""

    def __init__(self, rule: Callable[[list[Tensor]], None]) -> None:
        self._rule = rule

    def before_train(self, runner: Any) -> None:
        params = list(runner.model.parameters())
        optimizer = runner.optim_wrapper.optimizer
        optimizer.register_step_pre_hook(
            lambda *args: self._rule([p.grad for p in params])
        )


class ZClip:
    """Clips a norm that is 2.5 deviations above its average (EMA, 0.97)."""

    def __init__(self) -> None:
        self._seen: list[float] = []
        self._mean = self._variance = 0.0

    def __call__(self, grads: list[Tensor]) -> None:
        """Clip gradients in place."""
        norm = float(torch.stack([one.norm() for one in grads]).norm())
        if len(self._seen) < 25:
            self._seen.append(norm)
            self._mean = statistics.fmean(self._seen)
            self._variance = statistics.pvariance(self._seen)
            return
        deviation = math.sqrt(self._variance) + 1e-6
        height = (norm - self._mean) / deviation
        if height > 2.5:
            # The reciprocal rule of the paper: z* = z_thres ** 2 / z.
            target = self._mean + 2.5**2 / height * deviation
            for one in grads:
                one.mul_(target / norm)
            norm = target
        self._mean = 0.97 * self._mean + 0.03 * norm
        self._variance = 0.97 * self._variance + 0.03 * (
            (norm - self._mean) ** 2
        )


class AdaGc:
    """Clips each tensor to 1.05 times the average of its norm (EMA, 0.98)."""

    def __init__(self) -> None:
        self._averages: list[float] = []
        self._steps = 0

    def __call__(self, grads: list[Tensor]) -> None:
        """Clip gradients in place."""
        self._steps += 1
        norms = [float(one.norm()) for one in grads]
        if self._steps <= 100:
            # Global clipping at first; the smallest norms are kept.
            total = math.sqrt(sum(one * one for one in norms))
            factor = min(1.0, 1.0 / (total + 1e-6))
            for one in grads:
                one.mul_(factor)
            norms = [one * factor for one in norms]
            before = self._averages or norms
            self._averages = [min(*pair) for pair in zip(before, norms)]
            return
        for index, (one, norm) in enumerate(zip(grads, norms)):
            limit = 1.05 * self._averages[index]
            if norm > limit:
                one.mul_(limit / (norm + 1e-12))
            kept = min(norm, limit)
            self._averages[index] = 0.98 * self._averages[index] + 0.02 * kept


METHODS = ('none', 'clip 1.0', 'ZClip', 'AdaGC', 'mmstable default')


def run(
    method: str, kind: str, iterations: int, seed: int
) -> tuple[float, float]:
    """Train, and return the spike score and the final loss.

    Args:
        method (str): One of :data:`METHODS`.
        kind (str): 'noise', 'faults' or 'nothing'.
        iterations (int): The length of the run.
        seed (int): Of all random numbers.
    """
    planted = list(range(120, iterations - 40, 60))
    noise = planted if kind == 'noise' else []
    faults = planted if kind == 'faults' else []
    wrapper: dict[str, Any] = dict(
        type='OptimWrapper', optimizer=dict(type='AdamW', lr=3e-3)
    )
    if method == 'clip 1.0':
        wrapper['clip_grad'] = dict(max_norm=1.0)
    config = Config(
        dict(
            model=dict(type='TinyGpt'),
            train_dataloader=dict(
                batch_size=16,
                num_workers=0,
                dataset=dict(type='MarkovText'),
                sampler=dict(type='InfiniteSampler', seed=seed),
                collate_fn=dict(type='default_collate'),
            ),
            train_cfg=dict(
                by_epoch=False, max_iters=iterations, val_interval=10**9
            ),
            optim_wrapper=wrapper,
            randomness=dict(seed=seed),
            default_scope='mmengine',
            log_level='CRITICAL',
            default_hooks=dict(checkpoint=None, logger=None),
            custom_hooks=[
                dict(type='PlantOutliers', noise=noise, faults=faults)
            ],
        )
    )
    if method == 'mmstable default':
        found = find_changes(config._cfg_dict.to_dict(), 'default')
        apply_changes(config._cfg_dict, found.changes)
    with tempfile.TemporaryDirectory() as folder:
        config.work_dir = folder
        name = f'gpt_{method}_{kind}_{seed}'
        config.experiment_name = name.replace(' ', '_')
        runner, notes = Runner.from_cfg(config), _Notes()
        runner.register_hook(notes)
        rules: dict[str, Any] = {'ZClip': ZClip, 'AdaGC': AdaGc}
        if method in rules:
            runner.register_hook(_Clipping(rules[method]()))
        runner.train()
    losses = [one for i, one in enumerate(notes.losses, 1) if i not in noise]
    return spike_score(losses), statistics.fmean(losses[-50:])


def spike_score(losses: list[float], window: int = 100) -> float:
    """The percentage of losses seven deviations above the recent mean."""
    spikes = 0
    for place in range(window, len(losses)):
        recent = losses[place - window : place]
        limit = statistics.fmean(recent) + 7 * statistics.pstdev(recent)
        spikes += losses[place] > limit
    return 100 * spikes / (len(losses) - window)


def main() -> None:
    """Print one line for each method."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--iterations', type=int, default=800)
    parser.add_argument('--seeds', type=int, default=3)
    args = parser.parse_args()
    for kind in ('nothing', 'faults', 'noise'):
        print(f'planted: {kind}')
        for method in METHODS:
            found = [
                run(method, kind, args.iterations, seed)
                for seed in range(args.seeds)
            ]
            score = statistics.fmean(one[0] for one in found)
            final = [one[1] for one in found]
            print(
                f'  {method:18} spike score {score:6.3f} %   final loss '
                f'{statistics.fmean(final):.3f} ({min(final):.3f} to '
                f'{max(final):.3f})',
                flush=True,
            )


if __name__ == '__main__':
    main()
