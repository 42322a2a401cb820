"""Processes that were started again do not take the dead for the living, whatever these left in the store."""

import threading
from datetime import timedelta

import pytest
from torch.distributed import HashStore

from g2lstm import G2Error
from g2lstm.training.environment import agree, init_method

SOON = timedelta(seconds=60)


def meet(store, size, order):
    """The names that processes, started in this order, agree on."""
    names = {}
    threads = [
        threading.Thread(target=lambda rank=rank: names.update({rank: agree(store, rank, size, SOON)}))
        for rank in order
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return [names[rank] for rank in range(size)]


def test_each_start_has_a_name_of_its_own():
    store = HashStore()
    found = [meet(store, size, order) for size, order in ((3, (0, 1, 2)), (3, (2, 1, 0)), (2, (1, 0)), (1, (0,)))]
    assert all(len(set(names)) == 1 for names in found)
    assert len({names[0] for names in found}) == 4


def test_one_that_waited_for_a_dead_first_process_finds_the_living():
    store = HashStore()
    meet(store, 2, (0, 1))
    stale = store.get("g2lstm/first").decode()
    store.set(f"g2lstm/{stale}/1", "a word that was never answered")
    found = []
    early = threading.Thread(target=lambda: found.append(agree(store, 1, 2, SOON)))
    early.start()
    early.join(0.5)
    assert early.is_alive()  # the first of the earlier start does not answer
    name = agree(store, 0, 2, SOON)
    early.join(60)
    assert found == [name]
    assert name != stale


def test_a_first_process_that_never_comes(monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "node-7")
    monkeypatch.setenv("MASTER_PORT", "29500")
    store = HashStore()
    meet(store, 2, (0, 1))
    with pytest.raises(
        G2Error, match="process 1 of 2 has waited 0:00:00.2.* for the first one, at node-7:29500; check"
    ):
        agree(store, 1, 2, timedelta(seconds=0.2))


def test_the_way_to_meet_is_registered_once():
    assert init_method() == init_method()
