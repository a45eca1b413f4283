"""What Kafka clients are made with: how they are let in, and what a broken file is called."""

import contextlib
import ssl
from pathlib import Path
from types import SimpleNamespace

import pytest
from aiokafka.errors import InvalidReplicationFactorError
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from bus.contract import BusError
from bus.kafka_client import client_settings
from bus.kafka_producer import COMMIT_S, TRANSACTION_S, commit_limit_s
from bus.kafka_topics import _check
from bus.options import KafkaOptions, Tls, kafka_options
from schemas.journal import MAX_JOURNAL_BYTES
from tests.certificates import Authority


@pytest.mark.parametrize(
    ("tls", "sasl", "protocol"),
    [
        (None, "", "PLAINTEXT"),
        (Tls(), "", "SSL"),
        (None, "PLAIN", "SASL_PLAINTEXT"),
        (Tls(), "SCRAM-SHA-512", "SASL_SSL"),
    ],
)
async def test_protocol_follows_from_what_is_given(
    tls: Tls | None, sasl: str, protocol: str
) -> None:
    options = KafkaOptions(
        "one:9092,two:9093",
        tls=tls,
        sasl=sasl,  # type: ignore[arg-type]
        username="scheduler",
        password="secret",
    )
    settings = client_settings(options)
    assert settings["bootstrap_servers"] == ["one:9092", "two:9093"]
    assert settings["security_protocol"] == protocol
    if sasl:
        login = ("sasl_mechanism", "sasl_plain_username", "sasl_plain_password")
        assert [settings[name] for name in login] == [sasl, "scheduler", "secret"]
    else:
        assert "sasl_plain_password" not in settings
    if tls is None:
        assert "ssl_context" not in settings
    else:
        # Whoever cannot prove to be the broker is not spoken to.
        assert settings["ssl_context"].verify_mode == ssl.CERT_REQUIRED
        assert settings["ssl_context"].check_hostname


def test_we_give_up_a_transaction_before_the_broker_does() -> None:
    """Of the largest entry it did so first, and the scheduler that still wrote was fenced."""
    slowest_s = COMMIT_S + MAX_JOURNAL_BYTES / 4e6
    assert commit_limit_s(MAX_JOURNAL_BYTES) == slowest_s < TRANSACTION_S
    assert commit_limit_s(100 * MAX_JOURNAL_BYTES) < TRANSACTION_S


def test_unusable_certificate_is_named(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    for make in (lambda: None, lambda: file.write_text("no certificate")):
        make()
        with pytest.raises(BusError, match=r"^\[kafka\] TLS files .*ca\.pem: "):
            client_settings(KafkaOptions("one:9092", tls=Tls(ca_file=str(file))))


def shown(client: ssl.SSLContext, authority: Authority) -> bytes:
    """The certificate that a client shows when it connects."""
    files = authority.sign("broker", names=("one",), server=True)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    assert files.cert is not None
    server.load_cert_chain(files.cert, files.key)
    server.load_verify_locations(authority.ca)
    server.verify_mode = ssl.CERT_REQUIRED
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(back, there, server_hostname="one"),
        server.wrap_bio(there, back, server_side=True),
    ]
    for _ in range(4):
        for end in ends:
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
    return ends[1].getpeercert(binary_form=True) or b""


def test_clients_that_were_made_before_show_a_certificate_that_was_renewed(tmp_path: Path) -> None:
    """Some live as long as their process, and connect again now and then."""
    authority = Authority(tmp_path)
    files = authority.sign("scheduler")
    assert files.cert is not None
    tls = Tls(str(authority.ca), str(files.cert), str(files.key))
    options = KafkaOptions("one:9092", tls=tls)
    old = client_settings(options)["ssl_context"]
    before = shown(old, authority)
    authority.sign("scheduler")
    client_settings(options)  # another client is made, since one failed
    der = x509.load_pem_x509_certificate(files.cert.read_bytes()).public_bytes
    assert shown(old, authority) == der(Encoding.DER) != before


def test_topics_have_three_copies_unless_fewer_are_asked_for() -> None:
    said = {"TIDEGATE_KAFKA_BOOTSTRAP": "h:9"}
    assert kafka_options("kafka:", said).replication == 3
    assert kafka_options("kafka:", {**said, "TIDEGATE_KAFKA__REPLICATION": "1"}).replication == 1
    for wrong in ("0", "many", "-1"):
        with pytest.raises(BusError, match="TIDEGATE_KAFKA__REPLICATION"):
            kafka_options("kafka:", {**said, "TIDEGATE_KAFKA__REPLICATION": wrong})


def test_too_few_brokers_for_three_copies_is_said_with_what_to_do() -> None:
    code = InvalidReplicationFactorError.errno
    answer = SimpleNamespace(topic_errors=[("events", code, "larger than available brokers")])
    with pytest.raises(BusError, match=r"available brokers; .*kafka\.replication = 1"):
        _check(answer)
