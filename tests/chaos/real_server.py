"""A replica of an owner for `real_work`: it is slow to be ready, and shares a load with the others.

    python tests/chaos/real_server.py NODE PORT FOLDER

The requests in service, of all replicas together, stand in FOLDER/requests.
"""

import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

#: A replica that was not asked for so long serves nothing.
_SILENT_S = 2.5
READY_AFTER_S = 1.0

NODE, PORT, FOLDER = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])


class Page(BaseHTTPRequestHandler):
    """Health, and metrics under vLLM's names."""

    def do_GET(self) -> None:
        text = ""
        if self.path == "/metrics":
            (FOLDER / f"asked-{NODE}").touch()
            since_s = time.time() - _SILENT_S
            here = [one for one in FOLDER.glob("asked-*") if one.stat().st_mtime > since_s]
            share = float((FOLDER / "requests").read_text()) / len(here)
            text = (
                "# TYPE vllm:num_requests_running gauge\n"
                f'vllm:num_requests_running{{engine="0"}} {share}\n'
                "# TYPE vllm:num_requests_waiting gauge\n"
                'vllm:num_requests_waiting{engine="0"} 0\n'
            )
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


time.sleep(READY_AFTER_S)
HTTPServer(("127.0.0.1", PORT), Page).serve_forever()
