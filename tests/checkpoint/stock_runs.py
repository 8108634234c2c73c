"""Runs of mmengine alone, whose checkpoints hold all that mmengine saves.

Nothing of mmstable is imported here, so that a script can write checkpoints
as somebody without it has them.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.config import Config, ConfigDict
from mmengine.dataset import InfiniteSampler
from mmengine.evaluator import BaseMetric, Evaluator
from mmengine.optim import OptimWrapper
from mmengine.runner import Runner
from torch.utils.data import DataLoader

from tests.toys import ToyData, ToyModel

ITERATIONS, SAVED_AT = 8, 4
_RUNS = itertools.count()


class ToyDataWithFacts(ToyData):
    """Says of itself what data sets of mmseg say."""

    def __init__(self) -> None:
        super().__init__()
        self.metainfo = dict(
            classes=('road', 'sky'),
            palette=np.array([[128, 64, 128], [70, 130, 180]], np.uint8),
            label_map=ConfigDict({'a': [1, ConfigDict(b=(2, 3))]}),
            weights=[np.float32(0.5), np.float64(1.5), np.int64(2)],
        )


class ScaledOptimWrapper(OptimWrapper):
    """Saves the state of a loss scaler, as ``AmpOptimWrapper`` does."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.scaler = dict(
            scale=65536.0, growth_factor=2.0, backoff_factor=0.5,
            growth_interval=2000, _growth_tracker=0,
        )  # fmt: skip

    def step(self, **kwargs: Any) -> None:
        super().step(**kwargs)
        self.scaler['_growth_tracker'] += 1

    def state_dict(self) -> dict:
        return dict(super().state_dict(), loss_scaler=dict(self.scaler))

    def load_state_dict(self, state_dict: dict) -> None:
        self.scaler = state_dict.pop('loss_scaler')
        super().load_state_dict(state_dict)


class Distance(BaseMetric):
    """A score of numpy's type, which becomes better by training."""

    def process(self, data_batch: Any, data_samples: Any) -> None:
        for output, target in zip(data_samples, data_batch['targets']):
            self.results.append(float((output - target).square().mean()))

    def compute_metrics(self, results: list[float]) -> dict[str, Any]:
        return dict(score=-np.mean(results))


class PredictingModel(ToyModel):
    """Gives one output for each sample."""

    def forward(self, inputs, targets, mode='tensor'):
        outputs = super().forward(inputs, targets, mode)
        return list(outputs) if mode == 'predict' else outputs


def stock_runner(work_dir: Path | str, **kwargs: Any) -> Runner:
    """EMA, OneCycleLR, the best checkpoint and a loss scaler, all stock."""
    torch.manual_seed(0)
    data, model = ToyDataWithFacts(), PredictingModel()
    settings = dict(
        model=model,
        work_dir=str(work_dir),
        train_dataloader=DataLoader(
            data, batch_size=2, sampler=InfiniteSampler(data, shuffle=False)
        ),
        val_dataloader=DataLoader(data, batch_size=2),
        val_evaluator=Evaluator(Distance()),
        val_cfg=dict(),
        train_cfg=dict(by_epoch=False, max_iters=ITERATIONS, val_interval=2),
        optim_wrapper=ScaledOptimWrapper(
            optimizer=torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        ),
        param_scheduler=dict(
            type='OneCycleLR', eta_max=0.1, total_steps=ITERATIONS,
            by_epoch=False,
        ),
        custom_hooks=[dict(type='EMAHook', momentum=0.1)],
        default_hooks=dict(
            checkpoint=dict(
                type='CheckpointHook', by_epoch=False, interval=2,
                save_best='score', rule='greater', max_keep_ckpts=4,
            ),
            logger=dict(type='LoggerHook', interval=1),
        ),
        randomness=dict(seed=0),
        log_level='ERROR',
        experiment_name=f'stock_{next(_RUNS)}',
        cfg=Config(dict()),
    )  # fmt: skip
    settings.update(kwargs)
    return Runner(**settings)


def end_state(runner: Runner) -> dict[str, Any]:
    """What a resumed run must have in common with one that was not."""
    (ema,) = [h for h in runner.hooks if type(h).__name__ == 'EMAHook']
    history = runner.message_hub.get_scalar('train/loss')
    return dict(
        model=runner.model.state_dict(),
        ema=ema.ema_model.state_dict(),
        optimizer=runner.optim_wrapper.state_dict(),
        schedule=runner.param_schedulers[0].state_dict(),
        losses=torch.from_numpy(np.array(history.data[0])),
        best=float(runner.message_hub.get_info('best_score')),
        kept=runner.message_hub.get_info('keep_ckpt_ids'),
    )


def mmcv1_checkpoint() -> dict[str, Any]:
    """What mmcv 1.x saved, with tensors of unusual kinds."""
    eye = torch.eye(3)
    return dict(
        meta=dict(
            env_info='sys.platform: linux\n',
            config='raise RuntimeError("a config text was run")\n',
            seed=np.int64(3), exp_name='a.py', mmcv_version='1.7.1',
            time='Mon Jan  2 03:04:05 2023', epoch=1, iter=4,
            CLASSES=('road', 'sky'),
            PALETTE=np.arange(6, dtype=np.uint8).reshape(2, 3),
            hook_msgs=dict(
                best_score=np.float64(0.5), best_ckpt='best.pth',
                counts={np.int64(2): np.float32(0.25), 3: np.bool_(True)},
            ),
            fp16=dict(loss_scaler=dict(
                cur_scale=65536.0, cur_iter=4, last_overflow_iter=-1,
                scale_factor=2.0, scale_window=1000,
            )),
        ),
        state_dict=OrderedDict(
            half=torch.arange(4).half(), bf16=torch.arange(4).bfloat16(),
            sparse=eye.to_sparse(), csr=eye.to_sparse_csr(),
            double=eye.double().t(), flags=eye.bool(), step=torch.tensor(7),
        ),
    )  # fmt: skip
