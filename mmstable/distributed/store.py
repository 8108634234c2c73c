"""Words that ranks leave for each other, without a collective.

A collective waits until all ranks call it, and mixes up with another one if
they do not. The store that the ranks were joined by does neither: a rank can
speak while others are busy, blocked or gone.
"""

from __future__ import annotations

import json
import time
from typing import Any, Callable

from mmengine.dist import get_rank, get_world_size
from torch.distributed import PrefixStore, Store, distributed_c10d

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.001, 0.05


def open_store(name: str) -> Store:
    """A part of the store that the ranks were joined by.

    Args:
        name (str): The part.
    """
    # torch has no public way to ask for it.
    return PrefixStore(
        f'mmstable/{name}', distributed_c10d._get_default_store()
    )


def meet(
    topic: str,
    word: Any,
    patience: float,
    digest: Callable[[list[Any]], Any] = list,
) -> Any:
    """Hear a word of every rank, if all of them come to this meeting.

    The last one to arrive reads all words and writes them into one place, so
    each rank costs the store a few short requests.

    Args:
        topic (str): What the meeting is about; used once.
        word (Any): What this rank has to say, as JSON can hold it.
        patience (float): Seconds to wait for the others.
        digest (Callable): What to keep of all words, by rank: every rank is
            told that. It must not be None. Defaults to list.

    Returns:
        Any: The digest. None if somebody stayed away: then all who came, and
        all who still come, are told so.
    """
    store = open_store('meeting')
    store.set(f'{topic}/{get_rank()}', json.dumps(word))
    if store.add(f'{topic}/arrived', 1) == get_world_size():
        return _decide(store, topic, digest(_read_all(store, topic)))
    return _await_decision(store, topic, patience)


def _read_all(store: Store, topic: str) -> list[Any]:
    keys = [f'{topic}/{rank}' for rank in range(get_world_size())]
    return [json.loads(word) for word in store.multi_get(keys)]


def _await_decision(store: Store, topic: str, patience: float) -> Any:
    deadline = time.monotonic() + patience
    pause = _SHORTEST_PAUSE
    # Not by `wait`, which would keep other threads from the store.
    while not store.check([f'{topic}/decision']):
        if time.monotonic() > deadline:
            return _decide(store, topic, None)
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
    return _decide(store, topic, None)


def _decide(store: Store, topic: str, digest: Any) -> Any:
    """Write a decision, unless there is one; the one that holds."""
    held = store.compare_set(f'{topic}/decision', '', json.dumps(digest))
    return json.loads(held)
