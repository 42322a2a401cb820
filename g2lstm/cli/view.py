"""`g2lstm view`: a web page that shows what the gates do on a sentence."""

import socket
from contextlib import suppress
from typing import Annotated

import typer

from g2lstm.cli.shared import DataDir, Runs, say, tell
from g2lstm.errors import G2Error, needs


def view(
    runs: Runs,
    host: Annotated[
        str, typer.Option(help="The address to listen on; any but a loopback address lets other machines see the page.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on; 0 picks a free one.")] = 8150,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Serve a web page that shows the gates of a sentence by word, layer and unit, for up to two runs side by side.

    Only this machine can reach the page, unless --host says otherwise. Ctrl-C stops the server.

    Example: `g2lstm view runs/ptb-small runs/ptb-small+small`
    """
    with needs("view", "g2lstm view"):
        import uvicorn

        from g2lstm.view.connections import configured
        from g2lstm.view.server import LOOPBACK, create_app
    import torch

    from g2lstm.look.examine import named_runs
    from g2lstm.view.run import ViewedRun

    torch.set_num_threads(1)  # a sentence is so little work that several threads would mostly wait for each other

    shown = [ViewedRun(name, directory, data_dir) for name, directory in named_runs(runs).items()]
    is_loopback = host in LOOPBACK
    hosts = LOOPBACK if is_loopback else (*LOOPBACK, host, socket.gethostname())
    app = create_app(shown, hosts=hosts, any_address=not is_loopback)
    with _listen(host, port) as listening:
        if not is_loopback:
            tell(
                f"Anyone who can reach {host} can use this page: it has no password. Without --host, only this machine "
                "can reach it."
            )
        name = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        address = f"http://{f'[{name}]' if ':' in name else name}:{listening.getsockname()[1]}/"
        say(f"{address}  (Ctrl-C stops it)")
        if open_browser:
            typer.launch(address)
        server = uvicorn.Server(configured(app))
        with suppress(KeyboardInterrupt):  # Ctrl-C may or may not raise it, depending on what it interrupts
            server.run(sockets=[listening])
        say("stopped")


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen()  # so that a visitor who comes before the server is ready waits
    except OSError as error:
        listening.close()
        raise G2Error(
            f"can't listen on {host}, port {port}: {error.strerror or error}; choose another with --port or --host"
        ) from None
    return listening
