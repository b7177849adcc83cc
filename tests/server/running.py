"""A `quire serve` that runs for a test, and raw requests to it. Loopback only; every wait has an end."""
import contextlib
import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import threading
import time

SECONDS = 60  # a limit for whatever hangs
PROGRAM, MODEL = [], []  # of the command line


def environment(**more):
    kept = {name: value for name, value in os.environ.items() if name != "QUIRE_API_KEY"}
    return kept | more


class Server:
    """Starts `quire serve`, reads its log, and ends it."""

    def __init__(self, *flags, env=None, port="0", loaded=True, model=None):
        tcp = ["--port", port] if port is not None else []
        self.process = subprocess.Popen([*PROGRAM, "serve", model or MODEL[0], *tcp, *flags], stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(**(env or {})))
        self.lines, self.changed = [], threading.Condition()
        self.reader = threading.Thread(target=self.read_log, daemon=True)
        self.reader.start()
        self.first_line = self.process.stdout.readline().decode()
        address = self.first_line.removeprefix("listening on ").strip()
        self.port = int(address.rpartition(":")[2]) if address.startswith("http") else 0
        if loaded:
            self.wait_for(event="loaded")

    def read_log(self):
        for line in self.process.stderr:
            with self.changed:
                self.lines.append(line.decode())
                self.changed.notify_all()

    def records(self):
        return [json.loads(line) for line in self.lines if line.startswith("{")]

    def wait_for(self, count=1, **fields):
        """Returns the count-th record of the log that has these fields."""
        def found():
            return [each for each in self.records() if fields.items() <= each.items()]
        with self.changed:
            if not self.changed.wait_for(lambda: len(found()) >= count, SECONDS):
                raise AssertionError(f"no {fields} in {self.lines[-20:]}")
        return found()[count - 1]

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=SECONDS)

    def ask(self, method, path, body=None, **headers):
        """Returns (status, headers, body) of a request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        with contextlib.closing(connection):
            fields = {name.replace("_", "-"): value for name, value in headers.items()}
            if body is not None:
                body, fields = json.dumps(body), {"content-type": "application/json"} | fields
            connection.request(method, path, body, fields)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()

    def memory_kib(self):
        with open(f"/proc/{self.process.pid}/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def stop(self, number=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.ended()

    def ended(self):
        code = self.process.wait(SECONDS)
        self.reader.join(SECONDS)
        return code

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.ended()
        self.process.stdout.close()
        self.process.stderr.close()


def read_to_end(connection):
    data = b""
    with contextlib.suppress(ConnectionError):
        while more := connection.recv(65536):
            data += more
    return data


def read_until(connection, part):
    data = b""
    deadline = time.monotonic() + SECONDS
    while part not in data:
        more = connection.recv(65536)
        if not more or time.monotonic() > deadline:
            raise AssertionError(f"no {part} in {data[-300:]}")
        data += more
    return data


def request(method="GET", path="/live", fields=(), body=b"", host="localhost"):
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", *fields]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def long_stream(tokens=4000):
    """Returns a request that streams for a while."""
    body = json.dumps({"model": "x", "prompt": "Once upon a time", "stream": True, "max_tokens": tokens, "ignore_eos": True})
    return request("POST", "/v1/completions", ["Content-Type: application/json"], body.encode())


def client_context(cert):
    context = ssl.create_default_context(cafile=cert)
    context.check_hostname = False
    return context
