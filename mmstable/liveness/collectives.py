"""How far has this rank come in its collective calls?

torch keeps a record of them, its flight recorder; not every version does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mmstable.checked_json import parse_json

# By backend, for all or for NCCL alone.
_DUMPS = ('_dump_fr_trace_json', '_dump_nccl_trace_json')
_LONGEST = 1 << 26


@dataclass(frozen=True)
class Collectives:
    """The collective calls of the default group.

    Args:
        begun (int): The number of the newest one; -1 if nobody knows.
            Defaults to -1.
        waits_in (str): The one that is not complete, as 'all_reduce'; '' if
            there is none. Defaults to ''.
    """

    begun: int = -1
    waits_in: str = ''


def read_collectives() -> Collectives:
    """Ask torch."""
    for name in _DUMPS:
        try:
            from torch._C import _distributed_c10d as recorder

            content = parse_json(getattr(recorder, name)(), _LONGEST)
            return _read(content)
        except (ImportError, AttributeError, RuntimeError):
            continue
        except (KeyError, TypeError, ValueError, IndexError):
            # Another version has another format.
            continue
    return Collectives()


def _read(content: Any) -> Collectives:
    status = content['pg_status']['0']
    begun = int(status['last_enqueued_collective'])
    done = int(status['last_completed_collective'])
    if done >= begun:
        return Collectives(begun)
    newest = content['entries'][-1]['profiling_name']
    return Collectives(begun, str(newest).rpartition(':')[2])
