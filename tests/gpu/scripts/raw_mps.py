"""Show the answers and the behaviour of NVIDIA's MPS with two clients, without the launcher.

Each command to the daemon is shown with the bytes of its two streams and its duration. Then follow
the time until a server is ACTIVE, the processes that the driver lists, and the effects on the
server and on the other client when a client is killed under load. Exit code 77: MPS is missing.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pynvml

CONTROL = "nvidia-cuda-mps-control"
LIMIT = 20.0  # seconds
CLIENT = """
import time, torch
began = time.monotonic()
a = torch.randn(4096, 4096, device="cuda")
torch.cuda.synchronize()
print(f"first kernel after {time.monotonic() - began:.2f} s", flush=True)
while True:
    for _ in range(50): a = (a @ a).clamp(-1, 1)
    torch.cuda.synchronize()
    print(f"{time.time():.2f}", flush=True)
"""
START = time.monotonic()


def say(*words: object) -> None:
    print(f"{time.monotonic() - START:6.2f}", *words, flush=True)


class Client:
    def __init__(self, directory: Path, name: str) -> None:
        self.name = name
        self.out = directory / f"{name}.txt"
        with self.out.open("w") as out:
            self.process = subprocess.Popen([sys.executable, "-c", CLIENT], stdout=out, stderr=out)

    def lines(self) -> list[str]:
        return self.out.read_text().splitlines()

    def until_it_computes(self) -> None:
        began = time.monotonic()
        while len(self.lines()) < 3 and self.process.poll() is None:
            if time.monotonic() - began > LIMIT:
                break
            time.sleep(0.05)
        say(f"client {self.name} ({self.process.pid}):", self.lines()[:1], self.process.poll())

    def show(self) -> None:
        code, lines = self.process.poll(), self.lines()
        say(f"client {self.name}: exit code {code}, {len(lines)} lines, last {lines[-1:]}")


def ask(command: str) -> str:
    began = time.monotonic()
    try:
        line = f"{command}\n".encode()
        done = subprocess.run([CONTROL], input=line, capture_output=True, timeout=5)
    except subprocess.TimeoutExpired:
        say(f"{command!r}: no answer within 5 s")
        return ""
    took = time.monotonic() - began
    say(f"{command!r} -> {done.returncode}, {done.stdout!r}, stderr {done.stderr!r}, {took:.3f} s")
    return done.stdout.decode()


def servers() -> list[str]:
    return ask("get_server_list").split()


def list_processes(handle: object) -> None:
    for name in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetMPSComputeRunningProcesses"):
        try:
            found = [(p.pid, (p.usedGpuMemory or 0) >> 20) for p in getattr(pynvml, name)(handle)]
        except pynvml.NVMLError as e:
            found = str(e)
        say(f"{name}: {found}")
    say(f"used: {pynvml.nvmlDeviceGetMemoryInfo(handle).used >> 20} MiB")


def until_active() -> None:
    began, last = time.monotonic(), ""
    while time.monotonic() - began < LIMIT:
        found = servers()
        state = ask(f"get_server_status {found[0]}") if found else "no server"
        if "ACTIVE" in state or "Unknown" in state:
            return
        last = state
        time.sleep(0.1)
    say(f"not ACTIVE: {last!r}")


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the daemon is stopped
    if shutil.which(CONTROL) is None:
        print(f"no {CONTROL} in PATH")
        sys.exit(77)
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as e:
        print(f"no GPU: NVML says {e}")
        sys.exit(77)
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    directory = Path(tempfile.mkdtemp(prefix="raw-mps-"))
    os.environ["CUDA_MPS_PIPE_DIRECTORY"] = str(directory / "pipe")
    os.environ["CUDA_MPS_LOG_DIRECTORY"] = str(directory / "log")
    for name in ("pipe", "log"):
        (directory / name).mkdir()
    list_processes(handle)
    with (directory / "start.txt").open("w+b") as output:  # the daemon might keep a pipe open
        done = subprocess.run([CONTROL, "-d"], stdout=output, stderr=output)
        output.seek(0)
        say("-d ->", done.returncode, output.read())
    clients: list[Client] = []
    try:
        for command in (
            "get_server_list",
            "get_default_active_thread_percentage",
            "ps",
            "nonsense",
        ):
            ask(command)
        ask(f"start_server -uid {os.getuid()}")
        until_active()
        clients = [Client(directory, name) for name in ("first", "second")]
        for client in clients:
            client.until_it_computes()
        (server, *_) = servers() or [""]
        for command in ("ps", f"get_client_list {server}", f"get_server_status {server}"):
            ask(command)
        list_processes(handle)
        say("SIGKILL for the first, under load")
        clients[0].process.send_signal(signal.SIGKILL)
        for _ in range(6):
            time.sleep(0.5)
            clients[1].show()
            ask(f"get_server_status {server}")
            ask(f"get_client_list {server}")
        list_processes(handle)
        clients.append(Client(directory, "third"))
        clients[-1].until_it_computes()
        say("terminate_client for the second, under load")
        ask(f"terminate_client {server} {clients[1].process.pid}")
        for _ in range(4):
            time.sleep(0.5)
            clients[1].show()
            clients[2].show()
        ask(f"get_server_status {server}")
        list_processes(handle)
    finally:
        for client in clients:
            client.process.kill()
        ask("quit")
        for name in ("control.log", "server.log"):
            path = directory / "log" / name
            print(f"---- {name}", path.read_text() if path.exists() else "none", sep="\n")
        for client in clients:
            print(f"---- {client.name}", *client.lines()[-6:], sep="\n")
        time.sleep(1)
        list_processes(handle)
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
