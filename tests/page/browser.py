# SPDX-License-Identifier: Apache-2.0
"""Chromium without a window, driven over its debugging pipe: JSON messages that end in a NUL byte."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

__all__ = ["Browser", "find_chromium"]

_ANSWER_SECONDS = 60
_KEYS = {
    "Enter": 13,
    "Escape": 27,
    "ArrowLeft": 37,
    "ArrowUp": 38,
    "ArrowRight": 39,
    "ArrowDown": 40,
}
_SWITCHES = (
    "--headless",
    "--remote-debugging-pipe",
    "--no-sandbox",  # the tests run as root in containers
    "--disable-gpu",
    "--no-first-run",
    "--disable-extensions",
    "--disable-background-networking",
    "--host-resolver-rules=MAP * ~NOTFOUND",
)


def find_chromium() -> str | None:
    """Return the path of a Chromium or Chrome, None if there is none."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((path for name in names if (path := shutil.which(name))), None)


class Browser:
    """One page in one Chromium. `log` has what the page wrote to its console and its errors; `requests` the
    addresses that it asked for."""

    def __init__(self, program: str, profile: Path) -> None:
        self.log: list[str] = []
        self.requests: list[str] = []
        self._number = 0
        self._answers: dict[int, dict[str, Any]] = {}
        self._buffer = b""
        self._session: str | None = None
        # Chromium reads from 3 and writes to 4; our own ends must not be these.
        theirs_in, mine_out = (_high(fd) for fd in os.pipe())
        mine_in, theirs_out = (_high(fd) for fd in os.pipe())
        self._in, self._out = mine_in, mine_out
        shell = f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out} {theirs_in}<&- {theirs_out}>&-'
        self._process = subprocess.Popen(
            ["bash", "-c", shell, program, *_SWITCHES, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)

    def __enter__(self) -> Browser:
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        self.size(1400, 800)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._session = None
            self.send("Browser.close")
        except (OSError, RuntimeError, TimeoutError):
            pass
        os.close(self._out)
        os.close(self._in)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def send(self, method: str, **parameters: object) -> dict[str, Any]:
        """Send a command and return its result; RuntimeError with Chromium's words when it is refused."""
        self._number += 1
        number = self._number
        message: dict[str, object] = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + _ANSWER_SECONDS
        while number not in self._answers:
            self._read(deadline, f"an answer to {method}")
        answer = self._answers.pop(number)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        result: dict[str, Any] = answer["result"]
        return result

    def _read(self, deadline: float, what: str) -> None:
        ready, _, _ = select.select([self._in], [], [], max(0, deadline - time.monotonic()))
        data = os.read(self._in, 1 << 20) if ready else b""
        if not data:
            ended = "ended" if ready else f"gave no sign for {_ANSWER_SECONDS} s"
            raise TimeoutError(f"waiting for {what}, but Chromium {ended}")
        *messages, self._buffer = (self._buffer + data).split(b"\0")
        for message in map(json.loads, messages):
            if "id" in message:
                self._answers[message["id"]] = message
            else:
                self._event(message["method"], message.get("params", {}))

    def _event(self, method: str, parameters: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            self.log.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Runtime.consoleAPICalled":
            self.log.append(str([value.get("value") for value in parameters["args"]]))
        elif method == "Log.entryAdded":
            self.log.append(parameters["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif method == "Page.javascriptDialogOpening":
            self.log.append("dialog: " + parameters["message"])

    def open(self, address: str) -> None:
        """Load a page of ours and wait until its graph is drawn."""
        # By another page, since what differs behind the # only would not be loaded again.
        for url in ("about:blank", address):
            self.send("Page.navigate", url=url)
            self.until(f"location.href.startsWith({json.dumps(url.partition('#')[0])})")
        self.until("document.documentElement && document.documentElement.dataset.ready")

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression in the page."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"]["exception"].get("description", expression))
        return answer["result"].get("value")

    def until(self, expression: str) -> Any:
        """Wait until an expression is true in the page, and return it."""
        deadline = time.monotonic() + _ANSWER_SECONDS
        while not (value := self.evaluate(expression)):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{expression} is {value!r} after {_ANSWER_SECONDS} s")
            time.sleep(0.02)
        return value

    def text(self, selector: str) -> str:
        """Return the text of an element."""
        return str(self.evaluate(f"document.querySelector({json.dumps(selector)}).textContent"))

    def click(self, selector: str) -> None:
        """Click in the middle of an element that can be seen."""
        box = self.evaluate(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'nearest'}); const b = e.getBoundingClientRect();"
            "return [b.x + b.width / 2, b.y + b.height / 2, b.width]; })()"
        )
        assert box[2] > 0, f"{selector} cannot be seen"
        self.click_at(box[0], box[1])

    def click_at(self, x: float, y: float) -> None:
        """Click a place of the window."""
        self.mouse("mouseMoved", x, y)
        self.mouse("mousePressed", x, y)
        self.mouse("mouseReleased", x, y)

    def mouse(self, kind: str, x: float, y: float, pressed: bool = False) -> None:
        """Send one mouse event; `pressed`: the button is held down while the mouse moves."""
        button = "none" if kind == "mouseMoved" and not pressed else "left"
        self.send(
            "Input.dispatchMouseEvent",
            type=kind,
            x=x,
            y=y,
            button=button,
            buttons=int(pressed or kind == "mousePressed"),
            clickCount=1,
        )

    def key(self, key: str) -> None:
        """Press and release a key."""
        code = _KEYS.get(key, ord(key[0].upper()) if len(key) == 1 and key.isalnum() else 0)
        press: dict[str, object] = {"key": key, "windowsVirtualKeyCode": code}
        if len(key) == 1:
            press["text"] = key
        elif key == "Enter":
            press["text"] = "\r"
        self.send("Input.dispatchKeyEvent", type="keyDown", **press)
        self.send("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def type(self, text: str) -> None:
        """Put text into the field that has the focus."""
        self.send("Input.insertText", text=text)

    def size(self, width: int, height: int) -> None:
        """Set the size of the window."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def media(self, *, scheme: str = "light", kind: str = "") -> None:
        """Set the colour scheme that is preferred, and the medium."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.send("Emulation.setEmulatedMedia", media=kind, features=features)

    def screenshot(self) -> bytes:
        """Return a picture of the window, PNG."""
        return base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"])


def _high(fd: int) -> int:
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(fd)
    return moved
