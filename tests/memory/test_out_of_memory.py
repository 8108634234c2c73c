"""Which errors are about memory?"""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from mmstable.oom.report import (
    failed_phase,
    is_out_of_memory,
    release,
    requested_bytes,
)
from tests.memory.scenes import OutOfMemoryError

CUDA = 'CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total'
CPU = (
    '[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: '
    "can't allocate memory: you tried to allocate 4096000 bytes. Error code "
    '12 (Cannot allocate memory)'
)
NPU = 'NPU out of memory. Tried to allocate 20.00 MiB (NPU 0; 29.50 GiB total'
YES = [
    OutOfMemoryError(CUDA),
    torch.cuda.OutOfMemoryError(CUDA),
    RuntimeError(CPU),
    RuntimeError(CUDA),
    RuntimeError(NPU),
    RuntimeError('XPU out of memory. Tried to allocate 1.00 KiB'),
    RuntimeError('CUDA error: out of memory'),
    RuntimeError('cuDNN error: CUDNN_STATUS_ALLOC_FAILED'),
    RuntimeError(
        'CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling '
        '`cublasCreate(handle)`'
    ),
    RuntimeError('MPS backend out of memory (MPS allocated: 5.0 GB)'),
    RuntimeError('HIP out of memory. Tried to allocate 20.00 MiB'),
    MemoryError(),
    OSError(12, 'Cannot allocate memory'),
]
NO = [
    RuntimeError('mat1 and mat2 shapes cannot be multiplied'),
    RuntimeError('CUDA error: an illegal memory access was encountered'),
    ValueError('out of memory'),
    OSError(28, 'No space left on device'),
    KeyError('memory'),
]


@pytest.mark.parametrize('error', YES, ids=lambda error: str(error)[:40])
def test_errors_about_memory(error):
    assert is_out_of_memory(error)


@pytest.mark.parametrize('error', NO, ids=lambda error: str(error)[:40])
def test_other_errors(error):
    assert not is_out_of_memory(error)


@pytest.mark.parametrize(
    ('text', 'size'),
    [(CUDA, 2 * 2**30), (CPU, 4096000), (NPU, 20 * 2**20), ('none', None)],
)
def test_how_much_was_asked_for(text, size):
    assert requested_bytes(text) == size


def test_nothing_is_kept_alive_by_an_error():
    def compute():
        activations = torch.zeros(10)
        kept.append(weakref.ref(activations))
        try:
            raise RuntimeError(CPU)
        except RuntimeError as error:
            raise RuntimeError('while computing') from error

    kept: list = []
    try:
        compute()
    except RuntimeError as error:
        caught = error
    # Reading variables leaves a copy of them in the frame.
    assert failed_phase(caught) == 'forward'
    gc.collect()
    assert kept[0]() is not None
    release(caught)
    gc.collect()
    assert kept[0]() is None
