"""Settings that every test shares."""

from __future__ import annotations

import os

# Tiny tensors are slower on several threads, and tests run side by side.
os.environ.setdefault('OMP_NUM_THREADS', '1')
