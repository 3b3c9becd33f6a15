"""`Runtime`: one engine serving many generations in one event loop.

Owns: taking the engine's events, the map from engine samples to choices, admission (lengths), the drain at the end.
Refuses to know: HTTP, templates.

How events come: the loop watches the engine's descriptor, takes a batch when it has the time for it and wakes the
readers, who write before it looks again. What it has not taken tells the engine how far its host is (qwen3_poll).

Threads: everything runs on the event loop's thread, on which every method must be called. There is no thread for the
engine's events: it would wait for Python's lock with each batch, for 5 ms and more where the loop is busy. `generate`
submits on that thread too, so that an event can never arrive before its choice is known.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import cast

from qwen3app.abi.types import Event, EventBatch, EventKind, FinishCode
from qwen3app.errors import AppError, ContextLengthError, EngineError, GenerationError, RequestError, Status
from qwen3app.runtime.constraints import Constraint, Constraints
from qwen3app.runtime.engine_request import engine_request, params_behind
from qwen3app.runtime.generation import Generation, _Choice
from qwen3app.runtime.loaded_model import LoadedModel
from qwen3app.runtime.masks import ConstrainedSample, Masks
from qwen3app.runtime.observations import Observations
from qwen3app.runtime.params import GenerationParams, check_params, with_defaults
from qwen3app.runtime.tenant import salted
from qwen3app.runtime.thought_budget import ThoughtBudget
from qwen3app.text.output import OutputStream

# After a cancel every sample ends within one step; a step that takes longer than this is not waited for at the end.
_CANCEL_SECONDS = 5.0
# Answers of one call: each costs memory here before the engine's queue limit can refuse it.
_MAX_CHOICES = 4096
_CHOICES_PER_TURN = 32  # that are submitted in one turn of the event loop
_SAMPLE_BITS = 7  # qwen3_request.n is at most 128
# Between two tries to continue a sample whose thought was closed, while the engine's queue is full.
_RETRY_SECONDS = 0.02
# `</think>` and two newlines, however those are tokenized, at the end of a prompt.
_CLOSED_TAIL = 3
_TOKEN = int(EventKind.TOKEN)
_PROMPT_TOKEN = int(EventKind.PROMPT_TOKEN)
_FINISHED = int(EventKind.FINISHED)


class Runtime:
    """See the file's head."""

    def __init__(self, model: LoadedModel, on_failure: Callable[[str], None] | None = None) -> None:
        """on_failure: called once, on the loop's thread, with a sentence, when the engine has failed."""
        self.model = model
        self.observations = Observations()
        self.constraints = Constraints(model.tokenizer, model.grammar_tokens)
        self.failure: str | None = None
        self._engine = model.engine
        self._masks = Masks(model.engine)
        self._on_failure = on_failure
        self._eos_ids = frozenset(model.tokenizer.eos_ids) | frozenset(model.info.eos_ids)
        self._extra_eos = tuple(sorted(self._eos_ids - frozenset(model.info.eos_ids)))
        self._routes: dict[int, tuple[Generation, _Choice]] = {}  # by request << 7 | sample
        self._active: set[Generation] = set()
        self._idle: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._event_fd = -1  # the engine's, while it is watched
        self._draining = False

    # ------------------------------------------------------------------------------------------------------- life cycle

    async def start(self) -> None:
        """Begins to take events."""
        self._loop = asyncio.get_running_loop()
        self._idle = asyncio.Event()
        self._idle.set()
        self._event_fd = self._engine.event_fd()
        self._loop.add_reader(self._event_fd, self._take)

    async def stop(self, drain_seconds: float = 0.0) -> None:
        """Takes no more work, waits up to drain_seconds for what runs, cancels the rest and takes no more events.
        The model stays open; closing it is its owner's."""
        self._draining = True
        if self._idle is None:
            return
        if drain_seconds > 0:
            await self._wait_idle(drain_seconds)
        if self._active:
            self.cut_off()
            await self._wait_idle(_CANCEL_SECONDS)
        self._unwatch()
        await self.constraints.close()
        await asyncio.to_thread(self._masks.close)
        for generation in list(self._active):
            self._abandon(generation, _closed("The server is shutting down."))

    async def drain(self) -> None:
        """From now on new work is refused, also what waits for its constraint; what runs goes on."""
        self._draining = True
        await self.constraints.close()

    def cut_off(self) -> None:
        """Ends every generation with an error: half an answer must not look like a whole one."""
        for generation in list(self._active):
            generation.give_up(_closed("The server is shutting down and cut this answer off; ask again."))

    @property
    def n_active(self) -> int:
        """Generations that have not ended in the engine."""
        return len(self._active)

    async def _wait_idle(self, seconds: float) -> None:
        assert self._idle is not None
        try:
            await asyncio.wait_for(self._idle.wait(), seconds)
        except TimeoutError:
            return

    # -------------------------------------------------------------------------------------------------------- admission

    def generate(
        self,
        prompt_ids: Sequence[int],
        params: GenerationParams,
        *,
        thinking: bool = False,
        split_reasoning: bool = False,
        param: str = "prompt",
        length_param: str | None = None,
    ) -> Generation:
        """Begins to continue one prompt. Raises RequestError (wrong parameters, too long) or EngineError (queue full,
        failed, closing). thinking: the prompt ends inside a thought. param: the name of the prompt in errors.
        length_param: that of max_tokens, where the request has one."""
        return self.generate_batch(
            [prompt_ids],
            params,
            thinking=thinking,
            split_reasoning=split_reasoning,
            param=param,
            length_param=length_param,
        )

    def generate_batch(
        self,
        prompts: Sequence[Sequence[int]],
        params: GenerationParams,
        *,
        thinking: bool = False,
        split_reasoning: bool = False,
        param: str = "prompt",
        length_param: str | None = None,
    ) -> Generation:
        """Several prompts as one stream; choice p * n + i is sample i of prompt p. All are admitted, or none."""
        steps = self._admit(prompts, params, thinking, split_reasoning, param, length_param)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return cast(Generation, end.value)

    async def generate_in_turns(
        self, prompts: Sequence[Sequence[int]], params: GenerationParams, *, length_param: str | None = None
    ) -> Generation:
        """generate_batch of any number of prompts: in between, other streams have their turns."""
        steps = self._admit(prompts, params, length_param=length_param)
        try:
            while True:
                next(steps)
                await asyncio.sleep(0)
        except StopIteration as end:
            return cast(Generation, end.value)
        finally:
            steps.close()

    def _admit(
        self,
        prompts: Sequence[Sequence[int]],
        params: GenerationParams,
        thinking: bool = False,
        split_reasoning: bool = False,
        param: str = "prompt",
        length_param: str | None = None,
    ) -> Generator[None, None, Generation]:
        """In steps of about a millisecond. What it has submitted is cancelled if it is closed between them."""
        params = with_defaults(params, self.model.defaults)
        if params.max_tokens == 0:
            params = replace(params, constraint=None)  # nothing is sampled, so no mask is ever due
        tokenizer = self.model.tokenizer
        check_params(params, self.model.info.n_token_ids)
        params = replace(params, cache_salt=salted(params.cache_salt))  # here, for continuations have another context
        most = min(_MAX_CHOICES, self.model.info.max_slots + self.model.max_queue)  # more would never be admitted
        if len(prompts) * params.n > most:
            raise RequestError(
                f"This request makes {len(prompts) * params.n} answers, more than the {most} that run and wait here; "
                "send fewer at once.",
                "prompt" if params.n == 1 else "n",
            )
        limit = self.model.info.max_context
        for prompt in prompts:
            self._check_prompt(prompt, params, limit, param, length_param)
        if self.failure is not None:
            raise EngineError(Status.DEVICE_ERROR, self.failure)
        if self._draining or self._idle is None:
            raise _closed("The server is shutting down and takes no more requests.")

        def make_output() -> OutputStream:
            return OutputStream(
                tokenizer,
                thinking=thinking,
                split_reasoning=split_reasoning,
                stops=params.stop,
                skip_special=params.skip_special,
                include_stop=params.include_stop,
                calls=params.calls,
            )

        # Where a constraint lets an answer end, it ends: EOS is no text of it, whatever ignore_eos says.
        eos = frozenset() if params.ignore_eos and params.constraint is None else self._eos_ids
        generation = Generation(
            prompts,
            params,
            make_output,
            eos | frozenset(params.stop_token_ids),
            self._cancel,
            self.observations,
        )
        if split_reasoning and params.thinking_budget is not None:
            for choice in generation._choices:
                choice.budget = ThoughtBudget(tokenizer, params.thinking_budget, thinking)
        if params.constraint is not None:
            for choice in generation._choices:
                prompt = prompts[choice.index // params.n]
                # The official template closes a thought that is not wanted; then none is looked for.
                may_think = split_reasoning and tokenizer.think_close_id not in prompt[-_CLOSED_TAIL:]
                choice.constrained = self._constrained(params.constraint, params, thinking, may_think)
        submitted: list[int] = []
        self._active.add(generation)
        self._idle.clear()
        common = engine_request((), params, self._extra_eos)
        per_turn = max(_CHOICES_PER_TURN // params.n, 1)
        try:
            for i, prompt in enumerate(prompts):
                if i and i % per_turn == 0:
                    yield
                request = self._engine.submit(replace(common, prompt=prompt))
                submitted.append(request)
                for choice in generation._choices[i * params.n : (i + 1) * params.n]:
                    choice.request = request
                    self._routes[request << _SAMPLE_BITS | choice.sample] = generation, choice
                    if choice.constrained is not None:
                        self._masks.add(choice.constrained, request, choice.sample)
        except BaseException as error:
            for request in submitted:
                self._cancel(request, -1)
                for sample in range(params.n):
                    self._routes.pop(request << _SAMPLE_BITS | sample, None)
            self._retire(generation)
            if not isinstance(error, EngineError):
                raise
            raise self._admission_error(error, prompts, params, limit, param, length_param) from None
        return generation

    def _check_prompt(
        self, prompt: Sequence[int], params: GenerationParams, limit: int, param: str, length_param: str | None
    ) -> None:
        if not prompt:
            raise RequestError(f"{param} has no tokens; at least one is needed.", param)
        needed = 1 if params.max_tokens is None else params.max_tokens
        if len(prompt) + needed > limit:
            raise ContextLengthError(limit, len(prompt), params.max_tokens, param, length_param)
        if params.min_tokens and len(prompt) + params.min_tokens > limit:
            raise RequestError(
                f"min_tokens is {params.min_tokens}, but the context of {limit} tokens leaves {limit - len(prompt)}.",
                "min_tokens",
            )

    def _admission_error(
        self,
        error: EngineError,
        prompts: Sequence[Sequence[int]],
        params: GenerationParams,
        limit: int,
        param: str,
        length_param: str | None,
    ) -> AppError:
        if error.status == Status.CONTEXT_OVERFLOW:
            return ContextLengthError(limit, max(map(len, prompts)), params.max_tokens, param, length_param)
        if error.status == Status.QUEUE_FULL:
            sentence = (
                f"The queue has no room for this request (--max-queue is {self.model.max_queue}); try again later."
            )
            return EngineError(Status.QUEUE_FULL, sentence)
        if error.status == Status.INVALID_ARGUMENT:
            return RequestError(str(error))
        if error.status == Status.DEVICE_ERROR:
            self._engine_failed(str(error))
        return error

    @staticmethod
    def _constrained(
        constraint: Constraint, params: GenerationParams, thinking: bool, may_think: bool
    ) -> ConstrainedSample:
        eos_ends_from = None if params.ignore_eos else params.min_tokens
        return ConstrainedSample(constraint.sample(thinking=thinking, may_think=may_think), eos_ends_from)

    def _cancel(self, request: int, sample: int) -> None:
        try:
            self._engine.cancel(request, sample)
        except EngineError:
            return  # the engine has failed or is closed: nothing runs any more, and the reader is told elsewhere

    # --------------------------------------------------------------------------------------------------------- events

    def _take(self) -> None:
        """The engine's descriptor is readable. The readers run before it is looked at again."""
        try:
            batch = self._engine.poll(0)
        except EngineError as error:
            self._unwatch()
            return self._engine_failed(f"The engine failed: {error}".rstrip(".") + ".")
        except Exception as error:
            self._unwatch()
            return self._engine_failed(f"The engine's events could not be read: {error!r}.")
        self._masks.take(batch.events)
        self._deliver(batch)

    def _unwatch(self) -> None:
        """From now on no events are taken."""
        if self._loop is not None and self._event_fd >= 0:
            self._loop.remove_reader(self._event_fd)
        self._event_fd = -1

    def _deliver(self, batch: EventBatch) -> None:
        """Puts a batch into the mailboxes and wakes their readers."""
        routes = self._routes
        failed: list[Generation] = []
        for event in batch.events:
            key = event.request << _SAMPLE_BITS | event.sample
            route = routes.get(key)
            if route is None:
                continue  # a request that was taken back while it was being submitted
            generation, choice = route
            kind = event.kind
            if kind == _TOKEN:
                if event.request != choice.request:
                    continue  # what the engine said behind a closed thought
                if event.n_logprobs:
                    choice.tops[event.request, event.index] = batch.top(event)
            elif kind == _PROMPT_TOKEN:
                generation._post_prompt_token(choice, event, batch.top(event))
                continue
            else:
                del routes[key]
                if event.finish_reason == FinishCode.ERROR:
                    failed.append(generation)
                if event.request != choice.request:
                    if generation._post_cut(choice, event):
                        self._ended(generation)
                    continue
                if generation._post_finished(choice, event):
                    self._ended(generation)
            if not choice.pending:
                generation._ready.append(choice)
            choice.pending.append(event)
            if kind == _TOKEN and choice.budget is not None and event.token not in generation._stop_ids:
                self._count_thought(generation, choice, event)
            waiter = generation._waiter
            if waiter is not None and not waiter.done():
                waiter.set_result(None)
        if failed and self._stats_failed():
            sentence = "The engine's device failed."
            self._engine_failed(sentence)
            for generation in failed:  # which have ended: they are not among the running ones
                generation.error = generation.error or GenerationError(sentence)

    # -------------------------------------------------------------------------------------------------- closed thoughts

    def _count_thought(self, generation: Generation, choice: _Choice, event: Event) -> None:
        """A token of a choice with a budget. A thought that has used it is closed: the engine's sample ends here, the
        closing words follow as if it had said them, and a new request continues behind them, mostly from the prefix
        cache. Its seed and positions are those that the sample had, so equal requests stay equal. Without room for the
        closing words and one token of answer the thought goes on to its limit instead."""
        budget = choice.budget
        assert budget is not None
        if not budget.push(event.token):
            if budget.settled:
                choice.budget = None
            return
        choice.budget = None
        closing = budget.closing()
        n_earlier = len(budget.ids) + len(closing)
        prompt = generation.prompts[choice.index // generation.params.n]
        max_tokens = generation.params.max_tokens
        if max_tokens is not None and n_earlier >= max_tokens:
            return
        if len(prompt) + n_earlier >= self.model.info.max_context:
            return
        self._cancel(choice.request, choice.sample)
        generation._n_open += 1  # the sample's FINISHED is still to come
        for token in closing:
            choice.pending.append(event._replace(token=token, logprob=0.0, n_logprobs=0, index=-1, time_ns=0))
        choice.request, choice.n_earlier = 0, n_earlier
        self._continue(generation, choice, [*prompt, *budget.ids, *closing])

    def _continue(self, generation: Generation, choice: _Choice, prompt: list[int]) -> None:
        """Submits what is left of a choice behind `prompt`; again and again while the queue is full."""
        assert self._loop is not None
        if self.failure is not None:
            return  # the reader has been told
        if generation._cancelled:
            return self._end(generation, choice, FinishCode.CANCELLED)
        params = params_behind(generation.params, choice.sample, choice.n_earlier)
        try:
            choice.request = self._engine.submit(engine_request(prompt, params, self._extra_eos))
        except EngineError as error:
            if error.status == Status.QUEUE_FULL:
                self._loop.call_later(_RETRY_SECONDS, self._continue, generation, choice, prompt)
            elif error.status == Status.DEVICE_ERROR:
                self._engine_failed(str(error))
            else:
                generation.error = generation.error or GenerationError(str(error))
                self._end(generation, choice, FinishCode.ERROR)
            return
        choice.sample = 0
        self._routes[choice.request << _SAMPLE_BITS] = generation, choice
        if params.constraint is not None:
            choice.constrained = self._constrained(params.constraint, params, False, False)
            self._masks.add(choice.constrained, choice.request, 0)

    def _end(self, generation: Generation, choice: _Choice, reason: FinishCode) -> None:
        """Ends a choice that the engine does not hold. Its event has no times but the one when it is handed over."""
        event = Event(
            request=choice.request,
            kind=_FINISHED,
            sample=choice.sample,
            finish_reason=reason,
            time_ns=time.monotonic_ns(),
        )
        self._routes[choice.request << _SAMPLE_BITS | choice.sample] = generation, choice
        self._deliver(EventBatch([event], []))

    def _stats_failed(self) -> bool:
        try:
            return self._engine.stats().failed
        except EngineError:
            return True

    def _ended(self, generation: Generation) -> None:
        """All samples have ended in the engine."""
        self._retire(generation)
        if generation._cancelled:
            generation._close_books()  # its reader may be gone

    def _retire(self, generation: Generation) -> None:
        self._active.discard(generation)
        if not self._active and self._idle is not None:
            self._idle.set()

    def _abandon(self, generation: Generation, error: AppError) -> None:
        self._retire(generation)
        generation._fail(error)

    def _engine_failed(self, sentence: str) -> None:
        """Every running generation gets an error; nothing is taken any more."""
        if self.failure is not None:
            return
        self.failure = sentence
        self._routes.clear()
        for generation in list(self._active):
            self._abandon(generation, GenerationError(sentence))
        if self._on_failure is not None:
            self._on_failure(sentence)


def _closed(sentence: str) -> EngineError:
    return EngineError(Status.CLOSED, sentence)
