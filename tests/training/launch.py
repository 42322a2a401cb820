"""Starts processes for the tests of several, and waits for them."""

import os
import random
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PATIENCE = 1200  # seconds, on a machine that has much else to do


def start_pair(*arguments, **environment):
    """Two processes as torchrun would start them, but with nobody who ends the one if the other dies."""
    shared = {"WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), **environment}
    return [_start(arguments, {**shared, "RANK": rank, "LOCAL_RANK": rank}) for rank in range(2)]


def start_torchrun(nodes, *arguments, **environment):
    """A torchrun for each node, all on this machine, with two processes together and one restart."""
    endpoint = f"--rdzv-endpoint=127.0.0.1:{free_port()}"
    where = [f"--nnodes={nodes}", f"--nproc-per-node={2 // nodes}", "--rdzv-backend=c10d", "--rdzv-id=test", endpoint]
    environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    command = ["-m", "torch.distributed.run", *where, "--max-restarts=1", *arguments]
    return [_start(command, environment) for _ in range(nodes)]


def wait_for(processes):
    """What they print; one that does not end in time fails the test."""
    try:
        return [process.communicate(timeout=PATIENCE)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()


def free_port():
    """A port below those that the system gives to connections, which could take it before it is used."""
    for port in random.SystemRandom().sample(range(20_000, 32_000), 100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("all ports are taken")


def _start(arguments, environment):
    shared = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | shared | {name: str(value) for name, value in environment.items()},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
