"""Python code that is run inside of a training, between two steps."""

from __future__ import annotations

import ast
import json
import threading
import traceback
from contextlib import AbstractContextManager
from typing import Any, Callable

from mmstable.liveness.probe.boundary import Boundary
from mmstable.liveness.probe.capture import captured_output
from mmstable.messages import _

# Characters of an answer.
_LONGEST = 1 << 20
# What tracebacks call the code.
_FILE = '<probe>'


class Console:
    """Runs code where ``probing`` would run it at once, on its own thread.

    Names live on from one piece of code to the next. As in an interactive
    Python, the value of an expression at the end is shown.

    Args:
        boundary (Boundary): Where the code waits for the end of a step.
        names (dict): What the code can use.
        around (Callable): Gives a context for a piece of code; what it
            yields is a list of lines to be added to the answer.
        patience (float): Seconds to wait for the end of a step. Then the
            code is run on the thread that asks. Defaults to 5.0.
    """

    def __init__(
        self,
        boundary: Boundary,
        names: dict[str, Any],
        around: Callable[[str], AbstractContextManager[list[str]]],
        patience: float = 5.0,
    ) -> None:
        self._boundary = boundary
        self._names = {'__name__': '__probe__', **names}
        self._around = around
        self._patience = patience
        self._turn = threading.Lock()

    def push(self, code: str) -> str:
        """Run code; the answer as ``probing`` wants it, in JSON."""
        job = self._boundary.post(lambda: self._run(code))
        note = ''
        if not job.wait(self._patience):
            if job.run():
                note = _(
                    '[mmstable: no step ended within {seconds:g} s, so this '
                    'was run at once, on another thread than the training. A '
                    'learning rate that was changed is not kept as a factor.]',
                    seconds=self._patience,
                )
            job.wait()
        answer = job.result()
        if note:
            lines = [answer['output'], note]
            answer['output'] = '\n'.join(filter(None, lines))
        return json.dumps(answer)

    def _run(self, code: str) -> dict[str, Any]:
        # Code on another thread may never end: training does not wait.
        if not self._turn.acquire(blocking=False):
            trace = [_('mmstable: code that was sent before is still running')]
            return dict(status='error', output='', traceback=trace)
        try:
            return self._run_alone(code)
        finally:
            self._turn.release()

    def _run_alone(self, code: str) -> dict[str, Any]:
        trace: list[str] = []
        notes: list[str] = []
        with captured_output() as out:
            try:
                with self._around(code) as notes:
                    self._execute(code)
            except BaseException as error:  # `exit()` must not end the run.
                trace = traceback.format_exception(
                    type(error), error, error.__traceback__
                )
        text = out.getvalue().strip()
        if len(text) > _LONGEST:
            text = f'{text[:_LONGEST]}\n...'
        return dict(
            status='error' if trace else 'ok',
            output='\n'.join(filter(None, [text, *notes])),
            traceback=[line.rstrip('\n') for line in trace],
        )

    def _execute(self, code: str) -> None:
        tree = ast.parse(code, _FILE)
        last = None
        if tree.body and isinstance(tree.body[-1], ast.Expr):
            last = ast.Expression(tree.body.pop().value)  # type: ignore
        exec(compile(tree, _FILE, 'exec'), self._names)
        if last is not None:
            value = eval(compile(last, _FILE, 'eval'), self._names)
            if value is not None:
                print(repr(value))
