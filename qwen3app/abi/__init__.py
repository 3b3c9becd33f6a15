"""The binding to libqwen3: the only package that knows the shared library. Imports nothing of ours but `errors`.

Importing this package is cheap: cffi and the library are loaded by the first `Engine.open` or `library_version`.
"""

from qwen3app.abi.engine import Engine, EngineSequence, check_config, library_version
from qwen3app.abi.types import (
    EngineInfo,
    EngineOptions,
    EnginePeaks,
    EngineRequest,
    EngineStats,
    Event,
    EventBatch,
    EventKind,
    FinishCode,
    OpTime,
    ProfileSpec,
    StepProfile,
)
from qwen3app.errors import EngineError, Status

__all__ = [
    "Engine",
    "EngineError",
    "EngineInfo",
    "EngineOptions",
    "EnginePeaks",
    "EngineRequest",
    "EngineSequence",
    "EngineStats",
    "Event",
    "EventBatch",
    "EventKind",
    "FinishCode",
    "OpTime",
    "ProfileSpec",
    "Status",
    "StepProfile",
    "check_config",
    "library_version",
]
