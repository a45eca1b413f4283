"""An authority of a test's own, which signs whatever it is told to."""

import datetime as dt
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from services.certificates import Files

_DAY = dt.timedelta(days=1)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)] if text else [])


class Authority:
    """Writes `ca.pem`, and NAME.pem with NAME.key for each name that it signs."""

    def __init__(self, folder: Path, name: str = "authority", above: "Authority | None" = None):
        self.folder, self.name = folder, _name(name)
        self._key = ec.generate_private_key(ec.SECP256R1())
        folder.mkdir(parents=True, exist_ok=True)
        self.certificate = (above or self)._signed(self.name, self._key, is_authority=True)
        self.ca = folder / "ca.pem"
        self.ca.write_bytes(self.certificate.public_bytes(Encoding.PEM))

    @classmethod
    def of(cls, folder: Path) -> "Authority":
        """Give the one that compose/certs made in a folder."""
        found = cls.__new__(cls)
        key = load_pem_private_key((folder / "ca.key").read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        found.folder, found.ca, found._key = folder, folder / "ca.pem", key
        found.certificate = x509.load_pem_x509_certificate(found.ca.read_bytes())
        found.name = found.certificate.subject
        return found

    def sign(
        self,
        name: str,
        *,
        begins: float = -1.0,
        ends: float = 400.0,
        names: tuple[str, ...] = (),
        server: bool = False,
        file: str = "",
    ) -> Files:
        """Sign a name; the certificate begins and ends so many days from now."""
        key = ec.generate_private_key(ec.SECP256R1())
        made = self._signed(_name(name), key, begins, ends, names, server=server)
        cert, key_file = (self.folder / f"{file or name}{end}" for end in (".pem", ".key"))
        cert.write_bytes(made.public_bytes(Encoding.PEM))
        key_file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        key_file.chmod(0o600)
        return Files(self.ca, cert, key_file)

    def _signed(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        begins: float = -1.0,
        ends: float = 400.0,
        names: tuple[str, ...] = (),
        *,
        server: bool = False,
        is_authority: bool = False,
    ) -> x509.Certificate:
        now = dt.datetime.now(dt.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + begins * _DAY)
            .not_valid_after(now + ends * _DAY)
            .add_extension(x509.BasicConstraints(is_authority, None), critical=True)
        )
        if not is_authority:
            usage = ExtendedKeyUsageOID.SERVER_AUTH if server else ExtendedKeyUsageOID.CLIENT_AUTH
            builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        if names:
            there = [
                x509.IPAddress(ipaddress.ip_address(n)) if n[0].isdigit() else x509.DNSName(n)
                for n in names
            ]
            builder = builder.add_extension(x509.SubjectAlternativeName(there), critical=False)
        return builder.sign(self._key, hashes.SHA256())
