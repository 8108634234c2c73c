"""Settings that every test shares."""

from __future__ import annotations

import os
import signal
import threading

# Tiny tensors are slower on several threads, and tests run side by side.
os.environ.setdefault('OMP_NUM_THREADS', '1')

# A shell that starts the tests in the background makes them, and all that
# they start, deaf to Ctrl-C.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)
