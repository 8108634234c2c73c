"""Configs of mmcv 1.x, translated to mmengine.

Commands import the translator when they need it. ``import mmstable`` loads
only the schedules, which are registered.
"""
