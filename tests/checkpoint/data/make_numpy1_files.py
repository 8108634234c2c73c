"""Write the files in this folder, with mmengine and an old numpy alone.

They were made by torch 2.13, mmengine 0.10.7 and a real numpy 1.26.4, put in
front of the newer one that the same environment has::

    pip install --target /tmp/numpy1 numpy==1.26.4
    PYTHONPATH=/tmp/numpy1:. python tests/checkpoint/data/make_numpy1_files.py
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from tests.checkpoint.stock_runs import (
    SAVED_AT,
    mmcv1_checkpoint,
    stock_runner,
)

HERE = Path(__file__).resolve().parent


def main() -> None:
    """Write both files."""
    if not np.__version__.startswith('1.26.'):
        sys.exit(f'numpy 1.26 is needed, this is {np.__version__}')
    with TemporaryDirectory() as folder:
        stock_runner(folder).train()
        shutil.copy(
            Path(folder, f'iter_{SAVED_AT}.pth'), HERE / 'mmengine_numpy1.pth'
        )
    torch.save(mmcv1_checkpoint(), HERE / 'mmcv1_numpy1.pth')
    if 'mmstable' in sys.modules:
        sys.exit('mmstable was imported: these are no stock files')


if __name__ == '__main__':
    main()
