"""What an operator has been given to install an agent with, in a tree of its own."""

import stat
import subprocess
from pathlib import Path

from tests.certificates import Authority


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


class Site:
    """A tree, and the files that an operator has been given."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.tree = folder, folder / "tree"
        self.authority = Authority(folder / "certs")
        self.files = self.authority.sign("edge-17")
        self.public = folder / "trusted.pem"
        self.private = folder / "signing.pem"
        openssl = ["openssl", "genpkey", "-algorithm", "ed25519", "-out", str(self.private)]
        subprocess.run(openssl, check=True, capture_output=True)
        openssl = ["openssl", "pkey", "-in", str(self.private), "-pubout", "-out", str(self.public)]
        subprocess.run(openssl, check=True)
        self.options: dict[str, object] = {
            "--name": "edge-17",
            "--broker": "mqtts://broker:8883",
            "--checkpoints": "file:///var/lib/tidegate/checkpoints",
            "--ca": self.files.ca,
            "--cert": self.files.cert,
            "--key": self.files.key,
            "--trusted-key": f"k1={self.public}",
            "--gpus": 2,
            "--gpu-type": "cpu",
            "--owner": "none",
            "--isolation": "none",
            "--root": self.tree,
        }

    def words(self, **other: object) -> list[object]:
        """Give the command; `ca=None` leaves an option out."""
        chosen = {**self.options, **{f"--{k.replace('_', '-')}": v for k, v in other.items()}}
        options = [word for option, value in chosen.items() if value for word in (option, value)]
        return ["edge-agent", "install", *options]

    def simulated(self) -> Path:
        """Write a configuration of one's own, of an agent that plays its jobs."""
        own = self.folder / "own.toml"
        own.write_text("[mqtt]\nurl = 'mqtt://b'\n[agent]\nname = 'edge-17'\nruns = 'simulated'\n")
        return own

    def at(self, path: str) -> Path:
        return self.tree / path.lstrip("/")
