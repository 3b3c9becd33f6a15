"""One request begins per turn of the event loop, in order, and clients that leave hold nobody up."""

from __future__ import annotations

import asyncio

from patience import PATIENCE

from qwen3app.server.turns import Turns


async def test_one_begins_per_turn_of_the_loop() -> None:
    turns = Turns()
    begun: list[int] = []
    per_turn: list[int] = []

    async def begin(i: int) -> None:
        await turns.take()
        begun.append(i)

    tasks = [asyncio.create_task(begin(i)) for i in range(20)]
    while len(begun) < 20:
        before = len(begun)
        await asyncio.sleep(0)
        per_turn.append(len(begun) - before)
    assert begun == list(range(20)) and max(per_turn) == 1
    assert len(per_turn) < 45  # they do not dawdle
    await asyncio.gather(*tasks)
    await asyncio.sleep(0)
    await asyncio.wait_for(turns.take(), PATIENCE)  # nobody waits: at once
    assert not turns._waiting


async def test_who_has_left_is_passed_over() -> None:
    turns = Turns()
    begun: list[int] = []

    async def begin(i: int) -> None:
        await turns.take()
        begun.append(i)

    tasks = [asyncio.create_task(begin(i)) for i in range(6)]
    await asyncio.sleep(0)
    for i in (1, 2, 4):
        tasks[i].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert begun == [0, 3, 5]
    await asyncio.wait_for(begin(6), PATIENCE)
    assert begun[-1] == 6
