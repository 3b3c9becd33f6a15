"""Functions for the terminal chat: `/tools docs/example_tools.py`, and then ask for one of the things below.

    What time is it in Tokyo?
    Roll 3 dice with 6 sides.
    Read the file notes.txt.

They need nothing but Python. Each answers with a JSON object, since its keys tell a small model what the values are.
"""

from __future__ import annotations

import random
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo, available_timezones


def get_time(city: str) -> dict[str, str]:
    """Get the local time of a city.

    Args:
        city: The city
    """
    place = city.strip().replace(" ", "_").lower()
    for zone in sorted(available_timezones()):
        if zone.lower().endswith(f"/{place}"):
            return {"time": datetime.now(ZoneInfo(zone)).strftime("%H:%M")}
    raise LookupError(f"no time zone is named after {city}")


def roll_dice(count: int, sides: int = 6) -> dict[str, int]:
    """Roll dice.

    Args:
        count: How many dice
        sides: Sides of each
    """
    return {"sum": sum(random.randint(1, sides) for _ in range(count))}


def read_file(path: str) -> dict[str, str]:
    """Read a text file.

    Args:
        path: The path of the file
    """
    return {"content": Path(path).read_text(encoding="utf-8")[:2000]}
