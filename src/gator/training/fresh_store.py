"""A key-value store in which the processes of a run find each other, without keys that an earlier start has left behind.

torchrun may keep its store when it starts the workers again after a failure, and torch leaves the keys of a destroyed group in
it: a new group would then find the addresses of processes that are gone, and wait for them. The number of the restart cannot
tell the starts apart either, since every node counts its own.
"""

from __future__ import annotations

import secrets
import time

from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]
from torch.distributed.constants import default_pg_timeout

from gator.errors import RunError

_SECONDS_BETWEEN_LOOKS = 0.05


def fresh_store(store: Store, rank: int, count: int) -> Store:
    """A part of `store` that these processes alone use; called by all of them, with the ranks 0 to `count` - 1.

    Rank 0 makes up a name. The others may read the name of an earlier start first, so each of them answers with a number that
    it has drawn, and uses a name only once its number has been confirmed under it.
    """
    if rank == 0:
        name = secrets.token_hex(8)
        store.set("gator/name", name)
        for other in range(1, count):
            drawn = store.get(f"gator/{name}/of-rank-{other}").decode()  # waits for it
            store.set(f"gator/{name}/confirmed-{drawn}", "")
        return PrefixStore(f"gator/{name}", store)
    drawn, deadline = secrets.token_hex(8), time.monotonic() + default_pg_timeout.total_seconds()
    while time.monotonic() < deadline:
        name = store.get("gator/name").decode()
        store.set(f"gator/{name}/of-rank-{rank}", drawn)
        time.sleep(_SECONDS_BETWEEN_LOOKS)
        if store.check([f"gator/{name}/confirmed-{drawn}"]):
            return PrefixStore(f"gator/{name}", store)
    raise RunError(
        f"rank {rank} has waited {default_pg_timeout} for rank 0; start all processes of the run at about the same time"
    )
