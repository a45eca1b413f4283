"""What the tests' own view of a Kubernetes cluster does while the cluster is killed."""

import json
import socket
import threading
from pathlib import Path

import pytest

from tests.certificates import Authority
from tests.kubernetes_bed import ControlPlane


def test_server_killed_while_it_answers_counts_as_away(tmp_path: Path) -> None:
    """Who watches the cluster from a thread leaves out a look that fails with `OSError` only."""
    listener = socket.create_server(("127.0.0.1", 0))

    def answer_half() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9bf0\r\n" + b"{" * 820
            )

    server = threading.Thread(target=answer_half)
    server.start()
    cluster = {
        "server": f"http://127.0.0.1:{listener.getsockname()[1]}",
        "certificate-authority": str(Authority(tmp_path / "ca").ca),
    }
    (tmp_path / "admin.kubeconfig").write_text(
        json.dumps({"clusters": [{"cluster": cluster}], "users": [{"user": {"token": "t"}}]})
    )
    with listener, pytest.raises(ConnectionError, match="IncompleteRead"):
        ControlPlane(tmp_path).pods()
    server.join()
