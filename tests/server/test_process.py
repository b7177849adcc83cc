"""`quire serve` as a process: its command line, keys, signals, certificates, log.

Run by CTest as `test_process.py PROGRAM MODEL`; standard library only.
"""
import contextlib
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import ssl
import stat
import subprocess
import sys
import tempfile
import unittest

import running
from running import Server, client_context, environment, long_stream, read_to_end, read_until, request

NAMES = {"ts", "request_id", "tenant", "remote", "method", "path", "status", "bytes_in", "bytes_out", "model", "prompt_tokens",
         "cached_tokens", "completion_tokens", "grade", "queue_ms", "ttft_ms", "total_ms", "finish_reason", "error_code", "user_agent"}


def run(*arguments, stdin="", env=None):
    return subprocess.run([*running.PROGRAM, "serve", *map(str, arguments)], input=stdin, text=True, capture_output=True,
                          timeout=running.SECONDS, env=environment(**(env or {})))


class Folder(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def write(self, name, text):
        path = self.folder / name
        path.write_text(text if isinstance(text, str) else json.dumps(text))
        return path

    def keys(self, name="keys.json", **tenants):
        entries = [{"sha256": run("--hash-key", stdin=key).stdout.strip(), "tenant": tenant, "role": "user"}
                   for tenant, key in tenants.items()]
        return self.write(name, {"keys": entries})

    def certificate(self, name="cert"):
        cert, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key,
                        "-out", cert, "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"],
                       check=True, capture_output=True, timeout=running.SECONDS)
        return cert, key


class CommandLine(Folder):
    def refuse(self, code, said, *arguments):
        done = run(*arguments)
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertEqual(done.stdout, "")
        last = done.stderr.splitlines()[-1]
        self.assertTrue(last.startswith("error: "), done.stderr)
        self.assertIn(said, last)
        for line in done.stderr.splitlines()[:-1]:
            json.loads(line)

    def test_wrong_usage_ends_with_2(self):
        model = running.MODEL[0]
        config = self.write("unknown.json", {"max-inflight": 4, "max_inflight": 4})
        for said, arguments in (
                ("unknown option", [model, "--prot", "1"]), ("MODEL is required", []), ("--port", [model, "--port", "70000"]),
                ("--port", [model, "--port", "x"]), ("--max-connections", [model, "--max-connections", "0"]),
                ("--max-body", [model, "--max-body", "much"]), ("max_inflight: unknown key", [model, "--config", config]),
                ("port", [model, "--config", self.write("value.json", {"port": "x"})]),
                ("want a value", [model, "--config", self.write("bool.json", {"port": True})]),
                ("want true or false", [model, "--config", self.write("flag.json", {"any-model": "yes"})]),
                ("config: unknown key", [model, "--config", self.write("self.json", {"config": "x"})]),
                ("without a key", [model, "--host", "0.0.0.0", "--port", "0"]), ("without a key", [model, "--host", "::", "--port", "0"]),
                ("--cors", [model, "--cors", "*"]), ("--cors", [model, "--cors", "app.example"]), ("together", [model, "--tls-cert", "x"]),
                ("--listen", [model, "--listen", "/path"]), ("--log-level", [model, "--log-level", "loud"]),
                ("--block-tokens", [model, "--block-tokens", "x"]),
                ("--stream-interval-ms", [model, "--stream-interval-ms", "-1"]),
                ("--stream-interval-ms", [model, "--stream-interval-ms", "soon"])):
            with self.subTest(arguments=arguments):
                self.refuse(2, said, *arguments)

    def test_what_cannot_be_read_or_opened_ends_with_1(self):
        model = running.MODEL[0]
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            self.refuse(1, "cannot listen on 127.0.0.1", model, "--port", port)
        digest = run("--hash-key", stdin="k").stdout.strip()
        twice = [{"sha256": digest, "tenant": "a"}, {"sha256": digest, "tenant": "b"}]
        for said, arguments in (
                ("no model", [self.folder / "none"]), ("--config", [model, "--config", self.folder / "none"]),
                ("not JSON", [model, "--config", self.write("bad.json", "{")]), ("--keys", [model, "--keys", self.folder / "none"]),
                ("sha256", [model, "--keys", self.write("digest.json", {"keys": [{"sha256": "12", "tenant": "a"}]})]),
                ("given twice", [model, "--keys", self.write("twice.json", {"keys": twice})]),
                ("--api-key-file", [model, "--api-key-file", self.write("empty.txt", "\n")]),
                ("--tls-cert", [model, "--tls-cert", self.folder / "none", "--tls-key", self.folder / "none"]),
                ("--access-log", [model, "--access-log", self.folder])):
            with self.subTest(arguments=arguments):
                self.refuse(1, said, *arguments, "--port", 0)

    def test_a_model_that_does_not_load_ends_with_1_after_the_line_of_stdout(self):
        model = self.folder / "model"
        model.mkdir()
        done = run(model, "--port", 0)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stdout, r"\Alistening on http://127\.0\.0\.1:\d+\n\Z")
        self.assertTrue(done.stderr.splitlines()[-1].startswith("error: "), done.stderr)

    def test_flags_of_the_command_line_win_over_the_config(self):
        config = self.write("config.json", {"port": 0, "alias": ["one", "two"], "any-model": True, "access-log": "off", "threads": 1})
        with Server("--config", str(config), "--access-log", str(self.folder / "log"), port=None) as server:
            self.assertEqual(json.loads(server.ask("GET", "/v1/models")[2])["data"][0]["id"], "one")
            self.assertEqual(server.stop(), 0)
        self.assertIn("/v1/models", (self.folder / "log").read_text())

    def test_hash_key_prints_the_digest_alone(self):
        done = run("--hash-key", stdin="sk-ada\n")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertRegex(done.stdout, r"\A[0-9a-f]{64}\n\Z")
        self.assertEqual(run("--hash-key").returncode, 1)


class Life(Folder):
    def test_stdout_has_one_line_and_stderr_json_alone(self):
        with Server() as server:
            self.assertRegex(server.first_line, r"\Alistening on http://127\.0\.0\.1:\d+\n\Z")
            self.assertEqual(server.ask("GET", "/health")[0], 200)
            self.assertEqual(server.stop(), 0)
            self.assertEqual(server.process.stdout.read(), b"")
            self.assertEqual(len(server.records()), len(server.lines), server.lines)

    def test_access_log_has_every_field_and_nothing_of_the_request(self):
        with Server(env={"QUIRE_API_KEY": "sk-secret"}) as server:
            body = {"model": "x", "prompt": "tell nobody", "max_tokens": 1}
            server.ask("POST", "/v1/completions?key=sk-query", body, authorization="Bearer sk-secret", x_request_id="id-1",
                       user_agent='a "quoted" agent')
            line = server.wait_for(request_id="id-1")
            self.assertEqual(set(line), NAMES)
            self.assertEqual((line["method"], line["path"], line["tenant"]), ("POST", "/v1/completions", "default"))
            self.assertEqual(line["user_agent"], 'a "quoted" agent')
            server.ask("GET", "/nothing", x_request_id="id-2")
            line = server.wait_for(request_id="id-2")
            self.assertEqual((line["status"], line["error_code"], line["tenant"]), (401, "invalid_api_key", None))
            text = "".join(server.lines)
            for secret in ("sk-secret", "sk-query", "tell nobody"):
                self.assertNotIn(secret, text)

    def test_a_unix_socket_serves_and_its_file_goes(self):
        path = self.folder / "socket"
        with Server("--listen", f"unix:{path}:0600", port=None) as server:
            self.assertEqual(server.first_line, f"listening on unix:{path}\n")
            self.assertEqual(stat.S_IMODE(path.stat().st_mode), 0o600)
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(running.SECONDS)
                connection.connect(str(path))
                connection.sendall(request(path="/health", host="whoever", fields=["Connection: close"]))
                self.assertIn(b"200 OK", read_to_end(connection))
            self.assertEqual(run(running.MODEL[0], "--listen", f"unix:{path}").returncode, 1)
            server.process.kill()
            server.ended()
        with Server("--listen", f"unix:{path}", port="0") as server:  # over the file of the killed one
            self.assertIn("http://127.0.0.1", server.first_line)
            self.assertEqual(server.stop(), 0)
            self.assertFalse(path.exists())

    def test_metrics_listener_needs_no_key_but_a_local_host(self):
        with Server("--metrics-listen", "127.0.0.1:0", env={"QUIRE_API_KEY": "sk-1"}) as server:
            address = server.wait_for(event="listening for metrics")["address"]
            connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=running.SECONDS)
            with contextlib.closing(connection):
                connection.request("GET", "/metrics")
                self.assertEqual(connection.getresponse().status, 200)
            with contextlib.closing(connection):
                connection.request("GET", "/metrics", headers={"Host": "evil.example"})
                self.assertEqual(connection.getresponse().status, 403)
            self.assertEqual(server.ask("GET", "/metrics")[0], 401)

    def test_reload_takes_new_keys_and_keeps_the_old_on_a_fault(self):
        path = self.keys(ada="sk-old")
        with Server("--keys", str(path)) as server:
            self.assertEqual(server.ask("GET", "/v1/models", x_api_key="sk-old")[0], 200)
            self.keys(ada="sk-new")
            server.process.send_signal(signal.SIGHUP)
            server.wait_for(event="reload", level="info")
            self.assertEqual(server.ask("GET", "/v1/models", x_api_key="sk-old")[0], 401)
            self.assertEqual(server.ask("GET", "/v1/models", x_api_key="sk-new")[0], 200)
            path.write_text("{")
            server.process.send_signal(signal.SIGHUP)
            self.assertIn("keys.json", server.wait_for(event="reload", level="error")["error"])
            self.assertEqual(server.ask("GET", "/v1/models", x_api_key="sk-new")[0], 200)

    def test_reload_opens_the_access_log_anew(self):
        log = self.folder / "log"
        with Server("--access-log", str(log)) as server:
            server.ask("GET", "/live")
            log.rename(self.folder / "old")
            server.process.send_signal(signal.SIGHUP)
            server.wait_for(event="reload")
            server.ask("GET", "/ping")
            self.assertEqual(server.stop(), 0)
        self.assertIn("/live", (self.folder / "old").read_text())
        self.assertIn("/ping", log.read_text())

    def test_drain_finishes_streams_and_refuses_new_work(self):
        with Server("--any-model", "--drain-timeout", "600") as server, server.connect() as stream, server.connect() as idle:
            stream.sendall(long_stream(800))
            data = read_until(stream, b"data: ")
            server.process.send_signal(signal.SIGTERM)
            server.wait_for(event="drain")
            self.assertEqual(server.ask("GET", "/live")[0], 200)
            for path in ("/ready", "/health"):
                self.assertEqual(server.ask("GET", path)[0], 503)
            status, fields, body = server.ask("POST", "/v1/completions", {"model": "x", "prompt": "a"})
            self.assertEqual((status, fields["retry-after"], fields["connection"]), (503, "1", "close"))
            self.assertEqual(json.loads(body)["error"]["code"], "draining")
            data += read_to_end(stream)
            self.assertIn(b"[DONE]", data[-400:])
            self.assertEqual(read_to_end(idle), b"")
            self.assertEqual(server.ended(), 0)

    def test_drain_timeout_ends_streams_with_an_error(self):
        with Server("--any-model", "--drain-timeout", "0.2") as server, server.connect() as stream:
            stream.sendall(long_stream())
            read_until(stream, b"data: ")
            server.process.send_signal(signal.SIGINT)
            data = read_to_end(stream)
            self.assertIn(b'"code":"draining"', data)
            self.assertNotIn(b"[DONE]", data)
            self.assertEqual(server.ended(), 0)

    def test_a_second_signal_ends_at_once(self):
        for number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
            with Server("--any-model") as server, server.connect() as stream:
                stream.sendall(long_stream())
                read_until(stream, b"data: ")
                server.process.send_signal(signal.SIGTERM)
                server.wait_for(event="drain")
                self.assertEqual(server.stop(number), code)


class Tls(Folder):
    def shake(self, server, cert, **choices):
        context = client_context(cert)
        for name, value in choices.items():
            setattr(context, name, value)
        return context.wrap_socket(server.connect(), server_hostname="localhost")

    def test_tls_serves_and_reloads_its_certificate(self):
        cert, key = self.certificate()
        with Server("--tls-cert", str(cert), "--tls-key", str(key)) as server:
            self.assertTrue(server.first_line.startswith("listening on https://127.0.0.1:"))
            with self.shake(server, cert) as connection:
                connection.sendall(request() + request(path="/ping", fields=["Connection: close"]))
                self.assertEqual(read_to_end(connection).count(b"200 OK"), 2)
            other, other_key = self.certificate("other")
            os.replace(other, cert)
            os.replace(other_key, key)
            server.process.send_signal(signal.SIGHUP)
            server.wait_for(event="reload", level="info")
            with self.shake(server, cert) as connection:  # which trusts the new one alone
                connection.sendall(request(fields=["Connection: close"]))
                self.assertIn(b"200 OK", read_to_end(connection))

    def test_tls_refuses_old_versions_plain_http_and_other_protocols(self):
        cert, key = self.certificate()
        with Server("--tls-cert", str(cert), "--tls-key", str(key)) as server:
            with self.assertRaises(OSError):
                self.shake(server, cert, minimum_version=ssl.TLSVersion.TLSv1, maximum_version=ssl.TLSVersion.TLSv1_1)
            with server.connect() as connection:
                connection.sendall(request())
                self.assertNotIn(b"HTTP/1.1", read_to_end(connection))
            context = client_context(cert)
            context.set_alpn_protocols(["h2", "http/1.1"])
            with context.wrap_socket(server.connect(), server_hostname="localhost") as connection:
                self.assertEqual(connection.selected_alpn_protocol(), "http/1.1")
            self.assertEqual(server.stop(), 0)

    def test_a_large_body_goes_through_tls_both_ways(self):
        cert, key = self.certificate()
        with Server("--tls-cert", str(cert), "--tls-key", str(key), "--any-model") as server, self.shake(server, cert) as connection:
            body = json.dumps({"content": "word " * 100_000}).encode()
            connection.sendall(request("POST", "/tokenize", ["Content-Type: application/json", "Connection: close"], body))
            answer = read_to_end(connection)
            self.assertTrue(re.match(rb"HTTP/1\.1 (200|404)", answer), answer[:200])
            connection.close()
            with self.shake(server, cert) as stream:
                stream.sendall(long_stream(200))
                self.assertIn(b"[DONE]", read_until(stream, b"[DONE]"))


if __name__ == "__main__":
    running.PROGRAM[:], running.MODEL[:] = sys.argv[1:2], sys.argv[2:3]
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)
