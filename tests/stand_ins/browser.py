"""A real browser without a window, driven through its debugging pipe."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from surroundings import SHORT, environment

CHROMIUM = "chromium"
LIMIT = 120.0  # seconds; far more than any command takes
OPTIONS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
    *("--no-first-run", "--disable-background-networking", "--disable-sync", "--hide-scrollbars"),
    *("--remote-debugging-pipe", "about:blank"),
)


def require() -> None:
    """Skip the test if there is no browser; as root, `make system` installs it."""
    if shutil.which(CHROMIUM) is None:
        if "HPCLAUNCH_SLURM_REQUIRED" in os.environ:
            pytest.fail(f"{CHROMIUM} is missing, which `make system` installs")
        pytest.skip(f"needs {CHROMIUM}")


class Tab:
    """A tab: `errors` are those of its console and policy, `requests` the URLs it has loaded."""

    def __init__(self, to: int, back: int) -> None:
        self._to, self._back = to, back
        self._number, self._received, self._session = 0, b"", ""
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._events: list[str] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        attached = self.ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **params: Any) -> Any:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            message = self._read()
            if message.get("id") == self._number:
                assert "error" not in message, message
                return message["result"]

    def _read(self) -> Any:
        limit = time.monotonic() + LIMIT
        while b"\0" not in self._received:
            left = limit - time.monotonic()
            assert left > 0, "the browser does not answer"
            if select.select([self._back], [], [], left)[0]:
                data = os.read(self._back, 1 << 20)
                assert data, "the browser has ended"
                self._received += data
        text, _, self._received = self._received.partition(b"\0")
        message = json.loads(text)
        self._record(message.get("method", ""), message.get("params", {}))
        return message

    def _record(self, method: str, params: Any) -> None:
        self._events.append(method)
        if method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(params["entry"]["text"])
        elif method == "Runtime.exceptionThrown":
            self.errors.append(str(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "assert"):
            self.errors.append(str(params["args"]))
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Page.javascriptDialogOpening":
            self.errors.append(f"a dialog: {params['message']}")

    def open(self, file: Path) -> None:
        """Open a file; return after it is loaded and its scripts have run."""
        self._events.clear()
        self.ask("Page.navigate", url=file.resolve().as_uri())
        while "Page.loadEventFired" not in self._events:
            self._read()

    def value(self, expression: str) -> Any:
        """Return the value of a JavaScript expression; the page's policy does not apply to it."""
        reply = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in reply, reply
        return reply["result"].get("value")

    def until(self, expression: str) -> None:
        """Wait until a JavaScript expression is true."""
        limit = time.monotonic() + LIMIT
        while not self.value(expression):
            assert time.monotonic() < limit, f"never true: {expression}"

    def press(self, key: str) -> None:
        text = {"text": key} if len(key) == 1 else {}
        self.ask("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.ask("Input.dispatchKeyEvent", type="keyUp", key=key)

    def resize(self, width: int, height: int) -> None:
        of = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.ask("Emulation.setDeviceMetricsOverride", **of)

    def prefer(self, scheme: str) -> None:
        """Emulate a preference for the scheme "dark" or "light"."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.ask("Emulation.setEmulatedMedia", features=features)


@contextmanager
def tab(profile: Path) -> Iterator[Tab]:
    """Start a browser with `profile`, a new directory; yield its tab."""
    to, from_us, back, from_it = (*reversed(os.pipe()), *os.pipe())
    words = [CHROMIUM, f"--user-data-dir={profile}", *OPTIONS]
    process = subprocess.Popen(
        ["bash", "-c", f'exec "$@" 3<&{from_us} 4>&{from_it}', "bash", *words],
        pass_fds=(from_us, from_it),
        env=environment(HOME=profile, TMPDIR=SHORT),  # it writes into both, and has a socket in one
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(from_us)
    os.close(from_it)
    try:
        yield Tab(to, back)
    finally:
        os.close(to)
        os.close(back)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
