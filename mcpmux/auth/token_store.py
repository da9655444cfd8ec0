"""Store tokens and logins: one file for each upstream, written whole or not at all.

Promises: no repr shows a secret; the folder is 0700, a file 0600; a file that others can read is not used. A
new file is on the disk before the old one goes. Functions that touch files block: call them in a thread.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec

from mcpmux.config import Http, WebSocket
from mcpmux.errors import TransportError
from mcpmux.files import (
    OTHERS,
    OWN_FILE,
    PRIVATE,
    PRIVATE_FOLDER,
    lock_file,
    replacing,
    state_folder,
    to_disk,
)
from mcpmux.protocol.envelope import UNREADABLE
from mcpmux.transports.byte_stream import reason_of

DIGITS = 16  # of the URL's hash: one name may stand for different servers in different configurations
FILE_BYTES = 1024 * 1024


class _Private(msgspec.Struct, frozen=True):
    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"


class Tokens(_Private, frozen=True):
    """The answer of a token endpoint. `expires`: seconds since 1970; None when it did not say."""

    access: str
    refresh: str | None = None
    expires: float | None = None
    scopes: tuple[str, ...] = ()

    @property
    def until(self) -> float:
        """The time at which they expire: seconds since 1970, or infinity."""
        return math.inf if self.expires is None else self.expires


class OAuthClient(_Private, frozen=True):
    """mcpmux as a client of an authorization server. `method`: of authentication at its token endpoint.

    `redirect_uri`: that of mcpmux's own registration; None without one.
    """

    id: str
    secret: str | None = None
    method: str = "none"
    redirect_uri: str | None = None


class Login(_Private, frozen=True):
    """A login at one issuer for one upstream. `wanted`: scopes that the upstream asked for since."""

    upstream: str
    url: str
    issuer: str
    resource: str
    client: OAuthClient
    tokens: Tokens
    wanted: tuple[str, ...] = ()


class StoreTrouble(TransportError):
    """The file of a login cannot be used."""


def default_folder() -> Path:
    """Return the default folder of logins: $XDG_STATE_HOME/mcpmux/logins, or ~/.local/state/mcpmux/logins."""
    return state_folder() / "logins"


class LoginFile(msgspec.Struct, frozen=True):
    """The file of the login at one upstream. Makes the folder when needed. Methods raise StoreTrouble."""

    folder: Path
    upstream: str
    url: str

    @property
    def path(self) -> Path:
        """The path of the file, which depends on the upstream's name and URL."""
        return self.folder / f"{self.upstream}-{hashlib.sha256(self.url.encode()).hexdigest()[:DIGITS]}.json"

    def load(self) -> Login | None:
        """Return the login, or None when there is none."""
        path, data = self.path, None
        with _told(path), suppress(FileNotFoundError), path.open("rb") as file:
            # Checked on the open file, so that it cannot be exchanged in between.
            if os.fstat(file.fileno()).st_mode & OTHERS:
                raise StoreTrouble(f"{path} can be read by others: `chmod 600` it, or log in anew")
            data = file.read(FILE_BYTES)
        if data is None:
            return None
        try:
            login = msgspec.json.decode(data, type=Login)
        except UNREADABLE:
            raise StoreTrouble(f"{path} is damaged: log in anew") from None
        return login if login.url == self.url else None

    def save(self, login: Login) -> None:
        """Replace the stored login."""
        with _told(self.path):
            self.folder.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
            self.folder.chmod(PRIVATE_FOLDER)  # if it was there, with other permissions
            with replacing(self.path) as file:
                file.write(msgspec.json.format(msgspec.json.encode(login)))
                to_disk(file)

    def try_lock(self) -> int | None:
        """Lock the login against other processes. Return a descriptor to close, or None if it is locked."""
        with _told(self.path), ExitStack() as undo:
            self.folder.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
            lock = self.path.with_name(f".{self.path.stem}.lock")
            descriptor = os.open(lock, os.O_CREAT | os.O_RDWR | OWN_FILE, PRIVATE)
            undo.callback(os.close, descriptor)
            with suppress(BlockingIOError):
                lock_file(descriptor)
                undo.pop_all()
                return descriptor
        return None

    def remove(self) -> bool:
        """Delete a login. Return whether there was one."""
        with _told(self.path):
            existed = self.path.exists()
            self.path.unlink(missing_ok=True)
        return existed


def login_file(upstream: str, target: Http | WebSocket, folder: Path | None = None) -> LoginFile:
    """Return the file of an upstream's login: its own, or one at an identity provider shared by several."""
    provider = target.oauth.identity_provider if target.oauth is not None else None
    name, url = (upstream, target.url) if provider is None else ("identity", provider.issuer)
    return LoginFile(folder or default_folder(), name, url)


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Raise an OSError inside as StoreTrouble about the file."""
    try:
        yield
    except OSError as error:
        raise StoreTrouble(f"{path}: {reason_of(error)}") from None
