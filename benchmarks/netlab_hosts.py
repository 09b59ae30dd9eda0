"""A cluster on one Linux machine: network namespaces with host names of their own, on links of a stated bandwidth.

Every host is a namespace with an address, a host name and an `/etc/hosts`; its one link runs to a switch (a bridge in
a namespace of its own) and is shaped in both directions. Nothing is changed outside: deleting the namespaces deletes
all of it. Needs root, and `ip` and `tc` of iproute2.
"""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "jaxdplab"
SWITCH = f"{PREFIX}-switch"
ETC = Path("/etc/netns")
LOCK = Path("/run") / f"{PREFIX}.lock"
PORT = 9911
# Small, so that no message slips through on saved-up tokens; still more than a tick of 4 ms brings at 50 Mbit/s.
BURST = "32kb"
QUEUE = "400ms"
# The one that every kernel allows in a namespace. BBR, where it is the default, paces by its own estimates instead.
CONGESTION_CONTROL = "reno"
PRIVATE = Path("/tmp/ray")  # where Ray keeps its sockets and sessions, which the hosts must not share

LAST_WORDS_S = 2.0  # for the others to end too, once a process has failed: process 0 says why

# In the namespace: a host name of its own, and the private folder; then the command.
ENTER = 'echo "$0" >/proc/sys/kernel/hostname && mount --bind "$1" "$2" && shift 2 && exec "$@"'


def refusal() -> str | None:
    """Why there can be no lab here; None if there can."""
    if sys.platform != "linux":
        return "network namespaces are Linux's"
    if os.geteuid() != 0:
        return "network namespaces need root"
    if missing := [tool for tool in ("ip", "tc", "unshare") if shutil.which(tool) is None]:
        return f"{missing[0]} is missing (apt-get install iproute2)"
    name = f"{PREFIX}-try"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if tried.returncode:
        return f"the system allows no network namespaces: {tried.stderr.strip()}"
    try:
        _ip("-n", name, "link", "set", "lo", "up")
        _shape(name, "lo", 1.0)
        enter = ["ip", "netns", "exec", name, "unshare", "--uts", "true"]
        subprocess.run(enter, check=True, capture_output=True, text=True)
    except subprocess.CalledProcessError as error:
        return f"no namespaces with shaped links: {(error.stderr or '').strip()}"
    finally:
        _ip("netns", "del", name)
    return None


class Failed(Exception):
    """A process in a host failed, or did not end in time."""


class Host:
    """One host of the lab, from 0 on."""

    def __init__(self, number: int):
        self.name = host_name(number)
        self.address = f"10.77.0.{number + 1}"

    def start(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Starts a command in the host; its stdout and stderr go to `log` and to `log` with `.err`."""
        private = log.parent / f"{self.name}-tmp"
        private.mkdir(parents=True, exist_ok=True)
        PRIVATE.mkdir(parents=True, exist_ok=True)
        enter = ["ip", "netns", "exec", self.name, "unshare", "--uts", "sh", "-c", ENTER]
        enter += [self.name, str(private), str(PRIVATE)]
        with log.open("w") as out, log.with_suffix(".err").open("w") as errors:
            return subprocess.Popen([*enter, *command], stdout=out, stderr=errors, env={**os.environ, **environment})


def host_name(number: int) -> str:
    return f"{PREFIX}{number}"


@contextmanager
def cluster(links_mbit: Sequence[float]) -> Iterator[list[Host]]:
    """Hosts with a link of so many Mbit/s each; the processes in them and all traces are gone afterwards.

    A killed lab leaves its namespaces behind: the next one, or `clean`, removes them.
    """
    with LOCK.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit(f"netlab: another lab is running ({LOCK} is locked)")
        previous = {name: signal.signal(name, _end) for name in (signal.SIGTERM, signal.SIGHUP)}
        clean()
        try:
            yield _make(links_mbit)
        finally:
            clean()
            for name, handler in previous.items():
                signal.signal(name, handler)


def _end(number: int, _: object) -> None:
    sys.exit(128 + number)


def _make(links_mbit: Sequence[float]) -> list[Host]:
    hosts = [Host(number) for number in range(len(links_mbit))]
    _ip("netns", "add", SWITCH)
    _ip("-n", SWITCH, "link", "add", "br0", "type", "bridge")
    _ip("-n", SWITCH, "link", "set", "br0", "up")
    known = "".join(f"{host.address} {host.name}\n" for host in hosts)
    for host, mbit in zip(hosts, links_mbit, strict=True):
        folder = ETC / host.name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "hosts").write_text(f"127.0.0.1 localhost\n{known}")
        _ip("netns", "add", host.name)
        _ip("-n", SWITCH, "link", "add", host.name, "type", "veth", "peer", "name", "eth0", "netns", host.name)
        _ip("-n", SWITCH, "link", "set", host.name, "master", "br0", "up")
        _ip("-n", host.name, "link", "set", "lo", "up")
        _ip("-n", host.name, "address", "add", f"{host.address}/24", "dev", "eth0")
        _ip("-n", host.name, "link", "set", "eth0", "up")
        _shape(host.name, "eth0", mbit)
        _shape(SWITCH, host.name, mbit)
        control = f"echo {CONGESTION_CONTROL} >/proc/sys/net/ipv4/tcp_congestion_control"
        _ip("netns", "exec", host.name, "sh", "-c", control)
    return hosts


def _shape(namespace: str, device: str, mbit: float) -> None:
    shape = ["root", "tbf", "rate", f"{mbit:g}mbit", "burst", BURST, "latency", QUEUE]
    subprocess.run(["tc", "-n", namespace, "qdisc", "add", "dev", device, *shape], check=True, capture_output=True)


def _ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout


def clean() -> None:
    """Ends every process in the lab's namespaces, and removes these and their files."""
    if shutil.which("ip") is None:
        return
    names = [line.split()[0] for line in _ip("netns", "list").splitlines() if line.startswith(PREFIX)]
    for name in names:
        _end_processes(name)
        _ip("netns", "del", name)
    for folder in ETC.glob(f"{PREFIX}*"):
        shutil.rmtree(folder, ignore_errors=True)


def _end_processes(namespace: str) -> None:
    deadline = time.monotonic() + 10
    while (found := _ip("netns", "pids", namespace).split()) and time.monotonic() < deadline:
        for process in found:
            with suppress(ProcessLookupError):
                os.kill(int(process), signal.SIGKILL)
        time.sleep(0.05)


def run_on_all(hosts: Sequence[Host], command: Sequence[str], folder: Path, timeout_s: float) -> str:
    """One process of a job in every host; what process 0 prints. Raises `Failed` as soon as one of them fails."""
    folder.mkdir(parents=True, exist_ok=True)
    running = []
    for number, host in enumerate(hosts):
        environment = {
            "JAXDP_COORDINATOR": f"{hosts[0].name}:{PORT}",
            "JAXDP_PROCESSES": str(len(hosts)),
            "JAXDP_PROCESS_ID": str(number),
            "JAX_PLATFORMS": "cpu",
            "JAX_NUM_CPU_DEVICES": "1",
        }
        running.append(host.start(command, folder / f"{host.name}.out", environment))
    deadline = time.monotonic() + timeout_s
    try:
        while any(process.poll() is None for process in running):
            if any(process.poll() for process in running):
                time.sleep(LAST_WORDS_S)
                break
            if time.monotonic() > deadline:
                raise Failed(f"{' '.join(command)}: not done after {timeout_s:.0f} s")
            time.sleep(0.2)
    finally:
        ended = [process.poll() for process in running]
        for process in running:
            process.kill()
            process.wait()
    if any(ended):
        said = {host.name: (folder / f"{host.name}.err").read_text().strip().splitlines()[-3:] for host in hosts}
        raise Failed("\n".join([f"{' '.join(command)}: failed", *(f"{n}: {line}" for n in said for line in said[n])]))
    return (folder / f"{hosts[0].name}.out").read_text()
