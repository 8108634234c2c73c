"""Data sets as mmseg, mmdet and mmdet3d have them, with planted faults."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

MODULE = """
import json
import numpy as np
import torch
from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS, TRANSFORMS
from mmengine.structures import BaseDataElement, InstanceData, PixelData
from torch.utils.data import Dataset


class Listed(BaseDataset):
    # Paths as in the annotation file, with the folder in front.
    def load_data_list(self):
        with open(self.ann_file) as file:
            return json.load(file)


@DATASETS.register_module(force=True)
class SmallSeg(Listed):
    METAINFO = dict(classes=('sky', 'road', 'car'))


@DATASETS.register_module(force=True)
class SmallDet(Listed):
    METAINFO = dict(classes=('cat', 'dog'))

    def filter_data(self):
        least = (self.filter_cfg or {}).get('min_size', 0)
        return [one for one in self.data_list if one['width'] >= least]


@DATASETS.register_module(force=True)
class SmallScans(Listed):
    METAINFO = dict(classes=('car',))


@DATASETS.register_module(force=True)
class Demos(Dataset):
    def __init__(self, lengths, chunk):
        self.demos = [np.arange(n, dtype=np.float32) for n in lengths]
        self.chunk = chunk
        self.steps = [
            (demo, step)
            for demo, values in enumerate(self.demos)
            for step in range(max(0, len(values) - chunk + 1))
        ]

    def __len__(self):
        return len(self.steps)

    def __getitem__(self, index):
        demo, step = self.steps[index]
        return dict(
            inputs=self.demos[demo][step:step + self.chunk] + 100 * demo)


@TRANSFORMS.register_module(force=True)
class LoadArrays:
    def __call__(self, results):
        results['img'] = np.load(results['img_path'])
        if 'seg_map_path' in results:
            results['gt_seg_map'] = np.load(results['seg_map_path'])
        return results


@TRANSFORMS.register_module(force=True)
class GiveUpOn:
    def __init__(self, word):
        self.word = word

    def __call__(self, results):
        return None if self.word in results['img_path'] else results


@TRANSFORMS.register_module(force=True)
class PackSeg:
    def __call__(self, results):
        sample = BaseDataElement(metainfo=dict(img_path=results['img_path']))
        sample.gt_sem_seg = PixelData(
            data=torch.from_numpy(results['gt_seg_map'])[None])
        img = torch.from_numpy(results['img']).permute(2, 0, 1)
        return dict(inputs=img, data_samples=sample)


@TRANSFORMS.register_module(force=True)
class PackDet:
    def __call__(self, results):
        sample = BaseDataElement(metainfo=dict(img_path=results['img_path']))
        boxes = torch.tensor(results['boxes']).reshape(-1, 4)
        sample.gt_instances = InstanceData(
            bboxes=boxes, labels=torch.tensor(results['labels']).long(),
            masks=np.asarray(results['masks'], np.uint8).reshape(-1, 4, 4))
        img = torch.from_numpy(results['img']).permute(2, 0, 1)
        return dict(inputs=img, data_samples=sample)


@TRANSFORMS.register_module(force=True)
class PackScan:
    def __call__(self, results):
        path = results['lidar_points']['lidar_path']
        points = np.fromfile(path, np.float32).reshape(-1, 4)
        sample = BaseDataElement(metainfo=dict(lidar_path=path))
        sample.gt_instances_3d = InstanceData(
            bboxes_3d=torch.ones(1, 7), labels_3d=torch.zeros(1).long())
        return dict(inputs=dict(points=torch.from_numpy(points)),
                    data_samples=sample)
"""
CONFIG = """
custom_imports = dict(imports=['data_project_module'])
model = dict(
    type='Nothing',
    data_preprocessor=dict(mean=[0.0] * 3, std=[1.0] * 3))
train_dataloader = dict(
    batch_size=2, num_workers={workers},
    sampler=dict(type='DefaultSampler', shuffle=True),
    dataset={dataset})
"""
SEG = """dict(
    type='SmallSeg', ann_file={folder!r} + '/seg.json',
    pipeline=[dict(type='LoadArrays'), {more} dict(type='PackSeg')])"""
DET = """dict(
    type='SmallDet', ann_file={folder!r} + '/det.json', {more}
    pipeline=[dict(type='LoadArrays'), dict(type='PackDet')])"""
SCANS = """dict(
    type='SmallScans', ann_file={folder!r} + '/scans.json',
    pipeline=[dict(type='PackScan')])"""


def write(folder: Path) -> None:
    """Write the module, and data for all three."""
    (folder / 'data_project_module.py').write_text(MODULE)
    for data in (_segmentation(folder), _detection(folder), _scans(folder)):
        name, entries = data
        (folder / f'{name}.json').write_text(json.dumps(entries))


def config(
    folder: Path, dataset: str, workers: int = 0, more: str = ''
) -> str:
    path = folder / 'data_config.py'
    text = dataset.format(folder=str(folder), more=more)
    path.write_text(CONFIG.format(dataset=text, workers=workers))
    return str(path)


def _save(folder: Path, name: str, array: np.ndarray) -> str:
    path = folder / f'{name}.npy'
    np.save(path, array)
    return str(path)


def _picture(seed: int, channels: int = 3) -> np.ndarray:
    chance = np.random.default_rng(seed)
    return chance.random((8, 8, channels)).astype(np.float32)


def _segmentation(folder: Path) -> tuple[str, list[dict]]:
    """0 to 5 are good; the others have a fault each, in this order."""
    pictures = [_picture(seed) for seed in range(15)]
    maps = [np.full((8, 8), seed % 3, np.int64) for seed in range(15)]
    maps[1][0] = 255
    pictures[6][2, 2] = np.nan
    pictures[7][1, 1] = np.inf
    maps[8][3, 3] = 7
    maps[9][:] = 255
    pictures[10] = _picture(10, channels=4)
    maps[11] = np.zeros((4, 8), np.int64)
    pictures[12] = pictures[0]
    maps[13] = maps[13].astype(np.float32)
    entries = [
        dict(
            img_path=_save(folder, f'img_{index}', picture),
            seg_map_path=_save(folder, f'map_{index}', labels),
        )
        for index, (picture, labels) in enumerate(zip(pictures, maps))
    ]
    Path(entries[14]['img_path']).write_bytes(b'no array')
    return 'seg', entries


def _detection(folder: Path) -> tuple[str, list[dict]]:
    """The first is good; then a fault each; the last two are small."""
    boxes = [
        [[0, 0, 4, 4]],
        [[0, 0, 4, 4], [4, 4, 2, 6]],
        [[1, 1, 1, 5]],
        [],
        [[0, 0, 4, 4]],
        [[0, 0, 4, 4]],
        [[0, 0, 4, 4]],
        [[0, 0, 4, 4]],
    ]
    entries = []
    for index, those in enumerate(boxes):
        masks = np.ones((len(those), 4, 4), int)
        labels = [0] * len(those)
        if index == 4:
            masks[:] = 0
        if index == 5:
            labels = [2]
        entries.append(
            dict(
                img_path=_save(folder, f'det_{index}', _picture(50 + index)),
                boxes=[[float(x) for x in box] for box in those],
                labels=labels,
                masks=masks.tolist(),
                width=8 if index >= 6 else 100,
            )
        )
    return 'det', entries


def _scans(folder: Path) -> tuple[str, list[dict]]:
    chance = np.random.default_rng(0)
    entries = []
    for index in range(4):
        points = chance.random((10, 4)).astype(np.float32)
        if index == 2:
            points[3, 0] = np.nan
        if index == 3:
            points = points[:0]
        path = folder / f'scan_{index}.bin'
        points.tofile(path)
        entries.append(dict(lidar_points=dict(lidar_path=str(path))))
    return 'scans', entries
