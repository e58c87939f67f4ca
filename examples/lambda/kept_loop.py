"""The asynchronous handler on one event loop for all invocations, which keeps its connections: `kept_loop.handler`."""

import asyncio
from typing import Any

from async_handler import main

loop = asyncio.new_event_loop()


def handler(event: dict[str, str], context: Any) -> dict[str, str]:
    """Run the turn; between invocations the loop stands still."""
    return loop.run_until_complete(main(event))
