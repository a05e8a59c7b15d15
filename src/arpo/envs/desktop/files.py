"""Where the files come from that OSWorld's tasks download: a folder, or a mirror of their hub.

    FileSource("osworld-files").read("https://huggingface.co/…/resolve/main/vlc/1a2b/cat.mp4")

A folder holds what `git clone` of the hub's repository gives (vlc/1a2b/cat.mp4), or what `wget -x` does, with the
host's name in front. A mirror (http:// or https://) is asked for the same path. Nothing is ever fetched from the
address that a task names, and nothing outside the folder is read, whatever that address says: links are followed
first, and what then lies elsewhere is not there.
"""

import http.client
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from arpo.errors import EnvError

FETCH_S = 60.0  # for all of it
LARGEST = 256 << 20  # bytes: no more would fit into the sandbox
PIECE = 1 << 20
REVISION = "/resolve/main/"  # what follows it is the path in the hub's repository


@dataclass(frozen=True, slots=True)
class FileSource:
    """`where`: a folder or a mirror's address; None: there are none."""

    where: str | None = None

    def why_not(self, url: str) -> str:
        """Why a file cannot be had, as far as that can be known without fetching it; empty where it can."""
        if self.where is None:
            return "env.files is not set: it names a folder with the files, or a mirror"
        if not (paths := _paths(url)):
            return "that is no address of a file"
        if self._remote or self._beside(url) is not None:
            return ""
        return f"env.files={self.where} has no {paths[0]}"

    def read(self, url: str) -> bytes:
        """The file, or EnvError."""
        if why := self.why_not(url):
            raise EnvError(f"{url}: {why}")
        if not self._remote:
            beside = self._beside(url)
            assert beside is not None
            try:
                with beside.open("rb") as file:
                    data = file.read(LARGEST + 1)
            except OSError as error:
                raise EnvError(f"{beside}: {error.strerror}") from error
            return _not_too_large(data, str(beside))
        assert self.where is not None
        address = f"{self.where.rstrip('/')}/{urllib.parse.quote(_paths(url)[0])}"
        try:
            return _not_too_large(_fetched(address), address)
        except urllib.error.HTTPError as error:
            error.close()  # it is the reply, too
            raise EnvError(f"{address}: {error}") from error
        except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: an address that is none
            raise EnvError(f"{address}: {error}") from error

    @property
    def _remote(self) -> bool:
        return self.where is not None and self.where.startswith(("http://", "https://"))

    def _beside(self, url: str) -> Path | None:
        assert self.where is not None
        folder = os.path.realpath(os.path.expanduser(self.where))
        for path in _paths(url):
            try:
                place = os.path.realpath(os.path.join(folder, path.lstrip("/")))
            except ValueError:  # characters that no file's name has
                continue
            if Path(place).is_relative_to(folder) and os.path.isfile(place):
                return Path(place)
        return None


def _fetched(address: str) -> bytes:
    deadline, data = time.monotonic() + FETCH_S, bytearray()
    with urllib.request.urlopen(address, timeout=FETCH_S) as reply:
        while len(data) <= LARGEST and (piece := reply.read1(PIECE)):
            data += piece
            if time.monotonic() > deadline:
                raise TimeoutError(f"it has not come within {FETCH_S:g} s")
        if reply.length and len(data) <= LARGEST:
            raise http.client.IncompleteRead(bytes(data), reply.length)
    return bytes(data)


def _not_too_large(data: bytes, place: str) -> bytes:
    if len(data) > LARGEST:
        raise EnvError(f"{place}: is larger than {LARGEST >> 20} MB")
    return data


def _paths(url: str) -> list[str]:
    """Where a folder may have the file of an address, the likeliest first; nowhere, where the address leads upwards."""
    try:
        parts = urllib.parse.urlsplit(url)
    except ValueError:  # "http://[" and the like
        return []
    path = urllib.parse.unquote(parts.path)
    if ".." in path.split("/") or "\0" in path:
        return []
    _, marker, inside = path.partition(REVISION)
    return [inside if marker else path.lstrip("/"), f"{parts.netloc}{path}"]
