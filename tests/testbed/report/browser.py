"""A headless Chromium that tests and benchmarks drive through its pipe: no package, no port.

The protocol is Chrome's DevTools protocol: JSON messages ended by a zero byte, commands on the
browser's descriptor 3 and answers on its 4.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CHROMIUM: Final = shutil.which("chromium") or shutil.which("chromium-browser")
_FLAGS: Final = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync "
    "--disable-background-networking --disable-component-update --hide-scrollbars "
    "--remote-debugging-pipe"
)
_PATIENCE_S: Final = 60.0
_PAINTED: Final = "new Promise((done) => requestAnimationFrame(() => setTimeout(done)))"
_COMPLAINTS: Final = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")


class Page:
    """One page: what it says to its console is kept in `complaints`."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self._session = browser, session
        self.complaints: list[dict[str, Any]] = []

    def command(self, method: str, **params: Any) -> dict[str, Any]:
        return self._browser.command(method, self._session, self.complaints, **params)

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression, of a promise when it is kept."""
        answer = self.command(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def wheel(self, x: float, y: float, delta_y: float) -> None:
        """Turn the wheel over a place of the window, and wait until that is painted."""
        self.command(
            "Input.dispatchMouseEvent", type="mouseWheel", x=x, y=y, deltaX=0, deltaY=delta_y
        )
        self.evaluate(_PAINTED)

    def move(self, x: float, y: float) -> None:
        self.command("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def drag(self, begin: tuple[float, float], end: tuple[float, float]) -> None:
        """Press at one place, move to another and release; wait until that is painted."""
        for kind, (x, y) in (
            ("mousePressed", begin), ("mouseMoved", end), ("mouseReleased", end),
        ):  # fmt: skip
            self.command(
                "Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1
            )
        self.evaluate(_PAINTED)

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        shot = self.command("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))


class Browser:
    """A running browser; `Browser.started` ends it."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = commands, answers
        self._number = 0
        self._read = b""
        self._messages: deque[dict[str, Any]] = deque()
        self._target: str | None = None

    @classmethod
    @contextlib.contextmanager
    def started(cls) -> Iterator[Browser]:
        """Start the browser with a profile of its own."""
        assert CHROMIUM is not None  # callers skip where there is none
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
            line = f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}'
            command = ["bash", "-c", line, CHROMIUM, *_FLAGS.split(), f"--user-data-dir={profile}"]
            process = subprocess.Popen(  # noqa: S603 (the installed browser)
                command,
                pass_fds=(theirs_in, theirs_out),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            os.close(theirs_in)
            os.close(theirs_out)
            browser = cls(ours_out, ours_in)
            try:
                yield browser
                browser.command("Browser.close", None, [])
                process.wait(timeout=_PATIENCE_S)
            finally:
                process.kill()
                process.wait()
                os.close(ours_out)
                os.close(ours_in)

    def open(self, url: str, width: int = 1280, height: int = 900) -> Page:
        """Open a page in place of the last, and return it once it is loaded and painted."""
        silent: list[dict[str, Any]] = []
        if self._target is not None:  # in the background it would never paint again
            self.command("Target.closeTarget", None, silent, targetId=self._target)
        target = self.command("Target.createTarget", None, silent, url="about:blank")["targetId"]
        self._target = target
        answer = self.command("Target.attachToTarget", None, silent, targetId=target, flatten=True)
        page = Page(self, answer["sessionId"])
        for domain in ("Runtime", "Log", "Page"):
            page.command(f"{domain}.enable")
        page.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
            mobile=False,
        )  # fmt: skip
        page.command("Page.navigate", url=url)
        ready = "document.readyState === 'complete' && location.href !== 'about:blank'"
        until = time.monotonic() + _PATIENCE_S
        while not page.evaluate(ready):
            assert time.monotonic() < until, f"{url} does not load"
            time.sleep(0.01)
        page.evaluate(_PAINTED)
        return page

    def command(
        self, method: str, session: str | None, complaints: list[dict[str, Any]], **params: Any
    ) -> dict[str, Any]:
        """Send a command and return its result; what the console hears meanwhile is kept."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            heard = self._next()
            if heard.get("method") in _COMPLAINTS and heard.get("sessionId") == session:
                complaints.append(heard["params"])
            if heard.get("id") == self._number:
                if "error" in heard:
                    raise RuntimeError(f"{method}: {heard['error']}")
                result: dict[str, Any] = heard["result"]
                return result

    def _next(self) -> dict[str, Any]:
        while not self._messages:
            part = os.read(self._answers, 1 << 20)
            assert part, "the browser is gone"
            *whole, self._read = (self._read + part).split(b"\0")
            self._messages.extend(json.loads(each) for each in whole)
        return self._messages.popleft()
