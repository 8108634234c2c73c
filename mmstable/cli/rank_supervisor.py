"""The supervisors of a run on several machines.

The supervisor of each machine starts its processes. That of the first machine
decides for all, through a store on its port: which machines take part, and
whether the run is started again after a failure. Every attempt gets a number
and a new store for its ranks, so nothing of a failed attempt reaches the next.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from torch.distributed import TCPStore

from mmstable.checkpoint.folders import AnyPath
from mmstable.cli.command import say, tell
from mmstable.cli.supervise import NotStarted, Supervisor
from mmstable.dist.store import StoreClient, leave_value, read_value
from mmstable.errors import PeerFailedError
from mmstable.events.log import RESTARTS
from mmstable.io.schema import integer, list_of, record, text, tuple_of
from mmstable.messages import N_

# Seconds to wait for all machines; for more than the fewest; for one that is
# told that the run is over; and between two looks.
_JOIN_S, _LAST_CALL_S, _FAREWELL_S, _PAUSE_S = 600.0, 30.0, 10.0, 0.2
_COUNT = integer(0, (1 << 16) - 1)


class RankSupervisor(Supervisor):
    """The supervisor of the processes of one machine.

    Args:
        program (Sequence[str]): The program that trains.
        words (Sequence[str]): Its arguments.
        folders (Sequence[Path]): Where its checkpoints are.
        args (argparse.Namespace): Options of ``mmstable dist-train``.
        variables (Mapping): Environment variables of all processes.
    """

    def __init__(
        self,
        program: Sequence[str],
        words: Sequence[str],
        folders: Sequence[AnyPath],
        args: argparse.Namespace,
        variables: Mapping[str, str],
    ) -> None:
        super().__init__(program, words, folders)
        self._variables, self._processes = variables, args.processes
        self._node, (self._fewest, self._most) = args.node_rank, args.nnodes
        self._host, self._port = args.master_addr, args.port
        self._decides = self._node == 0
        # Kept, as they end with these objects: the stores of the supervisors
        # and of the ranks.
        self._servers: list[Any] = []
        if self._decides:
            self._servers.append(self._serve(self._port))
        self._store = StoreClient(
            'supervisors', _JOIN_S, (self._host, self._port)
        )
        self._attempt = -1
        self._check_plan = record(
            nodes=list_of(tuple_of(_COUNT, _COUNT), self._most),
            port=_COUNT,
            why=text(1000),
            code=integer(0, 255),
        )

    def _serve(self, port: int) -> Any:
        return TCPStore(
            self._host,
            port,
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=_JOIN_S),
        )

    def _plan(self, restarts: int) -> list[dict[str, str]]:
        try:
            plan = self._lead(restarts) if self._node == 0 else self._follow()
        except RuntimeError as error:
            tell(
                'error: the supervisor of the first machine '
                '({host}:{port}) does not respond: {error}',
                host=self._host,
                port=self._port,
                error=str(error).partition('\n')[0],
            )
            raise NotStarted(PeerFailedError.exit_code) from error
        # A link that breaks later is noticed sooner.
        self._store.timeout_s = _LAST_CALL_S
        counts = dict(plan['nodes'])
        first = sum(count for n, count in plan['nodes'] if n < self._node)
        return [
            {
                **self._variables,
                'RANK': str(first + local),
                'WORLD_SIZE': str(sum(counts.values())),
                'LOCAL_RANK': str(local),
                'LOCAL_WORLD_SIZE': str(self._processes),
                'GROUP_RANK': str(sorted(counts).index(self._node)),
                'GROUP_WORLD_SIZE': str(len(counts)),
                'MASTER_ADDR': self._host,
                'MASTER_PORT': str(plan['port']),
                # The store is in this process, not in rank 0.
                'TORCHELASTIC_USE_AGENT_STORE': 'True',
                # Old releases of torch put it into their keys.
                'TORCHELASTIC_RESTART_COUNT': str(self._attempt),
                RESTARTS[0]: str(self._attempt),
                'OMP_NUM_THREADS': os.environ.get('OMP_NUM_THREADS', '1'),
            }
            for local in range(self._processes)
        ]

    def _lead(self, attempt: int) -> dict[str, Any]:
        """Wait for the other machines, and start an attempt."""
        self._attempt = attempt
        leave_value(self._store, 'attempt', attempt)
        joined, begin = {0: self._processes}, time.monotonic()
        while len(joined) < self._most:
            for other in set(range(self._most)) - joined.keys():
                key = f'join/{attempt}/{other}'
                count = read_value(self._store, key, _COUNT)
                if count is not None:
                    joined[other] = count
            waited = time.monotonic() - begin
            if len(joined) >= self._fewest and waited > _LAST_CALL_S:
                break
            if waited > _JOIN_S:
                text = N_(
                    'error: {count} of {fewest} machines have joined within '
                    '{seconds:.0f} s'
                )
                count, least = len(joined), self._fewest
                tell(text, count=count, fewest=least, seconds=waited)
                raise NotStarted(PeerFailedError.exit_code)
            self._pause()
        if attempt and len(joined) < self._most:
            text = N_('attempt {attempt} runs on {count} of {most} machines')
            count = len(joined)
            tell(text, attempt=attempt, count=count, most=self._most)
        self._servers[1:] = [self._serve(0)]
        port = self._servers[1].port
        return self._announce_plan(sorted(joined.items()), port)

    def _announce_plan(
        self, nodes: Sequence[Any], port: int, why: str = '', code: int = 0
    ) -> dict[str, Any]:
        plan = dict(nodes=nodes, port=port, why=why, code=code)
        leave_value(self._store, f'plan/{self._attempt}', plan)
        return plan

    def _follow(self) -> dict[str, Any]:
        """Join the next attempt, and wait for its plan."""
        last = self._attempt
        while True:
            attempt = read_value(self._store, 'attempt', integer(0))
            if attempt is not None and attempt > last:
                if attempt != self._attempt:
                    self._attempt = attempt
                    key = f'join/{attempt}/{self._node}'
                    leave_value(self._store, key, self._processes)
                key = f'plan/{attempt}'
                plan = read_value(self._store, key, self._check_plan)
                if plan is not None and plan['why']:
                    self._store.set(f'told/{self._node}', '1')
                    say(plan['why'])
                    raise NotStarted(plan['code'])
                if plan is not None and self._node in dict(plan['nodes']):
                    return plan
            self._pause()

    def _pause(self) -> None:
        if self._stopped.wait(_PAUSE_S):
            raise NotStarted(128 + (self._stop_number or 0))

    def _tell_others(self, restarts: int, why_not: str, code: int) -> None:
        self._attempt = restarts
        others = [f'told/{n}' for n in range(1, self._most)]
        end = time.monotonic() + _FAREWELL_S
        with suppress(RuntimeError):
            self._announce_plan([], 0, why_not, code)
            leave_value(self._store, 'attempt', restarts)
            while others and time.monotonic() < end:
                if self._store.check(others):
                    return
                time.sleep(_PAUSE_S)
