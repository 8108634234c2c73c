"""Damage genuine checkpoints at random."""

from __future__ import annotations

import io
import pickletools
import zipfile
from collections.abc import Callable
from random import Random

from tests.checkpoint.pickles import call, name, text

DANGEROUS = [
    ('posix', 'system'), ('os', 'mkdir'), ('__builtin__', 'eval'),
    ('builtins', 'exec'), ('builtins', 'getattr'), ('builtins', 'setattr'),
    ('torch', 'load'), ('torch.storage', '_load_from_bytes'),
    ('torch._utils', '_rebuild_tensor_v3'), ('torch.jit', 'load'),
    ('torch._tensor', '_rebuild_from_type_v2'), ('copyreg', '_reconstructor'),
    ('numpy.core.multiarray', '_reconstruct'), ('numpy', 'load'),
    ('mmengine.logging.history_buffer', 'HistoryBuffer'),
    ('mmengine.config.config', 'Config.fromfile'), ('pickle', 'loads'),
    ('functools', 'partial'), ('operator', 'attrgetter'), ('torch', 'Size'),
    ('collections', 'Counter'), ('collections', 'OrderedDict'),
    ('builtins', 'bytearray'), ('types', 'FunctionType'),
]  # fmt: skip
_OPCODES = [ord(one.code) for one in pickletools.opcodes]

Mutation = Callable[[bytes, Random, str], bytes]


def flip_bits(data: bytes, random: Random, marker: str) -> bytes:
    """A few bits, in one place or in many."""
    changed = bytearray(data)
    for _ in range(random.choice([1, 1, 2, 8, 64])):
        changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)


def cut_off(data: bytes, random: Random, marker: str) -> bytes:
    """The end is missing, or a part in the middle."""
    start = random.randrange(len(data))
    end = random.choice([len(data), random.randrange(start, len(data))])
    return data[:start] + data[end:]


def swap_opcodes(data: bytes, random: Random, marker: str) -> bytes:
    """Other operations with the same arguments."""
    places = _places(data)
    changed = bytearray(data)
    for _ in range(random.choice([1, 1, 2, 8])):
        changed[random.choice(places)] = random.choice(_OPCODES)
    return bytes(changed)


def move_operations(data: bytes, random: Random, marker: str) -> bytes:
    """Some operations at another place, or twice, or many times."""
    places = _places(data)
    first = random.randrange(len(places) - 1)
    last = min(first + random.choice([1, 1, 3, 30]), len(places) - 1)
    piece = data[places[first] : places[last]]
    target = random.choice(places)
    times = random.choice([1, 1, 2, 1000])
    return data[:target] + piece * times + data[target:]


def swap_names(data: bytes, random: Random, marker: str) -> bytes:
    """A dangerous function in the place of a harmless one."""
    found = [
        (at, len(name(*arg.split(' ', 1))))
        for op, arg, at in pickletools.genops(data)
        if op.name == 'GLOBAL'
    ]
    for at, length in sorted(
        random.sample(found, min(len(found), random.choice([1, 1, 3]))),
        reverse=True,
    ):
        other = name(*random.choice(DANGEROUS))
        data = data[:at] + other + data[at + length :]
    return data


def insert_call(data: bytes, random: Random, marker: str) -> bytes:
    """A call that leaves a marker, if it is made."""
    function = random.choice(
        [('posix', 'mkdir'), ('os', 'mkdir'), ('os', 'makedirs')]
    )
    payload = random.choice(
        [
            call(name(*function), text(marker)) + b'0',
            b'(' + text(marker) + f'i{function[0]}\n{function[1]}\n0'.encode(),
            b'(' + name(*function) + text(marker) + b'o0',
            call(
                name('torch._tensor', '_rebuild_from_type_v2'),
                name(*function),
                name('torch', 'Tensor'),
                b'(' + text(marker) + b't',
                b'}',
            )
            + b'0',
        ]
    )
    place = random.choice(_places(data))
    return data[:place] + payload + data[place:]


IN_PICKLE: list[Mutation] = [
    flip_bits, cut_off, swap_opcodes, move_operations, swap_names,
    insert_call,
]  # fmt: skip


def mutate_archive(
    data: bytes, mutation: Mutation, random: Random, marker: str
) -> bytes:
    """Mutate the pickle of an archive, and make its check sum right."""
    result = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(data)) as archive,
        zipfile.ZipFile(result, 'w') as copy,
    ):
        for info in archive.infolist():
            content = archive.read(info)
            if info.filename.endswith('/data.pkl'):
                content = mutation(content, random, marker)
            copy.writestr(info.filename, content)
    return result.getvalue()


def mutate_legacy(
    data: bytes, mutation: Mutation, random: Random, marker: str
) -> bytes:
    """Mutate one of the five pickles of the old format."""
    bounds = [0]
    for _ in range(5):
        stream = io.BytesIO(data[bounds[-1] :])
        for _operation in pickletools.genops(stream):
            pass
        bounds.append(bounds[-1] + stream.tell())
    # Mostly the one with the object.
    which = random.choice([0, 1, 2, 3, 3, 3, 3, 3, 3, 4])
    start, end = bounds[which : which + 2]
    try:
        changed = mutation(data[start:end], random, marker)
    except (IndexError, ValueError):
        # There is nothing to swap in the short ones.
        return data
    return data[:start] + changed + data[end:]


def _places(data: bytes) -> list[int]:
    return [at for _, _, at in pickletools.genops(data)]
