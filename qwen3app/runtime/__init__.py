"""Asyncio meets the engine: one generation is one async stream of deltas.

Imports of ours: abi, text, errors. Knows nothing of HTTP or the terminal.
"""

from qwen3app.abi.types import EngineStats
from qwen3app.runtime.generation import ChoiceDelta, Generation, Timings, TokenInfo, Usage
from qwen3app.runtime.loaded_model import LoadedModel
from qwen3app.runtime.params import GenerationParams
from qwen3app.runtime.runtime import Runtime

__all__ = [
    "ChoiceDelta",
    "EngineStats",
    "Generation",
    "GenerationParams",
    "LoadedModel",
    "Runtime",
    "Timings",
    "TokenInfo",
    "Usage",
]
