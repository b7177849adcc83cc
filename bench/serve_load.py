"""Asks a server from one event loop: streams, plain requests, idle connections. Standard library only."""
import asyncio
import contextlib
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
        """CPU time of the first thread, which does all input and output."""
        pid = self.process.pid
        return int(pathlib.Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9

    def counts(self):
        """Numbers of open files and of threads."""
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


def head(method, path, server, body=b""):
    fields = f"{method} {path} HTTP/1.1\r\nHost: {server.host}:{server.port}\r\n"
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
    """True for an event with text of a token: neither the first one, with the role alone, nor the end."""
    return line.startswith(b"data: {") and b'"error"' not in line and (
        b'"text":"' in line and b'"text":""' not in line or b'"content":"' in line and b'"content":""' not in line)


async def stream(server, path, body, tokens=None, wake=None):
    """Sends a request and reads its events, up to `tokens` of them; calls `wake` at the first."""
    body = json.dumps({**body, "stream": True}).encode()
    reader, writer = await connect(server)
    result = Stream(time.monotonic())
    writer.write(head("POST", path, server, body))
    try:
        result.status = int((await reader.readline()).split()[1])
        async for line in reader:
            if has_text(line):
                result.moments.append(time.monotonic())
                if wake and len(result.moments) == 1:
                    wake()
                if len(result.moments) == tokens:
                    break
            elif line.startswith(b"data: [DONE]") or result.status != 200 and line == b"\r\n":
                break
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
    return result


async def get(reader, writer, server, path):
    """A GET over a connection that stays; returns the seconds that it took."""
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
