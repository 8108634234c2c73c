"""How long do many ranks talk about a bad step?  A small model.

A healthy step exchanges nothing, so only bad ones have to scale. The real
store is asked here how long it takes for one request; a simulation of its
queue then tells how long it takes until all of 8 to 4,096 ranks know what
became of a step, and how busy the signs of life keep the store.
"""

from __future__ import annotations

import argparse
import heapq
import random
import time
from collections.abc import Iterator
from pathlib import Path

from results import (
    DEFAULT_FOLDER,
    Row,
    format_table,
    machine_facts,
    write_json,
)
from torch.distributed import TCPStore

# Half a round trip between two machines of one cluster.
NETWORK = 100e-6
# Ranks get their averaged gradients at about the same time.
SPREAD = 5e-3
# As in mmstable.dist.store.
SHORTEST_PAUSE, LONGEST_PAUSE = 1e-3, 50e-3
# Requests of a rank in each look of PeerWatch, once a second: its own sign
# of life, that of its neighbour, and whether anybody has failed.
REQUESTS_PER_LOOK = 3


def measure_request(count: int) -> float:
    """Seconds that the real store needs for one request, there and back."""
    store = TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False)
    store.set('key', 'value')
    start = time.perf_counter()
    for _ in range(count):
        store.check(['key'])
    return (time.perf_counter() - start) / count


class Meeting:
    """Ranks that arrive, ask the store, and wait for its decision.

    Args:
        ranks (int): How many there are.
        request (float): Seconds for one request.
        seed (int): Of their arrivals. Defaults to 0.
    """

    def __init__(self, ranks: int, request: float, seed: int = 0) -> None:
        self._ranks = ranks
        self._request = request
        self._queue: list[tuple[float, int, str, float]] = []
        self._free_at = 0.0
        self._arrived = 0
        self._decided_at: float | None = None
        self.requests = 0
        spread = random.Random(seed)
        for rank in range(ranks):
            heapq.heappush(
                self._queue, (spread.uniform(0, SPREAD), rank, 'arrive', 0.0)
            )

    def run(self) -> float:
        """Seconds until the last rank knows what was decided."""
        return max(self._answers())

    def _answers(self) -> Iterator[float]:
        while self._queue:
            sent, rank, what, pause = heapq.heappop(self._queue)
            if what == 'arrive':
                # Its word, and its place in the count.
                answer = self._serve(sent, 2)
                self._arrived += 1
                if self._arrived == self._ranks:
                    # All words are read, and the digest is written.
                    answer = self._serve(answer, self._ranks + 1)
                    self._decided_at = answer
                    yield answer
                    continue
                pause = SHORTEST_PAUSE
            else:
                answer = self._serve(sent, 1)
                if self._decided_at is not None and answer > self._decided_at:
                    yield self._serve(answer, 1)
                    continue
                pause = min(2 * pause, LONGEST_PAUSE)
            heapq.heappush(self._queue, (answer + pause, rank, 'ask', pause))

    def _serve(self, sent: float, requests: int) -> float:
        """When the answer to one or several requests is back."""
        self.requests += requests
        start = max(sent + NETWORK, self._free_at)
        self._free_at = start + requests * self._request
        return self._free_at + NETWORK


def main() -> None:
    """Print the table, and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--quick', action='store_true', help='does it run?')
    parser.add_argument(
        '--request', type=float, help='seconds for a request; measured if not'
    )
    parser.add_argument(
        '--json', type=Path, default=DEFAULT_FOLDER / 'verdict_model.json'
    )
    args = parser.parse_args()
    request = args.request or measure_request(200 if args.quick else 5000)
    rows = []
    for ranks in (8, 64, 256, 1024, 4096):
        meeting = Meeting(ranks, request)
        spent = meeting.run()
        case = f'{ranks} ranks'
        note = f'{meeting.requests} requests'
        rows.append(Row(case, 'bad step, ms', 1e3 * spent, note=note))
        load = 100 * ranks * REQUESTS_PER_LOOK * request
        rows.append(Row(case, 'signs of life, % of the store', load))
    for key, value in machine_facts().items():
        print(f'{key}: {value}')
    print(f'one request: {1e6 * request:.0f} us')
    print(f'\n{format_table(rows)}')
    write_json(args.json, rows, {'request_seconds': request})
    print(f'\nwritten to {args.json}')


if __name__ == '__main__':
    main()
