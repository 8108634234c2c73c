"""What the config of the golden run imports.

The toys get their names there, and what mmstable logs goes to a file of its
own, apart from the lines of mmengine.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import mmengine.logging
import torch
from mmengine.registry import DATASETS, MODELS

from tests.golden.outside import PACKAGE
from tests.toys import NAN, ToyData, ToyModel

LINES = Path('lines_of_mmstable.jsonl').absolute()
MODELS.register_module(module=ToyModel)
_LOGGING = tuple(
    str(Path(one.__file__).parent) for one in (logging, mmengine.logging)
)
_make_record = logging.getLogRecordFactory()


@DATASETS.register_module()
class SpoiledData(ToyData):
    """Has a NaN in the sample that comes last."""

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        sample = super().__getitem__(index)
        if index == len(self) - 1:
            sample['inputs'][1] = NAN
        return sample


def note(*args: Any, **kwargs: Any) -> logging.LogRecord:
    """Make a log record, and keep it if mmstable has logged it."""
    record = _make_record(*args, **kwargs)
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(_LOGGING):
        frame = frame.f_back
    if frame.f_code.co_filename.startswith(str(PACKAGE)):
        with LINES.open('a', encoding='utf-8') as file:
            line = [record.levelname, record.getMessage()]
            file.write(json.dumps(line) + '\n')
    return record


logging.setLogRecordFactory(note)
