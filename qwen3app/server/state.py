"""What all routes share: the settings, the model once it is there, and how far the server is in its life.

Lives on the event loop's thread, but for `progress`, which the loading thread replaces as a whole.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import NamedTuple

from qwen3app.runtime import LoadedModel, Runtime
from qwen3app.server.access_log import HttpObservations
from qwen3app.server.greeting import Greeting
from qwen3app.server.openai_errors import ApiError
from qwen3app.server.sse import Heartbeat
from qwen3app.settings import ServeSettings


class Progress(NamedTuple):
    """Of loading: done and total are bytes or steps of the phase."""

    phase: str
    done: int
    total: int


class Serving(NamedTuple):
    """A model that is ready, with its runtime."""

    model: LoadedModel
    runtime: Runtime


@dataclass
class ServerState:
    """See the file's head."""

    settings: ServeSettings
    model_name: str
    http: HttpObservations
    heartbeat: Heartbeat
    created: int = 0
    progress: Progress = field(default_factory=lambda: Progress("start", 0, 0))
    serving: Serving | None = None
    greeting: Greeting = field(default_factory=Greeting)  # of the model, once it is ready
    failure: str | None = None  # loading or the engine failed
    draining: bool = False

    def __post_init__(self) -> None:
        self.created = self.created or int(time.time())

    def ready(self) -> Serving:
        """The model, or the 503 that says why there is none."""
        if self.failure is not None:
            raise ApiError(503, self.failure, code="engine_failed", headers={"retry-after": "10"})
        if self.serving is None:
            raise ApiError(
                503,
                f"The model is being loaded ({self.progress.phase}); try again in a moment.",
                code="model_loading",
                headers={"retry-after": "2"},
            )
        return self.serving

    def check_model(self, asked: str | None) -> None:
        """Raises the 404 for a request that names another model. No name at all means ours."""
        if asked and asked != self.model_name:
            raise ApiError(
                404,
                f"The model {asked[:200]!r} does not exist here; this server has {self.model_name!r}.",
                param="model",
                code="model_not_found",
            )
