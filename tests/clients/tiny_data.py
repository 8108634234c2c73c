"""Eight pictures of squares, as classes, as masks and as boxes."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np

_COUNT, _SIZE = 8, 64


def write_data(folder: Path) -> None:
    """Write what the configs of this folder read.

    Args:
        folder (Path): Gets ``data/classes`` and ``data/scenes``.
    """
    rng = np.random.default_rng(0)
    boxes = []
    for index in range(_COUNT):
        left, top = (int(one) for one in rng.integers(4, 28, 2))
        side = int(rng.integers(16, 32))
        image = rng.integers(0, 99, (_SIZE, _SIZE, 3), dtype=np.uint8)
        mask = np.zeros((_SIZE, _SIZE), np.uint8)
        for array, value in ((image, 200), (mask, 1)):
            array[top : top + side, left : left + side] = value
        name = f'{index}.png'
        _write(folder / 'data/scenes/images' / name, image)
        _write(folder / 'data/scenes/masks' / name, mask)
        kind = 'odd' if index % 2 else 'even'
        _write(folder / 'data/classes' / kind / name, image[:32, :32])
        boxes.append((left, top, side, side))
    path = folder / 'data/scenes/boxes.json'
    path.write_text(json.dumps(_coco(boxes)))


def _write(path: Path, image: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), image)


def _coco(boxes: list[tuple[int, int, int, int]]) -> dict:
    return dict(
        categories=[dict(id=1, name='square')],
        images=[
            dict(id=i, file_name=f'{i}.png', width=_SIZE, height=_SIZE)
            for i in range(len(boxes))
        ],
        annotations=[
            dict(
                id=i + 1,
                image_id=i,
                category_id=1,
                bbox=list(box),
                area=box[2] * box[3],
                iscrowd=0,
            )
            for i, box in enumerate(boxes)
        ],
    )
