"""The processes of a job meet before JAX starts (no JAX): who is missing or refuses is told to all in one line.

JAX's own failure to join is an abort of the process without a word on whom it waited for. So process 0 listens
on the coordinator's port first, the others say who they are and how they fared so far, and all hear the same
answer. Only then does JAX's coordination service take the port over.
"""

import json
import socket
import time
from typing import Any, NamedTuple

from jaxdp.errors import BadInput, JaxdpError

RETRY_S = 0.2
REFUSAL_S = 30.0  # how long one that refuses waits for the others to tell them
ANSWER_S = 10.0  # beyond the time that process 0 waits for the last one
MAX_BYTES = 65_536  # a message's; a longer one comes from another program
MAX_CHARACTERS = 8000  # of a refusal
LOOPBACK = ("127.0.0.1", "::1")


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def bind(self) -> "Address":
        """Where process 0 listens: on loopback if that is where the others look for it, else on every interface."""
        host = "127.0.0.1" if self.host == "localhost" else self.host
        return Address(host if host in LOOPBACK else "", self.port)


class Refusal(NamedTuple):
    """Why a process cannot take part, and the exit code that all processes end with."""

    message: str
    exit_code: int


def parse_address(text: str, origin: str = "--coordinator") -> Address:
    """`origin` (the flag or variable) begins the error's line."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise BadInput(f"{origin} {text}: expected HOST:PORT, process 0's host and a free port there, 1 to 65535")
    return Address(host, int(port))


class Wait:
    """Until a deadline, or until `stop` becomes true, which raises."""

    def __init__(self, seconds: float, stop: object = False):
        self.deadline = time.monotonic() + seconds
        self.stop = stop

    def goes_on(self) -> bool:
        if self.stop:
            stopped = JaxdpError("stopped while waiting for the other processes")
            stopped.exit_code = getattr(self.stop, "exit_code", None) or stopped.exit_code
            raise stopped
        return time.monotonic() < self.deadline


def meet(
    address: Address, processes: int, process_id: int, timeout_s: float, own: Refusal | None, stop: object = False
) -> Refusal | None:
    """Waits until all processes have come; returns the first one's refusal, or None if all may go on.

    Who did not come in time is the refusal of all that did. Raises `JaxdpError` if process 0 cannot be reached
    within `timeout_s`, or once `stop` is true.
    """
    wait = Wait(timeout_s, stop)
    own = own and own._replace(message=own.message[:MAX_CHARACTERS])
    if process_id == 0:
        return _receive(address, processes, timeout_s, own, wait)
    return _report(address, processes, process_id, timeout_s, own, wait)


def _receive(address: Address, processes: int, timeout_s: float, own: Refusal | None, wait: Wait) -> Refusal | None:
    refusals = {0: own}
    connections: list[socket.socket] = []
    try:
        with _listener(address) as listener:
            listener.settimeout(RETRY_S)
            while len(refusals) < processes and wait.goes_on():
                try:
                    connection, _ = listener.accept()
                except TimeoutError:
                    continue
                arrived = _read(connection, Wait(ANSWER_S, wait.stop))
                if not _is_ours(arrived):
                    connection.close()  # a port scanner, a health check
                    continue
                connections.append(connection)
                process_id, refusal = _arrival(arrived, processes, refusals)
                refusals[process_id] = refusal
                if any(refusals.values()):  # the others are told if they come soon
                    wait.deadline = min(wait.deadline, time.monotonic() + REFUSAL_S)
        missing = [str(process_id) for process_id in range(processes) if process_id not in refusals]
        found = next((refusals[process_id] for process_id in sorted(refusals) if refusals[process_id]), None)
        if missing and not found:
            found = Refusal(
                f"process {', '.join(missing)} of {processes} did not come to {address} within {timeout_s:g} s; "
                "start it, or correct --processes",
                JaxdpError.exit_code,
            )
        for connection in connections:
            _send(connection, {"refusal": found})
        return found
    finally:
        for connection in connections:
            connection.close()


def _is_ours(said: Any) -> bool:
    return (
        isinstance(said, dict)
        and said.keys() == {"process_id", "processes", "host", "refusal"}
        and all(isinstance(said[key], int) and said[key] >= 0 for key in ("process_id", "processes"))
        and isinstance(said["host"], str)
        and (said["refusal"] is None or _is_refusal(said["refusal"]))
    )


def _is_refusal(said: Any) -> bool:
    return isinstance(said, list) and [type(part) for part in said] == [str, int]


def _arrival(said: Any, processes: int, refusals: dict[int, Refusal | None]) -> tuple[int, Refusal | None]:
    """Which process has come, with its refusal or what process 0 holds against it."""
    process_id, host = said["process_id"], said["host"]
    if said["processes"] != processes:
        counts = f"--processes {said['processes']}, process 0 with {processes}"
        told = f"process {process_id} on {host} was started with {counts}"
        return process_id, Refusal(told, BadInput.exit_code)
    if process_id in refusals:
        told = f"two processes were started with --process-id {process_id}, one of them on {host}; each needs its own"
        return process_id, Refusal(told, BadInput.exit_code)
    if said["refusal"] is None:
        return process_id, None
    message, exit_code = said["refusal"]
    return process_id, Refusal(f"process {process_id} on {host}: {message}", exit_code)


def _report(
    address: Address, processes: int, process_id: int, timeout_s: float, own: Refusal | None, wait: Wait
) -> Refusal | None:
    while True:
        try:
            connection = socket.create_connection(address, timeout=max(RETRY_S, min(5.0, timeout_s)))
            break
        except OSError as error:
            if not wait.goes_on():
                raise JaxdpError(
                    f"process {process_id}: process 0 was not reached at {address} within {timeout_s:g} s "
                    f"({error.strerror or error}); start it, or correct --coordinator"
                ) from None
            time.sleep(RETRY_S)
    with connection:
        here = {"process_id": process_id, "processes": processes, "host": socket.gethostname()}
        _send(connection, {**here, "refusal": own})
        wait.deadline += ANSWER_S
        answer = _read(connection, wait)
    if not isinstance(answer, dict) or not (answer.get("refusal", 0) is None or _is_refusal(answer.get("refusal"))):
        raise JaxdpError(f"process {process_id}: process 0 ended, or {address} is another program's; see process 0")
    return None if answer["refusal"] is None else Refusal(*answer["refusal"])


def _listener(address: Address) -> socket.socket:
    host, port = address.bind
    try:
        if host:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            return socket.create_server((host, port), family=family)
        if socket.has_dualstack_ipv6():
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
        return socket.create_server(("", port))
    except OSError as error:
        raise BadInput(
            f"--coordinator {address}: process 0 cannot listen on port {port} ({error.strerror}); choose a free one"
        ) from None


def _send(connection: socket.socket, message: dict[str, Any]) -> None:
    try:
        connection.sendall((json.dumps(message) + "\n").encode())
    except OSError:
        return  # it has ended, and notices by itself


def _read(connection: socket.socket, wait: Wait) -> Any:
    """One message, or None if none came."""
    connection.settimeout(RETRY_S)
    line = b""
    while not line.endswith(b"\n") and len(line) < MAX_BYTES and wait.goes_on():
        try:
            part = connection.recv(MAX_BYTES)
        except TimeoutError:
            continue
        except OSError:
            return None
        if not part:
            return None
        line += part
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
