"""The front door of `benchmarks.gpu`: users, and a page that tells of those who wait."""

import contextlib
import http.client
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

USERS, SERVICE_S = 4, 0.25


class Door:
    """Where users ask: it passes their requests on, and keeps them while no server is there."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.users = threading.Event()
        self.running = self.waiting = self.done = 0
        #: When each request came and was answered, in seconds since the Unix epoch.
        self.answered: list[tuple[float, float]] = []
        self._lock = threading.Lock()
        self.page = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        threading.Thread(target=self.page.serve_forever, daemon=True).start()
        for _ in range(USERS):
            threading.Thread(target=self._user, daemon=True).start()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        door = self

        class Page(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                text = "".join(
                    f"# TYPE vllm:{name} {kind}\nvllm:{name} {value}\n"
                    for name, kind, value in (
                        ("num_requests_running", "gauge", door.running),
                        ("num_requests_waiting", "gauge", door.waiting),
                        ("request_success_total", "counter", door.done),
                    )
                )
                self.send_response(200)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        return Page

    def _user(self) -> None:
        while True:
            self.users.wait()
            came_s = time.time()
            self._count(waiting=1)
            while not self._ask():
                time.sleep(0.05)
            self._count(waiting=-1)
            self.answered.append((came_s, time.time()))

    def _ask(self) -> bool:
        try:
            server = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
            server.connect()
        except OSError:
            return False
        self._count(running=1, waiting=-1)
        good = False
        with contextlib.suppress(OSError, http.client.HTTPException), contextlib.closing(server):
            server.request("POST", "/generate", json.dumps({"service_s": SERVICE_S}))
            good = server.getresponse().status == 200
        self._count(running=-1, waiting=1, done=int(good))
        return good

    def _count(self, *, running: int = 0, waiting: int = 0, done: int = 0) -> None:
        with self._lock:
            self.running, self.waiting = self.running + running, self.waiting + waiting
            self.done += done
