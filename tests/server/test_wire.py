"""Bytes on the wire of `quire serve`: many connections, clients that go, slow readers, noise.

Run by CTest as `test_wire.py PROGRAM MODEL`; standard library only. QUIRE_TEST_LENGTH=full: at full length.
"""
import contextlib
import json
import os
import random
import resource
import socket
import statistics
import sys
import threading
import time
import unittest

import running
from running import Server, long_stream, read_to_end, read_until, request

FULL = os.environ.get("QUIRE_TEST_LENGTH") == "full"
CONNECTIONS = 10_000 if FULL else 1_000
FUZZ_SECONDS = 30 if FULL else 2
GONE_SECONDS = 5  # 100 ms and a step of the engine, on a busy machine


class Wire(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(Server("--any-model", "--access-log", "off"))

    def answer(self, data, half_close=False):
        """Returns all that comes for these bytes. The server closes: the last of them says so, or is no request."""
        with self.server.connect() as connection:
            with contextlib.suppress(ConnectionError):
                connection.sendall(data)
                if half_close:
                    connection.shutdown(socket.SHUT_WR)
            return read_to_end(connection)


    def test_pipelined_requests_are_answered_in_order(self):
        paths = [f"/v1/models/none{i}" for i in range(50)]
        data = self.answer(b"".join(request(path=path) for path in paths) + request(fields=["Connection: close"]))
        at = [data.find(path.rpartition("/")[2].encode() + b'"') for path in paths]
        self.assertEqual(data.count(b"HTTP/1.1 404"), 50)
        self.assertEqual(data.count(b"HTTP/1.1 200"), 1)
        self.assertEqual(at, sorted(at))

    def test_requests_with_a_half_close_behind_them_are_answered_where_no_work_is_needed(self):
        self.assertIn(b"200 OK", self.answer(request(), half_close=True))
        self.assertIn(b"400 Bad Request", self.answer(b"GET / HT", half_close=True))

    def test_a_large_body_that_is_refused_still_gets_its_answer(self):
        for fields in (["Content-Length: 100000000"], ["Transfer-Encoding: chunked"]):
            head = request("POST", "/v1/completions", ["Content-Type: application/json", *fields])
            data = self.answer(head + b"ffffffff\r\n" + b"x" * 3_000_000)
            self.assertTrue(data.startswith(b"HTTP/1.1 413"), data[:100])
            self.assertEqual(data.count(b"HTTP/1.1"), 1)

    def test_a_client_that_goes_ends_its_request(self):
        before = self.server.descriptors()
        for close in (lambda s: s.shutdown(socket.SHUT_WR), lambda s: s.close()):
            with self.server.connect() as stream:
                stream.sendall(long_stream())
                read_until(stream, b"data: ")
                close(stream)
                if stream.fileno() >= 0:
                    begin = time.monotonic()
                    self.assertNotIn(b"[DONE]", read_to_end(stream))
                    self.assertLess(time.monotonic() - begin, GONE_SECONDS)
        deadline = time.monotonic() + GONE_SECONDS
        while self.server.descriptors() > before and time.monotonic() < deadline:
            time.sleep(0.01)
        self.assertEqual(self.server.descriptors(), before)

    def test_a_reader_that_stops_delays_no_other_stream(self):
        with self.server.connect() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.sendall(long_stream(3000))
            with self.server.connect() as other:
                other.sendall(long_stream(50))
                self.assertIn(b"[DONE]", read_until(other, b"[DONE]"))
            data = read_until(slow, b"[DONE]")
            events = [json.loads(line[6:]) for line in unchunked(data).split(b"\n\n") if line.startswith(b"data: {")]
            self.assertEqual(events[-1].get("error"), None)
            counted = [event["usage"]["completion_tokens"] for event in events if event.get("usage")]
            self.assertTrue(not counted or counted[-1] == 3000, counted)

    def test_many_idle_connections_cost_little_and_slow_nothing(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        count = min(CONNECTIONS, hard - 200)
        self.assertGreaterEqual(count, CONNECTIONS // 2)
        alone = self.p99()
        before = self.server.memory_kib()
        with contextlib.ExitStack() as stack:
            for i in range(count):
                connection = stack.enter_context(self.server.connect())
                if i % 2:
                    connection.sendall(request())
                    read_until(connection, b"\r\n\r\n")
            cost = self.server.memory_kib() - before
            beside = self.p99()
        self.assertLess(cost, count * 20, f"{count} connections cost {cost} KiB")
        self.assertLess(beside, alone + 0.02, "a request beside idle connections")

    def p99(self):
        seconds = []
        with self.server.connect() as connection:
            for _ in range(200):
                begin = time.monotonic()
                connection.sendall(request())
                read_until(connection, b"}")
                seconds.append(time.monotonic() - begin)
        return statistics.quantiles(seconds, n=100)[-1]

    def test_noise_ends_nothing(self):
        seeds = [request(), request("POST", "/v1/completions", ["Content-Type: application/json"], b'{"model":"x","prompt":"a"}'),
                 request("POST", "/v1/completions", ["Transfer-Encoding: chunked"]) + b"5\r\nhello\r\n0\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\n"]
        deadline = time.monotonic() + FUZZ_SECONDS
        faults = []

        def fuzz(seed):
            rng = random.Random(seed)
            while time.monotonic() < deadline:
                data = bytearray(rng.choice(seeds) + rng.choice(seeds))
                for _ in range(rng.randrange(8)):
                    at = rng.randrange(len(data))
                    data[at:at + rng.randrange(4)] = rng.randbytes(rng.randrange(6))
                    data = data or bytearray(b"x")
                data = self.answer(bytes(data) + request(fields=["Connection: close"]), half_close=True)
                if b"HTTP/1.1 5" in data and not any(code in data for code in (b" 501 ", b" 503 ", b" 504 ", b" 505 ", b" 529 ")):
                    faults.append(data)
        threads = [threading.Thread(target=fuzz, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(FUZZ_SECONDS + running.SECONDS)
        self.assertEqual(faults[:1], [])
        self.assertEqual(self.server.ask("GET", "/live")[0], 200)
        self.assertIsNone(self.server.process.poll())


def unchunked(data):
    """Returns the body of a chunked response."""
    rest, body = data.partition(b"\r\n\r\n")[2], b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        count = int(size, 16)
        body, rest = body + rest[:count], rest[count + 2:]
    return body


if __name__ == "__main__":
    running.PROGRAM[:], running.MODEL[:] = sys.argv[1:2], sys.argv[2:3]
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)
