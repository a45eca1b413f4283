"""Archives as anybody may make them: what `tar` and `zip` write, and what no program would."""

import io
import tarfile
import zipfile
from typing import Any


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", **more: Any) -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type, found.linkname = kind, link
    for field, value in more.items():
        setattr(found, field, value)
    return found


def tar(*entries: tarfile.TarInfo | tuple[tarfile.TarInfo, bytes]) -> bytes:
    found = io.BytesIO()
    with tarfile.open(fileobj=found, mode="w:gz") as archive:
        for one in entries:
            info, content = one if isinstance(one, tuple) else (one, b"")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return found.getvalue()


def zipped(*entries: tuple[str, bytes, int]) -> bytes:
    found = io.BytesIO()
    with zipfile.ZipFile(found, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content, mode in entries:
            info = zipfile.ZipInfo(name)
            info.external_attr, info.compress_type = mode << 16, zipfile.ZIP_DEFLATED
            archive.writestr(info, content)
    return found.getvalue()
