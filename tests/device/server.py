"""Forks processes that have imported the heavy packages already.

A line of JSON on standard input starts a process, or waits for one; each is
answered by a line with its id, or its exit code.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from importlib import import_module
from typing import Any

from tests.preloaded import OF_EVERY_RUN


def serve() -> None:
    """Answer requests until the input ends."""
    for line in sys.stdin:
        request = json.loads(line)
        if 'wait' in request:
            __, status = os.waitpid(request['wait'], 0)
            answer = os.waitstatus_to_exitcode(status)
        else:
            answer = os.fork()
            if answer == 0:
                _become(request)
        print(answer, flush=True)


def _become(request: dict[str, Any]) -> None:
    code = 1
    try:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDONLY)
        log = os.open(request['log'], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for target, source in enumerate((nothing, log, log)):
            os.dup2(source, target)
        os.chdir(request['folder'])
        os.environ.update(request['env'])
        code = _run(request['arguments'])
    except BaseException:
        traceback.print_exc()
    finally:
        simulator = sys.modules.get('tests.device.fakecuda')
        if simulator is not None:
            print('refused calls:', simulator.refused_calls())
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _run(arguments: list[str]) -> int:
    from mmstable.cli.main import main

    simulator = sys.modules.get('tests.device.fakecuda')
    if simulator is not None:
        simulator.after_fork()
    if simulator is not None and 'RANK' in os.environ:
        from tests.device.fakecuda import nccl

        nccl.install()
    if arguments[0] == 'call':
        from tests.device import cases

        getattr(cases, arguments[1])()
        return 0
    if arguments[0] == 'stock':
        from mmengine.config import Config
        from mmengine.runner import Runner

        config = Config.fromfile(arguments[1])
        config.work_dir = arguments[2]
        Runner.from_cfg(config).train()
        return 0
    return main(arguments)


def _prepare(device: str) -> None:
    if device == 'cuda':
        from tests.device import fakecuda  # noqa: F401
    for name in OF_EVERY_RUN:
        import_module(name)
    import torch

    import mmstable.cli.train  # noqa: F401

    torch.set_num_threads(1)
    # Its convolutions are not those that the simulated device runs.
    torch.backends.mkldnn.enabled = False


if __name__ == '__main__':
    _prepare(sys.argv[1])
    serve()
