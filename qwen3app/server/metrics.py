"""GET /metrics: Prometheus text, our names (`qwen3_*`) and the vLLM names that dashboards and autoscalers know.

vLLM's names carry its `engine` label too, and --metrics-compat none leaves them out.

Nothing is counted here. A scrape reads the engine's stats, the runtime's observations and the HTTP counts, so that a
token costs no metric work beyond one list increment. One table below gives each figure both its names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from litestar import Request, get
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from qwen3app import __version__
from qwen3app.errors import EngineError
from qwen3app.server.sse import JsonReply, Reply

if TYPE_CHECKING:
    from qwen3app.runtime import EngineStats, LoadedModel
    from qwen3app.server.state import ServerState, Serving


_VLLM = "vllm:"


class _Name(NamedTuple):
    """ours: without the prefix `qwen3_`. vllm: without `vllm:`, every alias."""

    ours: str
    vllm: tuple[str, ...]
    help: str


_GAUGES: dict[str, _Name] = {
    "n_running": _Name("requests_running", ("num_requests_running",), "Samples that hold a slot."),
    "n_waiting": _Name("requests_waiting", ("num_requests_waiting",), "Samples that wait for a slot."),
    "blocks_total": _Name("kv_blocks", (), "KV blocks in the pool."),
    "blocks_free": _Name("kv_blocks_free", (), "KV blocks that hold nothing."),
    "blocks_cached": _Name("kv_blocks_cached", (), "KV blocks that hold a prefix which nobody uses now."),
    "blocks_used": _Name("kv_blocks_used", (), "KV blocks in use."),
}
_COUNTERS: dict[str, _Name] = {
    "prompt_tokens": _Name("prompt_tokens", ("prompt_tokens",), "Prompt tokens of admitted requests."),
    "cached_tokens": _Name("cached_tokens", (), "Prompt tokens read from the prefix cache."),
    "generated_tokens": _Name("generation_tokens", ("generation_tokens",), "Tokens generated."),
    "computed_tokens": _Name("computed_tokens", (), "Token rows that went through the model."),
    "preemptions": _Name("preemptions", ("num_preemptions",), "Samples put back for lack of KV blocks."),
    "prefix_queries": _Name(
        "prefix_cache_queries", ("prefix_cache_queries", "gpu_prefix_cache_queries"), "Tokens looked up in the cache."
    ),
    "prefix_hits": _Name(
        "prefix_cache_hits", ("prefix_cache_hits", "gpu_prefix_cache_hits"), "Tokens found in the prefix cache."
    ),
    "requests_submitted": _Name("requests_submitted", (), "Requests that the engine took."),
    "requests_refused": _Name("requests_refused", (), "Requests that the engine refused."),
    "steps": _Name("engine_steps", (), "Steps of the engine."),
    "idle_checks": _Name("engine_idle_checks", (), "Integrity checks made when the engine fell idle."),
}
_HISTOGRAMS: dict[str, _Name] = {
    "time_to_first_token": _Name(
        "time_to_first_token_seconds", ("time_to_first_token_seconds",), "From submission to the first token."
    ),
    "inter_token": _Name("inter_token_latency_seconds", ("inter_token_latency_seconds",), "Between two tokens."),
    "time_per_output_token": _Name(
        "time_per_output_token_seconds",
        ("time_per_output_token_seconds", "request_time_per_output_token_seconds"),
        "Mean time per token after the first, by sample.",
    ),
    "write_delay": _Name(
        "write_delay_seconds", (), "From the engine's event to the write of its text into a stream's socket, by write."
    ),
    "e2e": _Name("request_seconds", ("e2e_request_latency_seconds",), "From submission to the last token."),
    "queue": _Name("request_queue_seconds", ("request_queue_time_seconds",), "From submission to the first slot."),
    "prefill": _Name("request_prefill_seconds", ("request_prefill_time_seconds",), "From slot to first token."),
    "decode": _Name("request_decode_seconds", ("request_decode_time_seconds",), "From first to last token."),
    "inference": _Name("request_inference_seconds", ("request_inference_time_seconds",), "From slot to last token."),
    "prompt_tokens": _Name("request_prompt_tokens", ("request_prompt_tokens",), "Prompt tokens by request."),
    "generation_tokens": _Name(
        "request_generation_tokens", ("request_generation_tokens",), "Generated tokens by sample."
    ),
    "max_generation_tokens": _Name(
        "request_max_generation_tokens", ("request_max_num_generation_tokens",), "Longest sample of each request."
    ),
    "params_n": _Name("request_params_n", ("request_params_n",), "n of the requests."),
    "params_max_tokens": _Name("request_params_max_tokens", ("request_params_max_tokens",), "max_tokens asked for."),
}
_KV_USAGE = _Name(
    "kv_usage_ratio", ("kv_cache_usage_perc", "gpu_cache_usage_perc"), "Share of KV blocks in use, 0 to 1."
)
_STEP_TOKENS = _Name("step_tokens", ("iteration_tokens_total",), "Token rows of a step, by step.")
_FINISHED = _Name("samples_finished", ("request_success",), "Samples by finish reason.")


class ServerCollector(Collector):
    """Reads everything at scrape time."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    def collect(self) -> Iterator[Metric]:
        state = self._state
        up = state.serving is not None and state.failure is None and not state.draining
        yield _gauge("qwen3_up", "1 when requests are taken.", float(up))
        build = GaugeMetricFamily("qwen3_build_info", "Version of the server.", labels=["version"])
        build.add_metric([__version__], 1)
        yield build
        yield from self._http()
        if state.serving is None:
            return
        try:
            stats = state.serving.model.engine.stats()
        except EngineError:
            return  # it is being closed
        yield from self._engine(state.serving, stats)

    def _engine(self, serving: Serving, stats: EngineStats) -> Iterator[Metric]:
        name, (model, runtime) = self._state.model_name, serving
        for field, names in _GAUGES.items():
            for full in self._full(names):
                yield _gauge(full, names.help, getattr(stats, field), name)
        for field, names in _COUNTERS.items():
            for full in self._full(names):
                yield _counter(full, names.help, getattr(stats, field), name)
        usage = stats.blocks_used / stats.blocks_total if stats.blocks_total else 0.0
        for full in self._full(_KV_USAGE):
            yield _gauge(full, _KV_USAGE.help, usage, name)
        for full in self._full(_STEP_TOKENS):
            yield _histogram(full, _STEP_TOKENS.help, _step_buckets(stats.step_sizes), stats.computed_tokens, name)
        yield _counter("qwen3_engine_step_seconds", "Time spent in steps.", stats.step_ns * 1e-9, name)
        yield _gauge("qwen3_generations_running", "Answers that are being made.", runtime.n_active, name)
        yield _counter("qwen3_reasoning_tokens", "Tokens inside thoughts.", runtime.observations.reasoning_tokens, name)
        yield from self._finished(name, runtime.observations.finished)
        for field, names in _HISTOGRAMS.items():
            histogram = getattr(runtime.observations, field)
            for full in self._full(names):
                yield _histogram(full, names.help, histogram.buckets(), histogram.sum, name)
        info = model.info
        if self._state.settings.metrics_compat:
            yield _cache_config(name, model)
        for full, what, value in (
            ("qwen3_weight_bytes", "Bytes of weights.", info.weight_bytes),
            ("qwen3_coded_weight_bytes", "Bytes of weights in their coded form, kept beside.", info.coded_bytes),
            ("qwen3_kv_bytes", "Bytes of the KV pool.", info.kv_bytes),
            ("qwen3_workspace_bytes", "Bytes of activations and tables.", info.workspace_bytes),
            ("qwen3_max_context_tokens", "Longest request, in tokens.", info.max_context),
        ):
            yield _gauge(full, what, value, name)

    def _full(self, names: _Name) -> list[str]:
        aliases = names.vllm if self._state.settings.metrics_compat else ()
        return [f"qwen3_{names.ours}", *(_VLLM + alias for alias in aliases)]

    def _finished(self, model: str, finished: dict[str, int]) -> Iterator[Metric]:
        """Samples by why they ended. All reasons are always there, so that rates begin at 0."""
        counts = {"stop": 0, "length": 0, "abort": 0, "error": 0} | finished
        for name in self._full(_FINISHED):
            labels = _labels(name, model)
            family = CounterMetricFamily(name, _FINISHED.help, labels=[*labels, "finished_reason"])
            for reason, count in counts.items():
                family.add_metric([*labels.values(), reason], count)
            yield family

    def _http(self) -> Iterator[Metric]:
        http = self._state.http
        requests = CounterMetricFamily(
            "http_requests", "HTTP requests by route, method and status.", labels=["handler", "method", "status"]
        )
        for key, count in sorted(http.requests.items()):
            requests.add_metric(list(key), count)
        yield requests
        durations = HistogramMetricFamily(
            "http_request_duration_seconds", "Time to the end of the reply.", labels=["handler", "method"]
        )
        for labels, histogram in sorted(http.durations.items()):
            durations.add_metric(list(labels), histogram.buckets(), histogram.sum)
        yield durations
        yield _gauge("http_requests_open", "HTTP requests being answered.", http.n_open)


def _labels(metric: str, model: str | None) -> dict[str, str]:
    if model is None:
        return {}
    return {"model_name": model, "engine": "0"} if metric.startswith(_VLLM) else {"model_name": model}


def _gauge(name: str, what: str, value: float, model: str | None = None) -> Metric:
    labels = _labels(name, model)
    family = GaugeMetricFamily(name, what, labels=list(labels))
    family.add_metric(list(labels.values()), value)
    return family


def _counter(name: str, what: str, value: float, model: str) -> Metric:
    labels = _labels(name, model)
    family = CounterMetricFamily(name, what, labels=list(labels))
    family.add_metric(list(labels.values()), value)
    return family


def _histogram(name: str, what: str, buckets: list[tuple[str, float]], total: float, model: str) -> Metric:
    labels = _labels(name, model)
    family = HistogramMetricFamily(name, what, labels=list(labels))
    family.add_metric(list(labels.values()), buckets, total)
    return family


def _step_buckets(step_sizes: Sequence[int]) -> list[tuple[str, float]]:
    """The engine counts steps by the power of two that holds their rows; the last count has no bound."""
    bounds = [repr(float(1 << i)) for i in range(len(step_sizes) - 1)] + ["+Inf"]
    return list(zip(bounds, map(float, accumulate(step_sizes)), strict=True))


def _cache_config(name: str, model: LoadedModel) -> Metric:
    info = model.info
    cache = {
        "block_size": str(info.block_size),
        "num_gpu_blocks": str(info.n_blocks),
        "enable_prefix_caching": str(info.prefix_cache),
        "cache_dtype": "bfloat16",
    }
    labels = _labels(_VLLM, name) | cache
    config = GaugeMetricFamily("vllm:cache_config_info", "The KV cache.", labels=list(labels))
    config.add_metric(list(labels.values()), 1)
    return config


@get("/metrics")
async def metrics(request: Request[Any, Any, Any]) -> Reply:
    """For Prometheus."""
    state: ServerState = request.app.state.server
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ServerCollector(state))
    ProcessCollector(registry=registry)
    return JsonReply(generate_latest(registry), content_type=CONTENT_TYPE_LATEST)
