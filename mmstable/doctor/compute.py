"""Tests that compute: arithmetic, half precision, memory, and DDP.

Matrices hold small whole numbers, so that every sum is exact in float32, in
TF32 too, and in any order: one wrong bit is a broken device.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable, NamedTuple

from mmstable.doctor import Fact, Item, NotSeen, Plan, found
from mmstable.doctor.gpus import devices
from mmstable.memory.host import host_room
from mmstable.messages import _, readable

_SIZES = {'cpu': 512, 'cuda': 4096}
_LARGEST = 4


class Outcome(NamedTuple):
    """The result of multiplying again and again.

    Args:
        products (int): Products that were computed.
        wrong (int): Products that were wrong.
        speed (float): Multiplications and additions per second.
    """

    products: int
    wrong: int
    speed: float


def arithmetic(plan: Plan) -> Iterator[Item]:
    """Multiply the same matrices repeatedly, on every device."""
    for device in devices():
        outcome = multiply(device, plan.seconds)
        speed = f'{outcome.speed / 1e9:.0f} GFLOP/s'
        yield Fact('products', str(outcome.products), _('products'), device)
        yield Fact('speed', speed, _('speed'), device)
        if outcome.wrong:
            yield found(
                'wrong_products',
                device,
                wrong=outcome.wrong,
                products=outcome.products,
            )
        else:
            yield Fact('checksum', _('right'), _('checksums'), device)


def multiply(
    device: str,
    seconds: float,
    size: int | None = None,
    product: Callable[[Any, Any], Any] | None = None,
) -> Outcome:
    """Multiply, and compare every product with its checksum.

    Args:
        device (str): Where.
        seconds (float): How long; at least two products are computed.
        size (int, optional): Rows of the matrices; by the device if None.
            Defaults to None.
        product (Callable, optional): How to multiply; ``torch.matmul`` if
            None. Defaults to None.
    """
    import torch

    multiply_by = torch.matmul if product is None else product
    rows = size or _SIZES[device.partition(':')[0]]
    left, right = _matrix(rows, 1), _matrix(rows, 2)
    # By whole numbers on the CPU, in another way than the product's.
    expected = left @ right.sum(1, keepdim=True)
    a, b = left.to(device).float(), right.to(device).float()
    sums = expected.flatten().to(device)
    count = wrong = 0
    start = time.monotonic()
    first = None
    while count < 2 or time.monotonic() - start < seconds:
        result = multiply_by(a, b)
        first = result if first is None else first
        # Row sums find any wrong value, and equal bits any swapped ones.
        is_right = torch.equal(result.long().sum(1), sums)
        wrong += not (is_right and torch.equal(result, first))
        count += 1
    took = time.monotonic() - start
    return Outcome(count, wrong, 2.0 * rows**3 * count / took)


def _matrix(rows: int, seed: int) -> Any:
    import torch

    generator = torch.Generator().manual_seed(seed)
    return torch.randint(
        -_LARGEST, _LARGEST + 1, (rows, rows), generator=generator
    )


# Sums of so many ones are exact in bfloat16, which has 8 bits.
_LENGTH = 256


def precision(plan: Plan) -> Iterator[Item]:
    """Try float16 and bfloat16 on every device."""
    labels = {
        'float16': _('computes in float16'),
        'bfloat16': _('computes in bfloat16'),
    }
    for device in devices():
        for name, label in labels.items():
            problem = try_precision(device, name)
            answer = problem or _('yes')
            if not problem and name == 'bfloat16' and _is_emulated(device):
                answer = _('emulated')
                yield found('bf16_emulated', device)
            yield Fact(name, answer, label, device)
            if problem and device != 'cpu':
                yield found('half_precision', device, name=name, error=problem)


def try_precision(device: str, name: str) -> str:
    """Return the error of a product in that precision, or ''.

    Args:
        device (str): Where.
        name (str): 'float16' or 'bfloat16'.
    """
    import torch

    dtype = getattr(torch, name)
    try:
        ones = torch.ones(_LENGTH, _LENGTH, dtype=dtype, device=device)
        product = ones @ ones
        is_right = bool((product == _LENGTH).all())
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return '' if is_right else _('the product is wrong')


def _is_emulated(device: str) -> bool:
    """Return whether an NVIDIA GPU is too old for bfloat16."""
    import torch

    if device == 'cpu' or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device) < (8, 0)


_BLOCK = 64 << 20
_SHARE_OF_GPU = 0.9
# With more than this in use, another training may run there and would fail.
_IN_USE = 0.1
# RAM is shared with everything else on the machine.
_SHARE_OF_HOST = {False: 0.05, True: 0.5}
_MOST_OF_HOST = {False: 1 << 30, True: 1 << 40}
# Both have every bit set once.
_PATTERNS = (0x5555555555555555, -0x5555555555555556)


def allocation(plan: Plan) -> Iterator[Item]:
    """Fill free memory of every device, and read it again."""
    for device in devices():
        size = _size(device, plan.is_long)
        if size is None:
            yield NotSeen(
                _('memory of {device}', device=device),
                _('another program uses it, which a full memory would end'),
            )
            continue
        held, wrong = fill(device, size)
        sizes = dict(held=readable(held), free=readable(size))
        yield Fact('tested_memory', sizes['held'], _('memory tested'), device)
        if wrong:
            yield found('bad_memory', device, blocks=wrong)
        if held < size * 0.9:
            yield found('allocation', device, **sizes)


def _size(device: str, is_long: bool) -> int | None:
    """Return the bytes to test; None if another program is there."""
    if device == 'cpu':
        share = int(host_room().left * _SHARE_OF_HOST[is_long])
        return min(share, _MOST_OF_HOST[is_long])
    import torch

    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    if total - free > _IN_USE * total:
        return None
    return int(free * _SHARE_OF_GPU)


def fill(
    device: str,
    size: int,
    block: int = _BLOCK,
    change: Callable[[list[Any]], None] = lambda blocks: None,
) -> tuple[int, int]:
    """Write patterns to memory and read them.

    Args:
        device (str): Whose memory.
        size (int): How many bytes.
        block (int): Bytes of a block. Defaults to 64 MiB.
        change (Callable): Called with the blocks once they are written.
            Defaults to doing nothing.

    Returns:
        tuple[int, int]: Bytes that were given, and blocks that changed.
    """
    blocks = _blocks(device, size, block)
    wrong = set()
    for pattern in _PATTERNS:
        for index, one in enumerate(blocks):
            # Else a block in the place of another would go unseen.
            one.fill_(pattern ^ index)
        change(blocks)
        for index, one in enumerate(blocks):
            if not bool((one == (pattern ^ index)).all()):
                wrong.add(index)
    return sum(one.numel() * 8 for one in blocks), len(wrong)


def _blocks(device: str, size: int, block: int) -> list[Any]:
    import torch

    blocks = []
    for __ in range(max(1, size // block)):
        try:
            one = torch.empty(block // 8, dtype=torch.int64, device=device)
        except (MemoryError, RuntimeError):
            # It says how much it got.
            break
        blocks.append(one)
    return blocks


_RANK = Path(__file__).with_name('one_rank.py')
_COPY_LENGTH = 1 << 16
_MAX_ERROR = 4000


def processes(plan: Plan) -> Iterator[Item]:
    """Start DDP with one and with two processes, on loopback."""
    gpus = len(devices()) - 1
    starts = [('gloo', 1), ('gloo', 2)]
    starts += [('nccl', ranks) for ranks in (1, 2) if ranks <= gpus]
    for backend, ranks in starts:
        began = time.monotonic()
        problem = start(backend, ranks, plan.patience)
        took = time.monotonic() - began
        name = f'{backend} x {ranks}'
        if problem:
            yield found('ddp_start', name, ranks=ranks, error=problem)
            # Two ranks will fail where one does.
            return
        text = _('right, in {seconds:.1f} s', seconds=took)
        yield Fact('ddp', text, _('DDP and all-reduce'), name)


def start(
    backend: str, ranks: int, patience: float, program: Path = _RANK
) -> str:
    """Start processes and compare their sums; return the failure, or ''.

    Args:
        backend (str): 'gloo' or 'nccl'.
        ranks (int): How many processes.
        patience (float): Seconds to wait for them.
        program (Path): Their program. Defaults to one_rank.py.
    """
    env = {
        **os.environ,
        'MASTER_ADDR': '127.0.0.1',
        'MASTER_PORT': str(_free_port()),
        'WORLD_SIZE': str(ranks),
        'OMP_NUM_THREADS': '1',
    }
    started: list[subprocess.Popen[str]] = []
    try:
        for rank in range(ranks):
            process = subprocess.Popen(
                [sys.executable, str(program), backend, str(patience)],
                env={**env, 'RANK': str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors='replace',
            )
            started.append(process)
        return _wait(started, patience)
    finally:
        for one in started:
            one.kill()
            # Closes its pipes, too.
            one.communicate()


def _wait(started: list[subprocess.Popen[str]], patience: float) -> str:
    until = time.monotonic() + patience
    ranks = len(started)
    total = ranks * sum(range(_COPY_LENGTH)) + _COPY_LENGTH * sum(range(ranks))
    expected = [str(total), str((1 + ranks) / 2)]
    for rank, one in enumerate(started):
        try:
            out, err = one.communicate(timeout=until - time.monotonic())
        except subprocess.TimeoutExpired:
            return _(
                'rank {rank} has not ended within {seconds:g} s',
                rank=rank,
                seconds=patience,
            )
        if one.returncode:
            last = err[-_MAX_ERROR:].strip().splitlines()[-1:]
            return _(
                'rank {rank} ended with code {code}: {error}',
                rank=rank,
                code=one.returncode,
                error=last,
            )
        if out.split()[-2:] != expected:
            return _(
                'rank {rank} got {got}, expected {expected: }',
                rank=rank,
                got=out,
                expected=expected,
            )
    return ''


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(('127.0.0.1', 0))
        return int(one.getsockname()[1])
