"""Where Agent Server keeps its threads: `checkpointer` in langgraph.json names this function."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from langgraph.checkpoint.s3.aio import AsyncS3Saver


@asynccontextmanager
async def checkpointer() -> AsyncIterator[AsyncS3Saver]:
    """The saver. It needs no pool and no migration; leaving the block closes its connections."""
    async with AsyncS3Saver(os.environ["BUCKET"], os.environ.get("PREFIX", "agents")) as saver:
        await saver.setup()  # says at the start what is wrong with the bucket or its policy
        yield saver
