"""The savers that are measured: one small adapter each. A package is imported when its saver is opened, not before.

To add a saver, write a subclass of `Peer` and name it in `PEERS`; its distributions go into `ENVIRONMENTS` of
`benchmarks/run.py`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.fast import send_puts_directly, write_directly
from benchmarks.server.control import ServerControl


class Peer:
    """A saver on one empty place: a bucket, a table, a file.

    Attributes:
        label: What the tables call it.
        distributions: Whose versions the report tells.
        environment: The virtual environment that it is installed in.
        needs_postgres: Whether it needs PostgreSQL.
        saver: The saver.
    """

    label: str
    distributions: tuple[str, ...] = ()
    environment = "main"
    needs_postgres = False

    def __init__(self, addresses: Mapping[str, str], place: str) -> None:
        self.addresses, self.place = addresses, place
        self.control = ServerControl(addresses["s3"])
        self.saver: Any = None

    def prepare(self) -> None:
        """Make the place."""
        self.control.create(self.place)

    def open(self, seeding: bool = False) -> None:
        """Make the saver.

        Args:
            seeding: Whether it will only be used to make threads: then PUTs may bypass the SDK.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Forget the saver."""
        self.saver = None

    def call(self, name: str, *args: Any, **options: Any) -> Any:
        """Call one of the saver's methods. Listings come as lists."""
        if not hasattr(self.saver, name):
            raise NotImplementedError
        result = getattr(self.saver, name)(*args, **options)
        return list(result) if name == "list" else result

    def invoke(self, graph: Any, given: Any, config: Any) -> Any:
        """Run a graph."""
        return graph.invoke(given, config)

    def copy_thread(self, source: str, target: str) -> None:
        """Copy a thread, by whatever the saver offers for it."""
        self.call("copy_thread", source, target)

    def stored(self) -> int:
        """Bytes stored in the place."""
        return self.control.size(self.place)

    def boto_client(self, seeding: bool) -> Any:
        """A boto3 client as a saver would make it."""
        import boto3

        client = boto3.client("s3", endpoint_url=self.addresses["s3"])
        return send_puts_directly(client, self.addresses["s3"]) if seeding else client


class S3SaverPeer(Peer):
    label = "S3Saver"
    distributions = ("langgraph-checkpoint-s3saver",)

    def open(self, seeding: bool = False) -> None:
        client, module = self.boto_client(True) if seeding else None, import_module("langgraph.checkpoint.s3")
        self.saver = module.S3Saver(self.place, "agents", endpoint_url=self.addresses["s3"], client=client)


class AsyncS3SaverPeer(S3SaverPeer):
    """Runs on a loop of its own. Threads are made by S3Saver, as what is stored is the same."""

    label = "AsyncS3Saver"

    def open(self, seeding: bool = False) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        if seeding:
            super().open(seeding)
            return
        self.loop = asyncio.new_event_loop()
        module = import_module("langgraph.checkpoint.s3.aio")
        self.saver = module.AsyncS3Saver(self.place, "agents", endpoint_url=self.addresses["s3"])

    def call(self, name: str, *args: Any, **options: Any) -> Any:
        if self.loop is None or not hasattr(self.saver, f"a{name}"):
            return super().call(name, *args, **options)
        return self.loop.run_until_complete(finished(getattr(self.saver, f"a{name}")(*args, **options)))

    def invoke(self, graph: Any, given: Any, config: Any) -> Any:
        assert self.loop is not None
        return self.loop.run_until_complete(graph.ainvoke(given, config))

    def close(self) -> None:
        super().close()
        if self.loop is not None:
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()


async def finished(it: Any) -> Any:
    """Await a coroutine, or collect what an asynchronous generator gives."""
    return await it if inspect.isawaitable(it) else [item async for item in it]


class ObjectStoragePeer(Peer):
    label = "objectstorage"
    distributions = ("langgraph-checkpoint-objectstorage", "s3fs")
    compression = "none"

    def open(self, seeding: bool = False) -> None:
        module = import_module("langgraph_checkpoint_objectstorage")
        self.saver = module.ObjectStorageSaver.from_conn_string(
            f"s3://{self.place}/agents",
            compression=self.compression,
            client_kwargs={"endpoint_url": self.addresses["s3"]},
        )
        if seeding:
            write_directly(self.saver.fs, self.addresses["s3"])

    def copy_thread(self, source: str, target: str) -> None:
        self.call("import_thread", self.call("export_thread", source), dest_thread_id=target)


class ObjectStorageZstdPeer(ObjectStoragePeer):
    label = "objectstorage, zstd"
    compression = "zstd"


class TigrisPeer(Peer):
    label = "tigris"
    distributions = ("langgraph-checkpoint-tigris",)
    environment = "aioboto3"

    def open(self, seeding: bool = False) -> None:
        module = import_module("langgraph.checkpoint.tigris")
        self.saver = module.TigrisSaver(self.place, client=self.boto_client(seeding), prefix="agents")


class CheckpointS3Peer(Peer):
    """Every `put` raises with langgraph-checkpoint 3 and 4, whose serializer has no `dumps`; so it has an older one."""

    label = "checkpoint-s3"
    distributions = ("langgraph-checkpoint-s3", "langgraph-checkpoint")
    environment = "checkpoint2"

    def open(self, seeding: bool = False) -> None:
        module = import_module("langgraph_checkpoint_s3")
        self.saver = module.S3CheckpointSaver(self.place, prefix="agents", s3_client=self.boto_client(seeding))


class S3CheckpointerPeer(Peer):
    label = "s3-checkpointer"
    distributions = ("langgraph-s3-checkpointer",)

    def open(self, seeding: bool = False) -> None:
        module = import_module("s3checkpointer.s3saver")
        self.saver = module.S3CheckpointSaver(self.place, "agents", region_name="us-east-1")
        self.saver.s3 = self.boto_client(seeding)  # it has no option for an endpoint


class DynamoDBPeer(Peer):
    label = "aws (DynamoDB and S3)"
    distributions = ("langgraph-checkpoint-aws",)

    def prepare(self) -> None:
        super().prepare()
        import boto3

        boto3.client("dynamodb", endpoint_url=self.addresses["dynamodb"]).create_table(
            TableName=self.place,
            KeySchema=[{"AttributeName": "PK", "KeyType": "HASH"}, {"AttributeName": "SK", "KeyType": "RANGE"}],
            AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name in ("PK", "SK")],
            BillingMode="PAY_PER_REQUEST",
        )

    def open(self, seeding: bool = False) -> None:
        module = import_module("langgraph_checkpoint_aws")
        self.saver = module.DynamoDBSaver(
            self.place,
            endpoint_url=self.addresses["dynamodb"],
            s3_offload_config={"bucket_name": self.place, "endpoint_url": self.addresses["s3"]},
        )


class SqlitePeer(Peer):
    label = "SqliteSaver"
    distributions = ("langgraph-checkpoint-sqlite",)

    def open(self, seeding: bool = False) -> None:
        from langgraph.checkpoint.sqlite import SqliteSaver

        self._open = ExitStack()
        self.saver = self._open.enter_context(SqliteSaver.from_conn_string(str(self._file)))
        self.saver.setup()

    @property
    def _file(self) -> Path:
        return Path(self.addresses["scratch"]) / f"{self.place}.sqlite"

    def prepare(self) -> None:
        for file in self._file.parent.glob(f"{self._file.name}*"):
            file.unlink()

    def close(self) -> None:
        super().close()
        self._open.close()

    def stored(self) -> int:
        return sum(file.stat().st_size for file in self._file.parent.glob(f"{self._file.name}*"))


class PostgresPeer(Peer):
    label = "PostgresSaver"
    distributions = ("langgraph-checkpoint-postgres",)
    needs_postgres = True
    tables = ("checkpoints", "checkpoint_blobs", "checkpoint_writes")

    def _address(self, database: str) -> str:
        host, _, port = self.addresses["postgres"].partition(":")
        return f"host={host} port={port} user=postgres dbname={database} sslmode=disable gssencmode=disable"

    def prepare(self) -> None:
        import psycopg

        with psycopg.connect(self._address("postgres"), autocommit=True) as connection:
            connection.execute(f'DROP DATABASE IF EXISTS "{self.place}"'.encode())
            connection.execute(f'CREATE DATABASE "{self.place}"'.encode())

    def open(self, seeding: bool = False) -> None:
        from langgraph.checkpoint.postgres import PostgresSaver

        self._open = ExitStack()
        self.saver = self._open.enter_context(PostgresSaver.from_conn_string(self._address(self.place)))
        self.saver.setup()

    def close(self) -> None:
        super().close()
        self._open.close()

    def stored(self) -> int:
        sizes = " + ".join(f"pg_total_relation_size('{table}')" for table in self.tables)
        return int(self.saver.conn.execute(f"SELECT {sizes} AS size").fetchone()["size"])


PEERS: Mapping[str, type[Peer]] = {
    "s3saver": S3SaverPeer,
    "asyncs3saver": AsyncS3SaverPeer,
    "objectstorage": ObjectStoragePeer,
    "objectstorage-zstd": ObjectStorageZstdPeer,
    "tigris": TigrisPeer,
    "checkpoint-s3": CheckpointS3Peer,
    "s3-checkpointer": S3CheckpointerPeer,
    "aws": DynamoDBPeer,
    "postgres": PostgresPeer,
    "sqlite": SqlitePeer,
}
"""In the order of the tables."""
