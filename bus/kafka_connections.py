"""The connections of a client of aiokafka: none is left open by what is cut off, or goes on late.

aiokafka forgets the connection that it asks for the brokers when it is cancelled meanwhile. And
whoever still asks a client that was stopped makes it connect again, which nobody ends.
"""

import asyncio
from typing import Any

from aiokafka import client as aiokafka_client
from aiokafka.conn import create_conn
from aiokafka.errors import KafkaError

#: Before asking again who the brokers are.
_AGAIN_S = 0.1
#: By task that bootstraps, what it connected to.
_bootstrapping: dict[Any, list[Any]] = {}


def tend(connections: Any) -> None:
    """Have a client, which is about to start, leave no connection behind."""
    aiokafka_client.create_conn = _connect
    bootstrap, connect, close = connections.bootstrap, connections._get_conn, connections.close
    closed = False

    async def bootstrap_until_named() -> None:
        """Return only when the broker has named a broker, itself for example.

        One that slept, or has just come, names none until the controller lets it in again. aiokafka
        would take that for an answer, and fail an assertion of its own when it looks for a
        coordinator.
        """
        await _bootstrap(bootstrap)
        while not connections.cluster.brokers():
            await asyncio.sleep(_AGAIN_S)
            await connections.force_metadata_update()

    async def connect_until_closed(node_id: Any, **more: Any) -> Any:
        made = None if closed else await connect(node_id, **more)
        if closed:
            if made is not None:
                made.close()
            raise KafkaError("its client was stopped")  # to try again would be of no use
        return made

    async def close_for_good() -> None:
        nonlocal closed
        closed = True
        await close()

    connections.bootstrap = bootstrap_until_named
    connections._get_conn = connect_until_closed
    connections.close = close_for_good


async def _bootstrap(bootstrap: Any) -> None:
    task = asyncio.current_task()
    made = _bootstrapping[task] = []
    try:
        await bootstrap()
    except BaseException:
        for connection in made:
            connection.close()
        raise
    finally:
        del _bootstrapping[task]


async def _connect(*where: Any, **how: Any) -> Any:
    made = await create_conn(*where, **how)
    _bootstrapping.get(asyncio.current_task(), []).append(made)
    return made
