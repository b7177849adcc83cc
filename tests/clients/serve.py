"""A `quire serve` process of a test: starts it, waits until the model is there, ends it. Standard library only."""
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "models" / "cardfile" / "model"
BINARY = pathlib.Path(os.environ.get("QUIRE_BINARY", ROOT / "build" / "release" / "apps" / "cli" / "quire"))
START_SECONDS = 60  # on a machine that compiles beside
STOP_SECONDS = 60


def has_server():
    """Returns whether the program was built with a server; one without says so."""
    done = subprocess.run([BINARY, "serve", "--help"], capture_output=True, text=True)
    return "this build has no server" not in done.stderr


class Server:
    """A running server. `url` is its address; `stderr` a file with its log."""

    def __init__(self, folder, *options, model=MODEL, keys=None):
        self.stderr = folder / f"serve-{time.monotonic_ns()}.log"
        command = [BINARY, "serve", model, "--port", "0", "--alias", "cardfile", *map(str, options)]
        if keys:
            file = folder / "keys.json"
            file.write_text(json.dumps({"keys": keys}))
            command += ["--keys", file]
        with self.stderr.open("w") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        self.url = self._listening()
        self._wait_until_ready()

    def _listening(self):
        line = []
        reader = threading.Thread(target=lambda: line.append(self.process.stdout.readline()), daemon=True)
        reader.start()
        reader.join(START_SECONDS)
        prefix = "listening on "
        if not line or not line[0].startswith(prefix):
            self.kill()
            raise RuntimeError(f"no address but {line}: {self.stderr.read_text()}")
        return line[0].removeprefix(prefix).strip()

    def _wait_until_ready(self):
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end and self.process.poll() is None:
            with contextlib.suppress(urllib.error.HTTPError):  # 503: it loads
                urllib.request.urlopen(f"{self.url}/ready", timeout=START_SECONDS).close()
                return
            time.sleep(0.02)
        self.kill()
        raise RuntimeError(f"not ready: {self.stderr.read_text()}")

    def stop(self):
        """Sends SIGTERM; returns the exit status, and what else stood in standard output."""
        self.process.send_signal(signal.SIGTERM)
        rest, _ = self.process.communicate(timeout=STOP_SECONDS)
        return self.process.returncode, rest

    def kill(self):
        self.process.kill()
        self.process.communicate()

    def resident_kib(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0])

    def open_files(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def threads(self):
        return len(os.listdir(f"/proc/{self.process.pid}/task"))


@contextlib.contextmanager
def serving(folder, *options, **more):
    """Yields a server for a `with` block, which must end it with status 0 and must have printed nothing else."""
    server = Server(folder, *options, **more)
    try:
        yield server
    except BaseException:
        if server.process.poll() is None:
            server.kill()
        print(server.stderr.read_text()[-4000:], file=sys.stderr)
        raise
    if server.process.poll() is None:
        assert server.stop() == (0, "")


def eventually(check, seconds=20):
    """Calls `check` until it returns something true; returns that. Fails after `seconds`."""
    end = time.monotonic() + seconds
    while True:
        value = check()
        if value or time.monotonic() > end:
            assert value, f"still {value!r} after {seconds} s"
            return value
        time.sleep(0.01)
