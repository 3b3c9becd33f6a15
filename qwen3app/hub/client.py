"""What we ask of the Hub: which files a model has, and how large and of which hash each is.

Owns the requests, the repeated tries where a fault may pass, and the one sentence for every way in which a Hub refuses.
The address (HF_ENDPOINT), the token (HF_TOKEN, or what `hf auth login` left), proxies, certificates and HF_HUB_OFFLINE
are huggingface_hub's; Refuses to know where files go. Any thread.
"""

from __future__ import annotations

import hashlib
import logging
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from qwen3app import __version__
from qwen3app.errors import NETWORK_VARIABLES, ModelError
from qwen3app.hub.names import HubName
from qwen3app.weights_index import stays_inside

if TYPE_CHECKING:
    import httpx2

T = TypeVar("T")

# These may pass by themselves; any other answer is final.
_PASSING = frozenset({408, 429, 500, 502, 503, 504})
_LONGEST_SAID = 300  # characters of a Hub's own words
_UNREACHED_TRIES = 2  # without an answer before: a wrong address or no network, where patience seldom helps
_LONGEST_WAIT = 60.0  # a Hub that asks for more gets its sentence instead


class HubError(ModelError):
    """The Hub cannot or will not give what was asked for. `passing`: it may if asked again."""

    def __init__(self, message: str, *, passing: bool = False, wait: float | None = None) -> None:
        super().__init__(message)
        self.passing = passing
        self.wait = wait  # seconds that the Hub asks for


class Offline(HubError):
    """The Hub is not to be asked."""


class UnknownName(HubError):
    """The Hub has no such model, as far as it tells."""


class Stopped(Exception):
    """The work was told to stop."""


@dataclass(frozen=True)
class Patience:
    """How often and how long after each other a step that makes no progress is tried again."""

    tries: int = 5
    first_wait: float = 1.0  # seconds; doubles each time


@dataclass(frozen=True)
class Listing:
    commit: str
    files: frozenset[str]


@dataclass(frozen=True)
class RemoteFile:
    name: str
    url: str
    size: int
    hash: str  # SHA-256 of large files, git's blob hash of small ones; else whatever the server calls its version

    @property
    def can_be_checked(self) -> bool:
        return re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", self.hash) is not None

    def digest(self) -> Any:
        """A new hash object of the kind that `hash` is, to be fed with all bytes."""
        if len(self.hash) == 40:
            return hashlib.sha1(b"blob %d\0" % self.size, usedforsecurity=False)
        return hashlib.sha256()


class Hub:
    """One model on the Hub."""

    def __init__(
        self, name: HubName, patience: Patience | None = None, say: Callable[[str], None] = lambda sentence: None
    ) -> None:
        """say: told of faults that may pass, before a step is tried again."""
        from huggingface_hub import constants, get_session
        from huggingface_hub.utils._headers import build_hf_headers

        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # what it warns of, we say ourselves
        self.name = name
        self.patience = patience or Patience()
        self.stop = threading.Event()
        self._say = say
        self._has_answered = False
        self.endpoint = constants.ENDPOINT
        self.headers: dict[str, str] = build_hf_headers(library_name="qwen3-8b", library_version=__version__)
        if not self.headers.get("authorization", "").isascii():
            raise HubError("The token (of HF_TOKEN or `hf auth login`) holds characters that no token has; renew it.")
        self.timeout = float(constants.HF_HUB_DOWNLOAD_TIMEOUT)
        try:
            get_session()
        except (ValueError, OSError) as error:  # of what the environment says of proxies and certificates
            raise HubError(f"No connection can be made ({error}); check {NETWORK_VARIABLES}.") from None
        if constants.HF_HUB_OFFLINE:
            raise Offline(
                f"HF_HUB_OFFLINE is set, and {name} is not here in full; unset it to download, or give a directory."
            )

    @property
    def has_token(self) -> bool:
        return "authorization" in self.headers

    def listing(self) -> Listing:
        """The commit of the revision and the names of its files."""
        from urllib.parse import quote

        url = f"{self.endpoint}/api/models/{self.name.repo}/revision/{quote(self.name.revision, safe='')}"
        return self.patiently(lambda: self._listing(url))

    def _listing(self, url: str) -> Listing:
        from huggingface_hub import get_session

        response = get_session().get(url, headers=self.headers, timeout=self.timeout)
        self.check(response, self.name.repo)
        try:
            reply = response.json()
            commit, names = reply["sha"], [file["rfilename"] for file in reply["siblings"]]
            for text in (commit, *names):  # they become paths, and are shown
                if not isinstance(text, str) or not stays_inside(text) or not text.isprintable():
                    raise ValueError
            if "/" in commit:
                raise ValueError
        except (ValueError, TypeError, KeyError, RecursionError):
            raise HubError(
                f"{self.endpoint} does not answer as a Hub does (no list of files for {self.name}); check HF_ENDPOINT."
            ) from None
        return Listing(commit, frozenset(names))

    def file(self, commit: str, name: str) -> RemoteFile:
        """One file's size and hash."""
        return self.patiently(lambda: self._file(commit, name))

    def _file(self, commit: str, name: str) -> RemoteFile:
        from huggingface_hub import get_hf_file_metadata, hf_hub_url
        from huggingface_hub.errors import HfHubHTTPError

        url = hf_hub_url(self.name.repo, name, revision=commit)
        try:
            metadata = get_hf_file_metadata(url, headers=self.headers, timeout=self.timeout)
        except HfHubHTTPError as error:
            self.check(error.response, name)
            raise
        except ValueError as error:  # of a header
            raise HubError(
                f"{self.endpoint} answers for {name} what no Hub does ({error}); check HF_ENDPOINT."
            ) from None
        if metadata.size is None or not metadata.etag or not stays_inside(metadata.etag) or "/" in metadata.etag:
            raise HubError(f"{self.endpoint} does not say how large {name} is, or its hash; check HF_ENDPOINT.")
        return RemoteFile(name, url, metadata.size, metadata.etag)

    def patiently(self, step: Callable[[], T], progressed: Callable[[], bool] = lambda: False) -> T:
        """What `step` returns; it is tried again where a fault may pass. progressed: the last try got further than the
        one before, so that the count begins anew."""
        tries, wait = 0, self.patience.first_wait
        while True:
            if self.stop.is_set():
                raise Stopped
            try:
                return step()
            except Exception as error:
                refused = self._as_hub_error(error)
                unreached = not self._has_answered and _is_unreached(error)
            if not isinstance(refused, HubError) or not refused.passing:
                raise refused from None
            if progressed():
                tries, wait = 0, self.patience.first_wait
            tries += 1
            pause = wait if refused.wait is None else max(refused.wait, wait)
            most = min(self.patience.tries, _UNREACHED_TRIES) if unreached else self.patience.tries
            if tries >= most or pause > _LONGEST_WAIT:
                raise refused from None
            cause = str(refused).partition("; ")[0]
            self._say(f"{cause}; trying again in {pause:g} s.")
            if self.stop.wait(pause):
                raise Stopped
            wait *= 2

    def _as_hub_error(self, error: Exception) -> Exception:
        """What the HTTP client raised, as one sentence; other errors as they are."""
        import httpx2
        from huggingface_hub.errors import OfflineModeIsEnabled

        if isinstance(error, OfflineModeIsEnabled):
            return HubError("HF_HUB_OFFLINE is set; unset it to download.")
        if _is_unreached(error):
            reason = str(error) or f"no connection within {self.timeout:g} s"
            return HubError(
                f"{self._asked(error)} cannot be reached ({reason}); check the network, HF_ENDPOINT and the proxy's "
                "variables, and run this again: what has come stays.",
                passing=True,
            )
        if isinstance(error, httpx2.TimeoutException):
            return HubError(
                f"{self.endpoint} sends nothing for {self.timeout:g} s; try again, the download goes on where it is.",
                passing=True,
            )
        if isinstance(error, httpx2.UnsupportedProtocol | httpx2.InvalidURL):
            return HubError(f"{self.endpoint} is no address of a Hub ({error}); check HF_ENDPOINT.")
        if isinstance(error, httpx2.TransportError):
            reason = str(error) or type(error).__name__
            return HubError(
                f"{self.endpoint} breaks off ({reason}); check the network, HF_ENDPOINT and the proxy's variables, and "
                "run this again: the download goes on where it is.",
                passing=not isinstance(error, httpx2.ProxyError),
            )
        if isinstance(error, httpx2.HTTPError):
            return HubError(f"{self.endpoint} cannot be asked ({error}); check HF_ENDPOINT.")
        return error

    def _asked(self, error: Exception) -> str:
        """The address that was asked: the Hub's, or that of the store of files it has sent us to."""
        try:
            url = error.request.url  # type: ignore[attr-defined]
        except (AttributeError, RuntimeError):
            return self.endpoint
        return f"{url.scheme}://{url.netloc.decode()}"

    def check(self, response: httpx2.Response, what: str) -> None:
        """HubError for an answer that is a refusal. what: the file or the model that was asked for."""
        self._has_answered = True
        status = response.status_code
        if status < 400:
            return
        code = response.headers.get("X-Error-Code", "")
        said = "".join(char if char.isprintable() else " " for char in response.headers.get("X-Error-Message", ""))
        said = " ".join(said.split())[:_LONGEST_SAID]
        token = "the token's account" if self.has_token else "you"
        if code == "GatedRepo":
            give = "" if self.has_token else " and give a token of yours as HF_TOKEN"
            raise HubError(
                f"{self.name.repo} is gated and {token} may not read it: accept its terms at "
                f"{self.endpoint}/{self.name.repo}{give}."
            )
        if code == "RevisionNotFound":
            raise HubError(f"{self.name.repo} has no revision {self.name.revision!r}; check what follows the @.")
        if status == 401 and "credentials" in said.lower():
            raise HubError(f"{self.endpoint} does not accept the token (of HF_TOKEN or `hf auth login`); renew it.")
        if code == "EntryNotFound" or (status == 404 and what != self.name.repo):
            raise HubError(f"{self.name} has no file {what} on {self.endpoint} any more; try again.")
        if code == "RepoNotFound" or status in (401, 404):
            private = "private to another account" if self.has_token else "private and needs a token (HF_TOKEN)"
            raise UnknownName(f"{self.endpoint} has no model {self.name.repo}, or it is {private}; check the name.")
        tail = f": {said}" if said else ""
        if status == 403:
            raise HubError(f"{self.endpoint} forbids {what}{tail}; check the rights of the token (HF_TOKEN).")
        wait = response.headers.get("Retry-After", "")
        seconds = float(wait) if wait.isascii() and wait.isdigit() else None
        if status == 429:
            when = "later" if seconds is None else f"in {seconds:g} s"
            raise HubError(
                f"{self.endpoint} has had too many requests from here (HTTP 429); try again {when}, the download goes "
                "on where it is.",
                passing=True,
                wait=seconds,
            )
        raise HubError(
            f"{self.endpoint} fails with HTTP {status} for {what}{tail}; try again later, the download goes on where "
            "it is.",
            passing=status in _PASSING,
            wait=seconds,
        )


def _is_unreached(error: Exception) -> bool:
    """No connection was made: no such host, nobody at its port, no way there."""
    import httpx2

    return isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout)
