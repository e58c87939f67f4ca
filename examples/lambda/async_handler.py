"""The same with asynchronous nodes and tools; the handler is `async_handler.handler`. See `handler.py` for the rest."""

import asyncio
import os
from typing import Any

from agent import answer_to, config_of, input_of, make_agent

from langgraph.checkpoint.s3.aio import AsyncS3Saver

# At module level too: it makes a client for each event loop, and closes it when the loop ends.
saver = AsyncS3Saver(os.environ["BUCKET"], os.environ.get("PREFIX", "agents"))
graph = make_agent(saver)


async def main(event: dict[str, str]) -> dict[str, str]:
    """Take an event to its end, wherever an earlier delivery of it stopped."""
    config = config_of(event)
    known = (await graph.aget_state(config)).values.get("messages", [])
    state = await graph.ainvoke(input_of(event, known), config, durability="sync")
    return answer_to(event, state["messages"])


def handler(event: dict[str, str], context: Any) -> dict[str, str]:
    """Run the turn. Lambda's runtime calls a handler and never awaits it, so this one is no coroutine."""
    return asyncio.run(main(event))
