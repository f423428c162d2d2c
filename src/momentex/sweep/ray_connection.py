"""A connection to a Ray cluster: the address is checked before Ray is asked, and Ray keeps to itself what it prints."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from typing import Any, TextIO, cast

from momentex.errors import RunError
from momentex.sweep.watch import Watch

HERE = "ray"  # the cluster that is there, or one of this machine alone
CONNECT = 10.0  # seconds that an address may take to answer


@contextmanager
def connected(address: str, watch: Watch) -> Iterator[Any]:
    """Ray, connected."""
    ray = _ray()
    if ray.is_initialized():  # by the user, who also ends it
        yield ray
        return
    _check_reachable(address)
    before = _handlers()
    with redirect_stdout(cast(TextIO, _Stdout(sys.stdout))):
        try:
            _init(ray, address, watch)
        finally:
            for number, handler in before.items():  # Ray has its own
                signal.signal(number, handler)
        try:
            yield ray
        finally:
            ray.shutdown()


def _ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nobody is told that there was a sweep
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise RunError("a cluster needs ray, which is not installed. Do: pip install 'momentex[cluster]'") from None
    return ray


def _init(ray: Any, address: str, watch: Watch) -> None:
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        if address != HERE:
            ray.init(address=address, **({} if address.startswith("ray://") else quiet))
            return
        with suppress(ConnectionError):
            ray.init(address=os.environ.get("RAY_ADDRESS", "auto"), **quiet)
            return
        if "RAY_ADDRESS" not in os.environ:
            ray.init(address="local", include_dashboard=False, **quiet)
            watch.say("no Ray cluster runs here: one of this machine alone was started, for as long as this takes")
            return
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise RunError(
            f"Ray at {address} could not be used: {type(error).__name__}: {error} If the cluster asks for a token, set "
            "RAY_AUTH_MODE=token, and give the token as Ray's documentation says."
        ) from error
    _unreachable(os.environ["RAY_ADDRESS"], "no answer")


class _Stdout:
    """Without what Ray's own threads print: pages of logs for a node that is lost, among the results of a command."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        return len(text) if threading.current_thread().name.startswith("ray_") else self._stream.write(text)


def _handlers() -> dict[int, Any]:
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}


def check_address(address: str) -> tuple[str, int] | None:
    """The host and the port that are meant; None where none is named."""
    if address in (HERE, "auto", "local"):
        return None
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise RunError(
            f"{address!r} is no address of a Ray cluster: it is written as HOST:6379, as ray://HOST:10001, or as auto "
            "for the one that runs on this machine."
        )
    return host.strip("[]"), int(port)


def _check_reachable(address: str) -> None:
    """Ray itself waits for minutes, and then ends the process."""
    asked = os.environ.get("RAY_ADDRESS", HERE) if address == HERE else address
    if (place := check_address(asked)) is None:
        return
    try:
        with socket.create_connection(place, timeout=CONNECT):
            pass
    except OSError as error:
        _unreachable(asked, str(error.strerror or error))


def _unreachable(address: str, why: str) -> None:
    raise RunError(
        f"no Ray cluster answers at {address} ({why}). Is its head running (`ray start --head`), and is this its "
        "address? HOST:6379 is for the machines of the cluster, ray://HOST:10001 for others. Nothing was trained."
    )
