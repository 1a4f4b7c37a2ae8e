# SPDX-License-Identifier: Apache-2.0
"""A Collector of OpenTelemetry that runs, and may be stopped and started again."""

from __future__ import annotations

import re
import subprocess
import time
from collections import Counter
from pathlib import Path

__all__ = ["CONFIGURATION", "Collector", "shown_weights"]

CONFIGURATION = """
receivers: {otlp: {protocols: {http: {endpoint: "127.0.0.1:4318"}}}}
exporters: {debug: {verbosity: detailed}}
service:
  pipelines: {profiles: {receivers: [otlp], exporters: [debug]}}
"""
START = 60  # seconds


class Collector:
    """Prints what it takes into a file, before it answers. Its port stands in place of 4318 in the YAML."""

    def __init__(self, program: str, folder: Path, port: int, configuration: str = CONFIGURATION) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._program = program
        self._configuration, self._printed = folder / "collector.yaml", folder / "printed"
        self._configuration.write_text(configuration.replace("127.0.0.1:4318", f"127.0.0.1:{port}"))
        self._quiet = folder / "quiet.yaml"  # no port for what it measures of itself
        self._quiet.write_text("service: {telemetry: {metrics: {level: none}}}\n")
        self._printed.touch()
        self._running: subprocess.Popen[bytes] | None = None

    @property
    def printed(self) -> str:
        return self._printed.read_text()

    def start(self) -> None:
        before = len(self.printed)
        with self._printed.open("ab") as file:
            self._running = running = subprocess.Popen(
                [self._program, f"--config=file:{self._configuration}", f"--config=file:{self._quiet}",
                 "--feature-gates=service.profilesSupport"],
                stdout=file, stderr=subprocess.STDOUT,
            )  # fmt: skip
        end = time.monotonic() + START
        while "Everything is ready" not in self.printed[before:]:
            assert running.poll() is None, self.printed
            assert time.monotonic() < end, self.printed
            time.sleep(0.1)

    def stop(self, *, kill: bool = False) -> None:
        running, self._running = self._running, None
        if running is not None:
            (running.kill if kill else running.terminate)()
            running.wait(START)


def shown_weights(printed: str) -> Counter[str]:
    """Weights by the only function of each request, of what a Collector has printed."""
    found: Counter[str] = Counter()
    for part in re.split(r"^String table:$", printed, flags=re.MULTILINE)[1:]:  # a request each
        values = [int(number) for row in re.findall(r"Values: \[([\d ]+)\]", part) for number in row.split()]
        [name] = set(re.findall(r"\bbatch\d+\b", part))
        found[name] += sum(values)
    return found
