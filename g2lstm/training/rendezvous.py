"""How the processes of a training meet, also when torchrun has started them again.

Torchrun's agent keeps one store of addresses for as long as it lives. Processes that were started again would read the
addresses of the dead there, and be refused (https://github.com/pytorch/pytorch/issues/135712). The count of restarts
cannot tell them apart: each node of several has a count of its own. So processes agree on a name for this start first,
and keep their addresses under it.
"""

import atexit
import os
import time
from collections.abc import Iterator
from datetime import timedelta
from functools import cache
from uuid import uuid4

from torch import distributed
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]  # not in its __all__
from torch.distributed.rendezvous import register_rendezvous_handler, rendezvous

from g2lstm.errors import G2Error

_SECONDS_BETWEEN_CALLS = 0.1


@cache
def init_method() -> str:
    """What `torch.distributed.init_process_group` is to be told, with RANK and all else in the environment."""
    register_rendezvous_handler("g2lstm", _meet)
    atexit.register(_part)
    return "g2lstm://"


def _meet(_url: str, *, timeout: timedelta) -> Iterator[tuple[Store, int, int]]:
    store, rank, size = next(rendezvous("env://", timeout=timeout))
    yield PrefixStore(agree(store, rank, size, timeout), store), rank, size


def _part() -> None:
    """Ends gloo's threads while Python still runs: one that needs it afterwards aborts the process."""
    if distributed.is_initialized():
        distributed.destroy_process_group()


def agree(store: Store, rank: int, size: int, timeout: timedelta) -> str:
    """A name that the processes that are there now have in common, whatever others have left in the store.

    The first process makes it up and answers the word of each other one. These call the first process by whichever name
    is in the store, until their word, which nobody had before, is answered: the dead do not answer.

    Args:
        store: that all processes share.
        rank: of this process.
        size: how many there are.
        timeout: how long to wait for the others.
    """
    if rank == 0:
        name = uuid4().hex
        store.set("g2lstm/first", name)
        for other in range(1, size):
            word = store.get(f"g2lstm/{name}/{other}").decode()
            store.set(f"g2lstm/{word}", name)
        return name
    word, deadline = uuid4().hex, time.monotonic() + timeout.total_seconds()
    while not store.check([f"g2lstm/{word}"]):
        if time.monotonic() > deadline:
            raise G2Error(
                f"process {rank} of {size} has waited {timeout} for the first one, at "
                f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}; see that it was started, and its log"
            )
        name = store.get("g2lstm/first").decode()
        store.set(f"g2lstm/{name}/{rank}", word)
        time.sleep(_SECONDS_BETWEEN_CALLS)
    return store.get(f"g2lstm/{word}").decode()
