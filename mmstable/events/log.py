"""The event file of a run: its header, the writer and the reader."""

from __future__ import annotations

import errno
import hashlib
import itertools
import logging
import os
import platform
import time
from collections.abc import Generator, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO, Callable

import mmengine
import torch
from mmengine.dist import get_rank, get_world_size
from mmengine.logging import print_log
from mmengine.runner import Runner

from mmstable import runner_view
from mmstable.errors import MMStableError
from mmstable.events.codec import LONGEST_LINE, decode, encode
from mmstable.events.records import SCHEMA, Event, RunStart, WrapperSetup
from mmstable.events.samples import read_scale
from mmstable.io.files import create, read_only
from mmstable.io.heartbeat import SUPERVISOR
from mmstable.io.process import ProcessIdentity
from mmstable.messages import _, printable
from mmstable.messages.secrets import mask_values
from mmstable.runner_view import device_of
from mmstable.version import __version__


class EventLog:
    """An append-only file of records, one line each.

    Every record is one write to the operating system, so it is safe as soon
    as :meth:`write` returns, whatever happens to the process. A disk that is
    full or not writable costs records, not the training: there is one
    warning, and later records are tried again.

    Args:
        directory (Path): Where the file goes. It is created when needed.
        header (RunStart): The first line.
    """

    def __init__(self, directory: Path, header: RunStart) -> None:
        self.lost = 0
        self._directory = directory
        self._header = header
        self._file: BinaryIO | None = None
        self._size = 0
        self._warned = False

    def write(self, record: Event | None = None) -> None:
        """Append a record; after a failure, count it as lost.

        Args:
            record (Event, optional): The record; None for the header alone.
                Defaults to None.
        """
        try:
            if self._file is None:
                self._file = self._create()
            if self._size == 0:
                self._append(self._file, self._header)
            if record is not None:
                self._append(self._file, record)
        except OSError as error:
            self.lost += record is not None
            self._warn(error)

    def close(self) -> None:
        """Close the file."""
        file, self._file = self._file, None
        try:
            if file is not None:
                file.close()
        except OSError as error:
            # A network file system may report a full disk only now.
            self._warn(error)

    def _create(self) -> BinaryIO:
        self._directory.mkdir(parents=True, exist_ok=True)
        rank = self._header.rank
        stem = 'events' if rank == 0 else f'events.rank{rank}'
        number = 1
        while True:
            suffix = '' if number == 1 else f'-{number}'
            path = self._directory / f'{stem}{suffix}.jsonl'
            try:
                # Unbuffered: one call of write is one write to the system.
                return open(path, 'ab', buffering=0, opener=create)
            except FileExistsError:
                # Runs that start within one second share their directory.
                number += 1

    def _append(self, file: BinaryIO, record: Event) -> None:
        line = encode(record)
        written = file.write(line)
        if written != len(line):
            # Otherwise the next record would continue this line.
            file.truncate(self._size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._size += written

    def _warn(self, error: OSError) -> None:
        if self._warned:
            return
        self._warned = True
        print_log(
            _(
                'mmstable: EventLogHook: cannot write the event file in '
                "'{folder}': {error}. Training continues, and events are "
                'lost for as long as this lasts.',
                folder=self._directory,
                error=error,
            ),
            logger='current',
            level=logging.WARNING,
        )


# One more, to tell a line that is too long from one that is not.
_TO_READ = LONGEST_LINE + 1
_PIECE = 1 << 16
_MOST_REASONS = 10


class EventFileError(MMStableError):
    """A file is not an event file."""

    exit_code = 2


class EventReader(Iterator[Event]):
    """The records of an event file, one at a time.

    Lines that are no records are skipped and counted. One line is held in
    memory at a time, and none of more than 4 MiB.

    Args:
        path (str or PathLike): The event file.
        decode (Callable): Makes a record of a line, given the schema of the
            file. Defaults to :func:`mmstable.events.codec.decode`.

    Attributes:
        skipped (int): Lines so far that are no records.
        reasons (list[str]): What is wrong with the first ten of them.
        is_cut_off (bool): Whether the last line lacks its end and is no
            record, as a killed process may leave it. It is not counted.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        decode: Callable[[bytes, int], Any] = decode,
    ) -> None:
        self._decode = decode
        self.skipped = 0
        self.reasons: list[str] = []
        self.is_cut_off = False
        self._path = path
        self._events = self._read()

    def __next__(self) -> Event:
        return next(self._events)

    def close(self) -> None:
        """Close the file, if there are records left."""
        self._events.close()

    def _read(self) -> Generator[Event, None, None]:
        with _open(self._path) as file:
            header = _read_header(self._path, file.readline(_TO_READ))
            yield header
            for number in itertools.count(2):
                line = file.readline(_TO_READ)
                if not line:
                    return
                is_whole = line.endswith(b'\n') or _skip_rest(file)
                try:
                    event = self._decode(line, header.schema)
                except (ValueError, RecursionError) as error:
                    self._skip(number, error, is_whole)
                else:
                    yield event

    def _skip(self, number: int, error: Exception, is_whole: bool) -> None:
        if not is_whole:
            self.is_cut_off = True
            return
        self.skipped += 1
        if len(self.reasons) < _MOST_REASONS:
            self.reasons.append(f'line {number}: {printable(error)}')


def read_events(path: str | os.PathLike[str]) -> EventReader:
    """The records of an event file, one at a time.

    Args:
        path (str or PathLike): The event file.

    Returns:
        EventReader: Gives first a :class:`RunStart`, then the others as they
        happened. Records of a newer mmstable that this one does not know
        come as :class:`UnknownEvent`. Its ``skipped`` says how many lines
        are no records. Its first step raises :class:`EventFileError` if the
        file does not start as an event file does.
    """
    return EventReader(path)


def _open(path: str | os.PathLike[str]) -> BinaryIO:
    try:
        return open(path, 'rb', opener=read_only)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise EventFileError(f'{printable(path)}: {error.strerror}.') from None


def _skip_rest(file: BinaryIO) -> bool:
    """Move to the next line; False if the file ends before there is one."""
    while piece := file.readline(_PIECE):
        if piece.endswith(b'\n'):
            return True
    return False


def _read_header(path: str | os.PathLike[str], line: bytes) -> RunStart:
    name = printable(path)
    if not line:
        raise EventFileError(
            f'{name} is empty: the run ended before it could write anything.'
        )
    try:
        header = decode(line)
    except (ValueError, RecursionError) as error:
        reason = f'but {printable(error)}'
    else:
        if isinstance(header, RunStart):
            return header
        reason = f'got {type(header).__name__}'
    raise EventFileError(
        f'{name} is not an event file of mmstable: its first line must be a '
        f"'run_start' record, {reason}."
    )


# Set by what restarts a run: mmstable's supervisor, torchrun or Slurm.
RESTARTS = (
    'MMSTABLE_RESTARTS',
    'TORCHELASTIC_RESTART_COUNT',
    'SLURM_RESTART_COUNT',
)
RESTARTED_AFTER = 'MMSTABLE_RESTARTED_AFTER'


def restarts() -> int:
    """How often this run was started again before."""
    for name in RESTARTS:
        count = os.environ.get(name, '')
        if count.isdigit():
            return int(count)
    return 0


def describe_run(runner: Runner, config_text: str | None = None) -> RunStart:
    """The header for a run that is about to train.

    Args:
        runner (Runner): The runner.
        config_text (str, optional): The config's ``pretty_text``, if it was
            written before: that takes a tenth of a second. Defaults to None.
    """
    device = device_of(runner.model)
    # As `mmstable train` has noted it, if that is the command.
    command = runner.cfg.get('resume_command')
    return RunStart(
        iteration=runner.iter,
        time=time.time(),
        schema=SCHEMA,
        rank=get_rank(),
        world_size=get_world_size(),
        **asdict(ProcessIdentity.of_this_process()),
        versions=versions(),
        device=str(device),
        device_name=_device_name(device),
        seed=runner.seed,
        max_iterations=runner.max_iters,
        config_sha256=hashlib.sha256(
            (config_text or runner.cfg.pretty_text).encode()
        ).hexdigest(),
        wrappers={
            name: _describe_wrapper(wrapper)
            for name, wrapper in runner_view.wrappers(runner).items()
        },
        custom_hooks=tuple(mask_values(runner.cfg.get('custom_hooks') or ())),
        restarts=restarts(),
        restarted_after=os.environ.get(RESTARTED_AFTER, ''),
        resume_command=command if isinstance(command, str) else '',
        supervisor=os.getppid() if os.environ.get(SUPERVISOR) else 0,
        **runner_view.start_notes(runner)._asdict(),
    )


def versions() -> dict[str, str]:
    """Of mmstable and what it depends on."""
    return {
        'mmstable': __version__,
        'mmengine': mmengine.__version__,
        'torch': str(torch.__version__),
        'python': platform.python_version(),
    }


def _device_name(device: torch.device) -> str | None:
    module = getattr(torch, device.type, None)
    read = getattr(module, 'get_device_name', None)
    return None if read is None else str(read(device))


def _describe_wrapper(wrapper: Any) -> WrapperSetup:
    dtype = getattr(wrapper, 'cast_dtype', None)
    clip = getattr(wrapper, 'clip', None)
    policy = getattr(runner_view.loss_scaler(wrapper), 'policy', None)
    return WrapperSetup(
        type=_class_name(wrapper),
        optimizer=_class_name(getattr(wrapper, 'optimizer', None)),
        accumulative_counts=runner_view.accumulative_counts(wrapper),
        dtype=None if dtype is None else str(dtype).replace('torch.', ''),
        clip_grad=getattr(wrapper, 'clip_grad_kwargs', None),
        clip=None if clip is None else str(clip),
        loss_scale=read_scale(wrapper),
        scale_policy=None if policy is None else asdict(policy),
    )


def _class_name(instance: Any) -> str:
    cls = type(instance)
    return f'{cls.__module__}.{cls.__qualname__}'
