from __future__ import annotations

import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mmengine.config import ConfigDict
from mmengine.dataset import BaseDataset
from mmengine.logging import HistoryBuffer
from mmengine.model import BaseModel
from mmengine.runner import Runner
from torch import Tensor, nn

import mmstable  # noqa: F401  (guards mmengine's loader)
from mmstable.checkpoint.loading import BadCheckpoint, load_checkpoint

METAINFO = dict(
    classes=('a', 'b'),
    palette=np.array([[1, 2, 3], [4, 5, 6]], dtype=np.uint8),
    sigmas=np.array([0.5, 0.25], dtype=np.float32),
    scale=np.float64(2.5),
    nested=ConfigDict(skeleton=[ConfigDict(link=(0, 1))]),
)


class Numbers(BaseDataset):
    def load_data_list(self) -> list[dict[str, Any]]:
        return [dict(number=float(index)) for index in range(8)]

    def prepare_data(self, idx: int) -> dict[str, Tensor]:
        number = self.get_data_info(idx)['number']
        return dict(inputs=torch.tensor([number]))


class Scale(BaseModel):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def forward(self, inputs: Any, mode: str = 'tensor') -> Any:
        loss = self.layer(torch.stack(inputs)).square().mean()
        return dict(loss=loss) if mode == 'loss' else loss


def build_runner(work_dir: Path, **kwargs: Any) -> Runner:
    torch.manual_seed(0)
    dataset = Numbers(metainfo=METAINFO, lazy_init=True)
    dataset.full_init()
    return Runner(
        model=Scale(),
        work_dir=str(work_dir),
        train_dataloader=dict(
            dataset=dataset,
            sampler=dict(type='InfiniteSampler', shuffle=False),
            batch_size=2,
            collate_fn=dict(type='pseudo_collate'),
        ),
        train_cfg=dict(by_epoch=False, max_iters=6),
        optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.01, momentum=0.9)),
        param_scheduler=dict(
            type='OneCycleLR', eta_max=0.02, total_steps=6, by_epoch=False
        ),
        default_hooks=dict(
            checkpoint=dict(type='CheckpointHook', interval=3, by_epoch=False),
            logger=dict(type='LoggerHook', interval=1),
        ),
        default_scope='mmengine',
        experiment_name=f'safe_resume_{work_dir.name}',
        log_level='ERROR',
        **kwargs,
    )


@pytest.fixture(scope='module')
def trained(tmp_path_factory: Any) -> Path:
    """The directory of an unbroken run with iter_3.pth and iter_6.pth."""
    work_dir: Path = tmp_path_factory.mktemp('unbroken')
    runner = build_runner(work_dir)
    runner.message_hub.update_info('best_score', np.float64(0.75))
    runner.train()
    return work_dir


@pytest.fixture(scope='module')
def runner(tmp_path_factory: Any) -> Runner:
    return build_runner(tmp_path_factory.mktemp('victim'))


def load_trusted(path: Path) -> Any:
    return torch.load(path, weights_only=False)


def test_resumed_run_ends_like_an_unbroken_one(
    trained: Path, tmp_path: Path
) -> None:
    resumed = build_runner(
        tmp_path, resume=True, load_from=str(trained / 'iter_3.pth')
    )
    resumed.train()

    assert resumed.iter == 6
    ours = load_trusted(tmp_path / 'iter_6.pth')
    unbroken = load_trusted(trained / 'iter_6.pth')
    for name, value in unbroken['state_dict'].items():
        assert torch.equal(ours['state_dict'][name], value)
    assert ours['param_schedulers'] == unbroken['param_schedulers']
    losses, expected = (
        checkpoint['message_hub']['log_scalars']['train/loss'].data[0]
        for checkpoint in (ours, unbroken)
    )
    assert len(losses) == 6
    np.testing.assert_array_equal(losses, expected)
    info = resumed.message_hub.runtime_info
    assert type(info['best_score']) is np.float64
    assert info['best_score'] == 0.75


def test_dataset_information_is_loaded(trained: Path) -> None:
    loaded = load_checkpoint(trained / 'iter_3.pth')['meta']['dataset_meta']
    assert loaded.keys() == METAINFO.keys()
    for name, value in METAINFO.items():
        assert type(loaded[name]) is type(value)
        np.testing.assert_equal(loaded[name], value)


@pytest.mark.parametrize('core', [b'numpy.core', b'numpy._core'])
def test_names_of_any_numpy_are_resumed(
    trained: Path, tmp_path: Path, runner: Runner, core: bytes
) -> None:
    path = tmp_path / 'renamed.pth'
    with (
        zipfile.ZipFile(trained / 'iter_3.pth') as source,
        zipfile.ZipFile(path, 'w') as target,
    ):
        for name in source.namelist():
            data = source.read(name)
            if name.endswith('data.pkl'):
                old = rb'cnumpy\._?core\.multiarray\n'
                data, count = re.subn(old, b'c%s.multiarray\n' % core, data)
                assert count
            target.writestr(name, data)

    runner.resume(str(path))

    assert runner.iter == 3
    history = runner.message_hub.get_scalar('train/loss')
    assert type(history) is HistoryBuffer
    assert len(history.data[0]) == 3


class Payload:
    """Pickles as code that makes a directory."""

    def __init__(self, marker: Path) -> None:
        self.marker = str(marker)

    def __reduce__(self) -> tuple[Any, ...]:
        return eval, (f'__import__("os").mkdir({self.marker!r})',)


def hide(checkpoint: Any, section: str, payload: Payload) -> None:
    history = checkpoint['message_hub']['log_scalars']['train/loss']
    places: dict[str, tuple[Any, Any]] = {
        'meta': (checkpoint['meta']['dataset_meta'], 'classes'),
        'state_dict': (checkpoint['state_dict'], 'layer.extra'),
        'message_hub': (checkpoint['message_hub']['runtime_info'], 'iter'),
        'history': (history.__dict__, '_log_history'),
        'optimizer': (checkpoint['optimizer']['state'][0], 'extra'),
        'param_schedulers': (checkpoint['param_schedulers'][0], 'anneal_func'),
    }
    place, key = places[section]
    place[key] = payload


@pytest.mark.parametrize(
    'section',
    [
        'meta',
        'state_dict',
        'message_hub',
        'history',
        'optimizer',
        'param_schedulers',
    ],
)
def test_payload_is_refused_and_not_executed(
    trained: Path, tmp_path: Path, runner: Runner, section: str
) -> None:
    marker, path = tmp_path / 'marker', tmp_path / 'payload.pth'
    checkpoint = load_trusted(trained / 'iter_3.pth')
    hide(checkpoint, section, Payload(marker))
    torch.save(checkpoint, path)

    with pytest.raises(
        BadCheckpoint, match=r'refused: it asks for builtins\.eval,'
    ):
        runner.resume(str(path))

    assert not marker.exists()
    # The payload is a working one.
    load_trusted(path)
    assert marker.exists()
