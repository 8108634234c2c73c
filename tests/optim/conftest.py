from __future__ import annotations

import logging
from contextlib import contextmanager

import pytest
from mmengine.logging import MMLogger


@pytest.fixture
def capture_log():
    """Collect what mmengine's current logger says from a level on."""

    @contextmanager
    def capture(level: int = logging.INFO):
        lines: list[str] = []

        class Collector(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                lines.append(record.getMessage())

        logger = MMLogger.get_current_instance()
        handler = Collector(level)
        logger.addHandler(handler)
        yield lines
        logger.removeHandler(handler)

    return capture
