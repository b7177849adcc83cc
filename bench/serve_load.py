"""Asks a server from one event loop: streams, plain requests, idle connections. Standard library only."""
import asyncio
import json
import os
import pathlib
import random
import subprocess
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field

START_SECONDS = 300


class Served:
    """A server process of a measurement, for a `with` block."""

    def __init__(self, command):
        self.process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        line = self.process.stdout.readline()
        if not line.startswith("listening on "):
            raise RuntimeError(f"{command[0]} did not start: {line}")
        self.url = line.removeprefix("listening on ").strip()
        self.host, _, port = self.url.removeprefix("http://").rpartition(":")
        self.port = int(port)
        wait_until_ready(f"{self.url}/ready", self.process)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()

    def resident_mib(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1024

    def main_thread_seconds(self):
        """Returns the CPU time of the first thread, which does all input and output."""
        pid = self.process.pid
        return int(pathlib.Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9

    def counts(self):
        """Counts open files and threads."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd")), len(os.listdir(f"/proc/{self.process.pid}/task"))


def wait_until_ready(url, process):
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=START_SECONDS).close()
            return
        except (urllib.error.HTTPError, urllib.error.URLError):
            time.sleep(0.05)
    raise RuntimeError(f"{url} is not ready")


def post(server, path, body):
    request = urllib.request.Request(server.url + path, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=START_SECONDS) as response:
        return json.load(response)


def head(method, path, server, body=b"", more=""):
    fields = f"{method} {path} HTTP/1.1\r\nHost: {server.host}:{server.port}\r\n{more}"
    if body:
        fields += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return f"{fields}\r\n".encode() + body


@dataclass
class Stream:
    """When the events of a stream came: the first is that of the first token."""

    sent: float
    moments: list = field(default_factory=list)
    status: int = 0

    @property
    def first_seconds(self):
        return self.moments[0] - self.sent


async def connect(server):
    return await asyncio.open_connection(server.host, server.port, limit=1 << 20)


def has_text(line):
    """Tells whether an event has text of a token. Neither the first one, with the role alone, nor the end has."""
    return line.startswith(b"data: {") and b'"error"' not in line and (
        b'"text":"' in line and b'"text":""' not in line or b'"content":"' in line and b'"content":""' not in line)


class _Events(asyncio.Protocol):
    """Keeps what comes and when. Reads nothing of it before the end, since the client takes CPU from the engine that it measures."""

    def __init__(self, look):
        self.parts, self.ended, self._look = [], asyncio.get_running_loop().create_future(), look

    def data_received(self, data):
        self.parts.append((time.monotonic(), data))
        if self._look and self._look(data):
            self._look = None

    def connection_lost(self, error):
        if not self.ended.done():
            self.ended.set_result(error)

    def lines(self):
        """Yields each line with the moment at which its end came."""
        rest = b""
        for moment, data in self.parts:
            *whole, rest = (rest + data).split(b"\n")
            yield from ((moment, line) for line in whole)


async def stream(server, path, body, tokens=None, wake=None):
    """Sends a request and reads its events, up to `tokens` of them; calls `wake` at the first."""
    body = json.dumps({**body, "stream": True}).encode()
    seen = 0

    def look(data):
        nonlocal seen
        before, seen = seen, seen + sum(map(has_text, data.split(b"\n")))
        if wake and before == 0 < seen:
            wake()
        if tokens and seen >= tokens:
            transport.close()
        return not tokens and seen > 0

    transport, events = await asyncio.get_running_loop().create_connection(
        lambda: _Events(look if tokens or wake else None), server.host, server.port)
    result = Stream(time.monotonic())
    transport.write(head("POST", path, server, body, "Connection: close\r\n"))
    try:
        await events.ended
    finally:
        transport.close()
    for moment, line in events.lines():
        if line.startswith(b"HTTP/1.1 "):
            result.status = int(line.split()[1])
        elif has_text(line):
            result.moments.append(moment)
    return result


async def get(reader, writer, server, path):
    """Sends a GET over a connection that stays. Returns the seconds that it took."""
    start = time.monotonic()
    writer.write(head("GET", path, server))
    length = 0
    while (line := await reader.readline()) != b"\r\n":
        if line.lower().startswith(b"content-length:"):
            length = int(line.split(b":")[1])
    await reader.readexactly(length)
    return time.monotonic() - start


async def get_times(server, path, count):
    reader, writer = await connect(server)
    times = [await get(reader, writer, server, path) for _ in range(count)]
    writer.close()
    return times


def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def some_ids(count, seed):
    rng = random.Random(seed)
    return [rng.randrange(10, 1500) for _ in range(count)]
