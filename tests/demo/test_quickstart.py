"""The quick start, cut down to a few steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.dataset import Compose
from mmengine.registry import DefaultScope
from mmengine.runner import Runner

import mmstable
from mmstable.demo import DigitScenes

CONFIG = 'configs/quickstart/digit-scenes_fcn_fp16.py'


@pytest.fixture
def cfg(tmp_path: Path) -> Config:
    cfg = Config.fromfile(Path(__file__).parents[2] / CONFIG)
    cfg.work_dir = str(tmp_path)
    cfg.train_dataloader.batch_size = 2
    cfg.val_dataloader.dataset.num_scenes = 4
    cfg.train_cfg.update(max_iters=2, val_interval=2)
    warmup, decay = cfg.param_scheduler
    warmup.end = decay.begin = 1
    return cfg


def test_trains_and_validates_in_fp16(cfg: Config) -> None:
    cfg.experiment_name = 'test_trains_and_validates_in_fp16'
    runner = Runner.from_cfg(cfg)
    runner.train()

    wrapper = runner.optim_wrapper
    assert isinstance(wrapper, mmstable.SafeAmpOptimWrapper)
    assert wrapper.cast_dtype == torch.float16
    assert wrapper.loss_scaler.get_scale() == 1024
    assert wrapper.last_step.applied
    assert 'val/seg/mIoU' in runner.message_hub.log_scalars
    assert (Path(cfg.work_dir) / 'iter_2.pth').exists()


def test_the_train_pipeline_keeps_picture_and_classes_together(
    cfg: Config,
) -> None:
    with DefaultScope.overwrite_default_scope('mmengine'):
        pipeline = Compose(cfg.train_pipeline)
    dataset = DigitScenes('train', num_scenes=20)
    np.random.seed(0)
    for index in range(len(dataset)):
        packed = pipeline(dataset[index])
        image = packed['inputs'].float().mean(dim=0)
        classes = packed['data_samples'].gt_sem_seg.data[0]
        assert image.shape == classes.shape == (64, 64)
        ink = (classes > 0) & (classes != 255)
        assert image[ink].mean() > image[classes == 0].mean() + 50
