"""A store that is a Redis or Valkey: one server, one behind Sentinels, or a Redis Cluster.

Promises: opening does not wait, and calls work as soon as the store is there, or there again. Every call
returns within the timeout. Every failure becomes StoreAway, in a sentence without passwords.

This is the only module that knows coredis.

Keys, after the prefix:

    {PREFIX}:replicas      ids of members, by the millisecond in which their lease ends
    {PREFIX}:cards         their cards
    {PREFIX}:ended         ids that may never come back, by when they ended
    PREFIX:session:{NAME}  owner and facts of a session
    PREFIX:events:{NAME}   its events
    {PREFIX}:places:GROUP  places that are taken, by the millisecond in which they end
    {PREFIX.rate}:BUCKET   when the bucket is full, in seconds

The text in braces is the hash tag, by which a Redis Cluster places a key.
"""

from __future__ import annotations

import logging
import math
import re
import ssl
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from enum import Enum
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar, cast
from urllib.parse import unquote

import structlog
import trio
from coredis import Redis, RedisCluster, Sentinel, SentinelConnectionPool
from coredis import exceptions as errors
from coredis.client import Client
from coredis.connection import TCPLocation
from coredis.retry import NoRetryPolicy

from mcpmux.cluster import redis_script as scripts
from mcpmux.cluster.store import ENDED_KEPT, Bucket, Lease, Member, Place, Roll, StoreAway, StoredSession
from mcpmux.config import ClientTls, Secret
from mcpmux.config.cluster import Cluster
from mcpmux.config.listener import join_address
from mcpmux.errors import ConfigError, McpmuxError
from mcpmux.transports.byte_stream import reason_of
from mcpmux.transports.tls import client_context, explain_server

T = TypeVar("T")

log = structlog.get_logger()

SILENT_SECONDS: Final = 60.0  # after an event about a refusal of the store
PAUSE: Final = 0.25  # seconds between attempts to open a client; soon enough, and no load for the store
CONNECTIONS: Final = 8  # to one server: commands share one, and while it is being opened others are
CALLS: Final = 1000  # at once; with as many unanswered, one more would not be answered in time either
ID_LENGTH: Final = 64  # characters of a replica's id; ours have 10 and a prefix
STRANGE_KEPT: Final = 100  # members that are no replicas, each with its own line in the log
FOLLOW_PERIOD: Final = 0.5  # seconds between questions to Sentinels where the primary is
BATCH: Final = 500  # sessions, or places, that are kept in one go: a millisecond of the server
REDIS_PORT: Final = 6379
SENTINEL_PORT: Final = 26379

_URL = re.compile(r"(rediss?)(\+sentinel|\+cluster)?://(?:([^@/]*)@)?([^@/]+)((?:/[^/]*)*)")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^:\[\]]+)(?::([0-9]{1,5}))?")


class Topology(Enum):
    ONE = None
    SENTINEL = "+sentinel"
    CLUSTER = "+cluster"


class StoreAddress(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return join_address(self.host, self.port)


class StoreUrl(NamedTuple):
    """Where a store is, as its URL says it.

        redis://HOST:PORT/DB                            one server
        redis+sentinel://HOST:PORT,HOST:PORT/SERVICE/DB what these Sentinels call the primary of SERVICE
        redis+cluster://HOST:PORT,HOST:PORT             a Redis Cluster, some nodes of which are there

    With `rediss` instead of `redis` all connections are secured by TLS. Unless it is given, the port is 6379,
    that of a Sentinel 26379, and the database is 0. `USER:PASSWORD@` before the hosts is for the servers that
    are named; in a URL of Sentinels that is for them, and not for what they name.

    `service` is "" unless `topology` is SENTINEL; `username` and `password` are None if not given.
    """

    topology: Topology
    secure: bool
    places: tuple[StoreAddress, ...]
    service: str
    database: int
    username: str | None
    password: Secret | None

    def __str__(self) -> str:
        """Return the places for people, without user and password."""
        return ", ".join(map(str, self.places))


def parse_store_url(url: Secret) -> StoreUrl:
    """Return the settings in a URL. Raises ConfigError, which does not show it: it may have a password."""
    match = _URL.fullmatch(url.reveal())
    if match is None:
        raise _unfit("it is no URL of Redis")
    scheme, kind, user, hosts, path = match.groups()
    topology = Topology(kind)
    parts = [unquote(part) for part in path.split("/") if part]
    service = parts.pop(0) if topology is Topology.SENTINEL and parts else ""
    if topology is Topology.SENTINEL and not service:
        raise _unfit("a URL of Sentinels needs the name of the service: …/SERVICE")
    default = SENTINEL_PORT if topology is Topology.SENTINEL else REDIS_PORT
    places = []
    for text in hosts.split(","):
        host = _HOST.fullmatch(text)
        if host is None or not 0 < int(host[2] or default) < 65536:
            raise _unfit("after :// it needs HOST:PORT")
        places.append(StoreAddress(host[1].strip("[]"), int(host[2] or default)))
    if topology is Topology.ONE and len(places) > 1:
        raise _unfit("redis:// names one server; several need redis+sentinel:// or redis+cluster://")
    database = 0
    if parts:
        if len(parts) > 1 or not parts[0].isdecimal():
            raise _unfit("the database at its end is a number")
        database = int(parts[0])
        if topology is Topology.CLUSTER and database != 0:
            raise _unfit("a Redis Cluster has database 0 only")
    # A user without a colon has no password; one with it may have an empty one.
    name, colon, secret = (user or "").partition(":")
    username, password = unquote(name) or None, Secret(unquote(secret)) if colon else None
    return StoreUrl(topology, scheme == "rediss", tuple(places), service, database, username, password)


def _unfit(problem: str) -> ConfigError:
    return ConfigError([f"cluster.url: {problem}"])


class _Opened(NamedTuple):
    """A client that answered. It ends some time after `retired`."""

    client: Client[bytes]
    retired: trio.Event


OpenClient: TypeAlias = Callable[[], AbstractAsyncContextManager[Client[bytes]]]


@asynccontextmanager
async def open_redis_store(config: Cluster) -> AsyncIterator[RedisStore]:
    """Yield the store of a configuration that has its `url`.

    Raises ConfigError for settings that are wrong, such as files of TLS. Leaving it or cancelling it closes
    all connections.
    """
    assert config.url is not None
    url = parse_store_url(config.url)
    context = await trio.to_thread.run_sync(_read_tls, config.tls) if url.secure else None
    # It logs what it raises, too, and each failure is logged here already.
    logging.getLogger("coredis").setLevel(logging.CRITICAL + 1)
    store = RedisStore(config, url, partial(_open_client, config, url, context))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.run, name="store")
        try:
            yield store
        finally:
            nursery.cancel_scope.cancel()


def _read_tls(tls: ClientTls) -> ssl.SSLContext:
    try:
        context = client_context(tls, ())
    except ConfigError as error:
        raise ConfigError([f"cluster: {problem}" for problem in error.problems]) from None
    if (name := tls.server_name) is not None:
        wrap = context.wrap_bio

        def wrap_as_named(*buffers: Any, **options: Any) -> ssl.SSLObject:
            return wrap(*buffers, **{**options, "server_hostname": name})

        # coredis has every server prove to be the host that it connects to.
        context.wrap_bio = wrap_as_named  # type: ignore[method-assign]
    return context


@asynccontextmanager
async def _open_client(
    config: Cluster, url: StoreUrl, context: ssl.SSLContext | None
) -> AsyncIterator[Client[bytes]]:
    """Yield a client that has answered; of a Redis Cluster one node did. Raises the errors of coredis."""
    locations = [TCPLocation(place.host, place.port) for place in url.places]
    named = _credentials(url.username, url.password)
    stored = _credentials(config.username, config.password)
    options: dict[str, Any] = {
        "ssl_context": context,
        "connect_timeout": config.timeout,
        "stream_timeout": config.timeout,
        "max_connections": CONNECTIONS,
        # A command without an answer may have been carried out, so it is not repeated.
        "retry_policy": NoRetryPolicy(),
    }
    client: Client[bytes]
    if url.topology is Topology.SENTINEL:
        # Sentinels are asked one after the other, and the primary after them: no connection may take all the
        # time.
        share = config.timeout / (len(locations) + 1)
        asking = {"ssl_context": context, "connect_timeout": share, "stream_timeout": share, **named}
        asking |= {"verify_version": False}
        options |= {"db": url.database, "sentinel_kwargs": asking, **stored}
        async with (
            Sentinel(locations, decode_responses=False, **options) as sentinel,
            sentinel.primary_for(url.service) as client,
            trio.open_nursery() as nursery,
        ):
            client.verify_version = False
            await client.ping()
            nursery.start_soon(_follow_primary, cast(SentinelConnectionPool, client.connection_pool))
            yield client
            nursery.cancel_scope.cancel()
    elif url.topology is Topology.CLUSTER:
        # Nodes are tried one after the other, so a connection gets a part of the time.
        options |= {"startup_nodes": locations, "connect_timeout": config.timeout / 3, **named, **stored}
        # Without the last one it asks for a setting, which not every user may see.
        options |= {"max_connections_per_node": True, "skip_full_coverage_check": True}
        async with RedisCluster(decode_responses=False, verify_version=False, **options) as client:
            yield client
    else:
        options |= {"db": url.database, "verify_version": False, **named, **stored}
        async with Redis(locations[0].host, locations[0].port, decode_responses=False, **options) as client:
            await client.ping()
            yield client


async def _follow_primary(pool: SentinelConnectionPool) -> None:
    """Have the pool leave a server as soon as Sentinels name another one."""
    # The former primary may serve for seconds before it learns of that, and what is written there is lost.
    while True:
        await trio.sleep(FOLLOW_PERIOD)
        with suppress(Exception):  # when no Sentinel answers, the pool stays at its server
            await pool.get_primary_location()


@asynccontextmanager
async def _cancellable() -> AsyncIterator[None]:
    """Raise only Cancelled where coredis raises errors instead of it, or its tasks raise some beside it."""
    try:
        yield
    except (Exception, BaseExceptionGroup):
        await trio.lowlevel.checkpoint_if_cancelled()
        raise


def _credentials(username: str | None, password: Secret | None) -> dict[str, Any]:
    return {
        **({} if username is None else {"username": username}),
        **({} if password is None else {"password": password.reveal()}),
    }


class RedisStore:
    """A `Store`.

    `away`: why it did not do what was asked last, None if it did.
    """

    def __init__(self, config: Cluster, url: StoreUrl, open_client: OpenClient) -> None:
        self.commands = 0
        self.lag: float | None = None
        self.away: str | None = None
        self._where = str(url)
        self._timeout = config.timeout
        # Sentinels and nodes are tried one after the other, and each may take that long.
        self._patience = config.timeout * (1 if url.topology is Topology.ONE else 4 * len(url.places) + 1)
        self._prefix = config.prefix
        self._open_client = open_client
        self._opened: _Opened | None = None
        self._tried = trio.Event()  # it is known whether there is a client
        self._trouble = trio.Event()  # the client is to be replaced
        self._calls = 0
        self._silent_until = -math.inf
        self._strange: set[bytes] = set()  # members that are no replicas and are in the log
        self._member_keys = tuple(f"{{{config.prefix}}}:{name}" for name in ("replicas", "cards", "ended"))

    def __repr__(self) -> str:
        return f"RedisStore({self._where}, away={self.away!r}, {self._calls} calls)"

    async def run(self) -> None:
        """Keep a client open. Raises no error; when it is cancelled, all connections are closed."""
        async with trio.open_nursery() as nursery:
            while True:
                # Until another client has answered, calls use the one before; if it does not, they fail at
                # once.
                opened = None
                try:
                    # A client of coredis has background tasks and must end when one of them breaks, so each
                    # has its own task here.
                    opened = await nursery.start(self._run_client)
                # coredis raises its own errors, those of anyio and of Python, and groups.
                except Exception as error:
                    self._note(error)
                if self._opened is not None:
                    self._opened.retired.set()
                self._opened, self._trouble = opened, trio.Event()
                self._tried.set()
                if opened is None:
                    await trio.sleep(PAUSE)
                else:
                    self.away = None
                    # The one before takes that long to end, so there are never more than two.
                    earliest = trio.current_time() + max(PAUSE, self._timeout)
                    await self._trouble.wait()
                    await trio.sleep_until(earliest)

    async def _run_client(self, task_status: trio.TaskStatus[_Opened]) -> None:
        """Have a client until it is retired, and then for as long as calls may use it.

        Raises the errors of coredis and TimeoutError until it has answered.
        """
        opened = None
        try:
            with trio.move_on_after(self._patience) as patience:
                async with _cancellable(), self._open_client() as client:
                    patience.deadline = math.inf
                    opened = _Opened(client, trio.Event())
                    task_status.started(opened)
                    await opened.retired.wait()
                    # Calls that have begun with this client may still wait for their answers.
                    await trio.sleep(self._timeout)
            if patience.cancelled_caught:
                raise TimeoutError
        except Exception as error:  # see `run`
            if opened is None:
                raise
            # A task of the client broke, so that no call can use it any more.
            if opened is self._opened:
                self._opened = None
                self._note(error)
                self._trouble.set()

    def _note(self, error: BaseException) -> StoreAway:
        """Note why the store is away, and return what to raise for `error`."""
        self.away = f"the store at {self._where} {_explain(error, self._timeout)}"
        return StoreAway(self.away)

    async def _ask(self, question: Callable[[Client[bytes]], Awaitable[T]]) -> T:
        """Return an answer of the store. Raises StoreAway."""
        if self._calls >= CALLS:
            raise StoreAway(f"the store at {self._where} has {CALLS} calls to answer already")
        self._calls += 1
        try:
            with trio.move_on_after(self._timeout):
                # The first calls come before the first connection is there, and wait for it.
                await self._tried.wait()
                return await self._ask_client(question, self._opened)
            self._trouble.set()
            raise self._note(TimeoutError())
        finally:
            self._calls -= 1

    async def _ask_client(
        self, question: Callable[[Client[bytes]], Awaitable[T]], opened: _Opened | None
    ) -> T:
        if opened is None:
            raise StoreAway(self.away)
        began = trio.current_time()
        try:
            async with _cancellable():
                answer = await question(opened.client)
        except Exception as error:  # see `run`
            away, is_refusal = self._note(error), _is_refusal(error)
            if opened is self._opened and not is_refusal:
                self._trouble.set()
            if is_refusal and began >= self._silent_until:
                # A store that is full renews leases all the same, so no other part of mcpmux logs it.
                self._silent_until = began + SILENT_SECONDS
                log.error("the store of the cluster does not do what it is asked", reason=self.away)
            raise away from error
        self.lag = trio.current_time() - began
        if opened is self._opened:
            self.away = None
        return answer

    async def _run_script(
        self,
        client: Client[bytes],
        script: scripts.Script,
        keys: Sequence[str],
        arguments: Sequence[str | bytes | int],
    ) -> Any:
        self.commands += 1
        try:
            return await client.evalsha(script.digest, keys, arguments)
        # A store that was restarted, or has just become the primary, does not have the script; `eval` leaves
        # it there.
        except errors.NoScriptError:
            self.commands += 1
            return await client.eval(script.source, keys, arguments)

    async def _ask_script(
        self,
        script: scripts.Script,
        keys: Sequence[str],
        *arguments: str | bytes | int,
        read: Callable[[Any], T] = bool,  # type: ignore[assignment]  # the usual T
    ) -> T:
        """Run a script and `read` its answer. Raises StoreAway."""

        async def ask(client: Client[bytes]) -> T:
            return _read(read, await self._run_script(client, script, keys, arguments), keys[0])

        return await self._ask(ask)

    async def renew(
        self, replica: str, card: bytes, seconds: float, *, joining: bool
    ) -> Sequence[Member] | None:
        return await self._ask_script(
            scripts.RENEW,
            self._member_keys,
            replica,
            card,
            _milliseconds(seconds),
            int(joining),
            _milliseconds(ENDED_KEPT),
            read=self._read_members,
        )

    def _read_members(self, answer: Any) -> Sequence[Member] | None:
        if answer is None:
            return None
        pairs = zip(answer[::2], answer[1::2], strict=True)
        return sorted(Member(name.decode(), bytes(card)) for name, card in pairs if self._is_id(name))

    async def members(self) -> Roll:
        return await self._ask_script(scripts.MEMBERS, self._member_keys[:2], read=self._read_roll)

    def _read_roll(self, answer: Any) -> Roll:
        now, *entries = answer
        triples = zip(entries[::3], entries[1::3], entries[2::3], strict=True)
        leases = (
            Lease(name.decode(), bytes(card), left / 1000)
            for name, card, left in triples
            if self._is_id(name)
        )
        return Roll(now / 1000, sorted(leases))

    def _is_id(self, name: bytes) -> bool:
        """Return whether a member's name can be an id of a replica: others may write to the store, too."""
        if name.isascii() and len(name) <= ID_LENGTH:
            return True
        start = name[:ID_LENGTH]
        if start not in self._strange and len(self._strange) < STRANGE_KEPT:
            self._strange.add(start)
            what = "the store has a member that is no replica of mcpmux"
            log.warning(what, key=self._member_keys[0], member=repr(start))
        return False

    async def leave(self, replica: str) -> None:
        await self._ask_script(scripts.LEAVE, self._member_keys, replica, _milliseconds(ENDED_KEPT))

    async def save(self, name: str, session: StoredSession, seconds: float) -> bool:
        return await self._ask_script(scripts.SAVE, self._keys(name)[:1], *session, _milliseconds(seconds))

    async def find(self, name: str) -> StoredSession | None:
        key = self._keys(name)[0]

        async def ask(client: Client[bytes]) -> StoredSession | None:
            self.commands += 1
            owner, facts = await client.hmget(key, ["owner", "facts"])
            return _read(_read_kept, (owner, facts), key)

        return await self._ask(ask)

    async def claim(self, name: str, owner: str, before: str) -> bool:
        return await self._ask_script(scripts.CLAIM, self._keys(name)[:1], owner, before)

    async def keep(self, names: Sequence[str], owner: str, seconds: float) -> Collection[str]:
        arguments = (owner, _milliseconds(seconds))

        async def ask(client: Client[bytes]) -> set[str]:
            kept = set[str]()
            for start in range(0, len(names), BATCH):
                batch = names[start : start + BATCH]
                if isinstance(client, RedisCluster):
                    kept |= await self._keep_apart(client, batch, arguments)
                    continue
                keys = [key for name in batch for key in self._keys(name)]
                flags = await self._run_script(client, scripts.KEEP, keys, arguments)
                kept |= {name for name, flag in zip(batch, flags, strict=True) if flag}
            return kept

        return await self._ask(ask)

    async def _keep_apart(
        self, client: RedisCluster[bytes], names: Sequence[str], arguments: tuple[str, int]
    ) -> set[str]:
        """Keep sessions whose keys are at several nodes: one command a name, as in KEEP."""
        pool, kept = client.connection_pool, set()
        # No command may be about several slots. A node gets all of its commands at once.
        nodes = defaultdict(list)
        for name in names:
            command = client.evalsha(scripts.KEEP.digest, self._keys(name), arguments)
            nodes[pool.cluster_layout.node_for_request(command)].append((name, command))
        for node, commands in nodes.items():
            self.commands += len(commands)
            async with pool.acquire(node=node) as connection:
                batch = connection.create_request_batch([command for _, command in commands])
            for (name, _), answer in zip(commands, await batch, strict=True):
                if isinstance(answer, errors.ResponseError):  # it has moved, or the script is to be sent
                    answer = await self._run_script(client, scripts.KEEP, self._keys(name), arguments)
                if isinstance(answer, BaseException):
                    raise answer
                if answer == [1]:
                    kept.add(name)
        return kept

    async def end(self, name: str, owner: str) -> None:
        await self._ask_script(scripts.END, self._keys(name), owner)

    async def append(self, name: str, events: Sequence[bytes], most: int, seconds: float) -> None:
        await self._ask_script(scripts.APPEND, self._keys(name)[1:], most, _milliseconds(seconds), *events)

    async def events(self, name: str) -> Sequence[bytes]:
        async def ask(client: Client[bytes]) -> Sequence[bytes]:
            self.commands += 1
            fields = [entry.field_values for entry in await client.xrange(self._keys(name)[1])]
            # Entries of other programs have no such field, and are skipped.
            return tuple(cast(bytes, values[b"event"]) for values in fields if b"event" in values)

        return await self._ask(ask)

    async def take(self, buckets: Sequence[Bucket]) -> tuple[int, float] | None:
        if not buckets:
            return None
        keys = [f"{{{self._prefix}.rate}}:{bucket.name}" for bucket in buckets]
        times = [repr(seconds) for bucket in buckets for seconds in (bucket.interval, bucket.room)]
        return await self._ask_script(scripts.TAKE, keys, *times, read=partial(_read_refusal, buckets))

    async def take_place(self, place: Place, most: int, seconds: float) -> bool:
        keys = (self._place_key(place), self._member_keys[0])
        return await self._ask_script(scripts.TAKE_PLACE, keys, _text_of(place), most, _milliseconds(seconds))

    async def keep_places(self, places: Sequence[Place], seconds: float) -> None:
        await self._ask(partial(self._run_on_places, scripts.KEEP_PLACES, places, _milliseconds(seconds)))

    async def leave_places(self, places: Sequence[Place]) -> None:
        await self._ask(partial(self._run_on_places, scripts.LEAVE_PLACES, places, 0))

    async def _run_on_places(
        self, script: scripts.Script, places: Sequence[Place], expiry: int, client: Client[bytes]
    ) -> None:
        for start in range(0, len(places), BATCH):
            batch = places[start : start + BATCH]
            keys, texts = [self._place_key(place) for place in batch], [_text_of(place) for place in batch]
            await self._run_script(client, script, keys, [*texts, expiry])

    def _place_key(self, place: Place) -> str:
        return f"{{{self._prefix}}}:places:{place.group}"  # beside the leases, which a script asks for

    async def version(self) -> str:
        async def ask(client: Client[bytes]) -> str:
            self.commands += 1
            facts = await client.info("server")
            # Valkey gives the version of Redis that it is compatible with, too.
            name = "valkey" if "valkey_version" in facts else "redis"
            return f"{name} {facts[f'{name}_version']!s}"

        return await self._ask(ask)

    def _keys(self, name: str) -> tuple[str, str]:
        """Return the keys of a session and of its events."""
        # A brace in a name would end the hash tag early: the two keys could be in different slots.
        if "}" in name or "%" in name:
            name = name.replace("%", "%25").replace("}", "%7D")
        return f"{self._prefix}:session:{{{name}}}", f"{self._prefix}:events:{{{name}}}"


class _BadAnswer(McpmuxError):
    """The answer of the store has another shape, as others may write there, too; the text says where."""


def _read(read: Callable[[Any], T], answer: Any, key: str) -> T:
    """Read an answer that is about a key. Raises _BadAnswer."""
    try:
        return read(answer)
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        raise _BadAnswer(f"{key}: {error}") from error


def _read_kept(answer: tuple[bytes | None, bytes | None]) -> StoredSession | None:
    owner, facts = answer
    return StoredSession(owner.decode(), bytes(facts)) if owner is not None and facts is not None else None


def _read_refusal(buckets: Sequence[Bucket], answer: Any) -> tuple[int, float] | None:
    if answer is None:
        return None
    number, seconds = int(answer[0]), float(answer[1])
    if not 0 <= number < len(buckets):
        raise ValueError("it is about no bucket that was asked for")
    if not 0 <= seconds <= buckets[number].interval + buckets[number].room:
        raise ValueError("no bucket takes so long")
    return number, seconds


def _text_of(place: Place) -> str:
    return f"{place.owner} {place.name}"


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error and what is behind it."""
    while error is not None:
        yield error
        error = error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error.__cause__


def _is_refusal(error: BaseException) -> bool:
    """Return whether a server answered: another connection would get the same."""
    if isinstance(error, _BadAnswer):
        return True
    cause = next(
        (candidate for candidate in _causes(error) if isinstance(candidate, errors.ResponseError)), None
    )
    # A server that became a replica refuses to write, and nodes of a cluster refuse keys that have moved:
    # another connection finds the right server.
    if cause is None or isinstance(cause, errors.ReadOnlyError | errors.RedisClusterError):
        return False
    return "READONLY" not in str(cause)  # so a script of Redis 6 tells it


def _explain(error: BaseException, timeout: float) -> str:
    """Return the rest of a sentence that begins with "the store at … "."""
    causes = list(_causes(error))
    for cause in causes:
        match cause:
            case errors.AuthenticationRequiredError():
                return "wants a password; set `password` in [cluster]"
            case errors.AuthenticationFailureError():
                return "refuses the `username` and `password` of [cluster]"
            case errors.PrimaryNotFoundError():
                return f"cannot be reached: no Sentinel answers that knows its primary ({cause})"
            case errors.BusyLoadingError() | errors.ResponseError():
                return f"refuses: {cause}"
            case ssl.SSLError():
                return f"cannot be reached: {explain_server(cause)}"
            case _BadAnswer():
                return f"has something else under the `prefix` of [cluster] ({cause})"
            case TimeoutError():
                return f"does not answer within {timeout:g} s"
    broken = next((cause for cause in causes if isinstance(cause, OSError)), None)
    if broken is not None:
        return f"cannot be reached: {reason_of(broken)}"
    texts = (str(cause) for cause in causes if not isinstance(cause, BaseExceptionGroup))
    words = next(filter(None, texts), "the connection broke")
    return f"cannot be reached: {words[:1].lower()}{words[1:].rstrip('.')}"
