"""Laws of what is asked of an upstream, for any acts of clients, upstream, owner and connection.

no change is lost: one that no way sent is reported as soon as the URI is agreed again
no change is reported twice: a URI is reported only after a gap, and has two ways only while it is handed over
a refused URI is asked for again only by the rule
what is wanted and what is agreed converge
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mcpmux.errors import RpcError
from mcpmux.mux.wanted import BROKEN_SECONDS, REASK_SECONDS, Wanted, Way
from tests.examples import examples

URIS = ["memo:1", "memo:2", "memo:3"]
SETTLE = 4.0
ROUNDS = 20  # of asking, more than any script needs
NOBODY = frozenset[str]()

uris = st.sampled_from(URIS)


class Asking(RuleBasedStateMachine):
    """The machine, driven as a subscriber does, beside a plain model of who sends what."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.uris: set[str] = set()
        self.wanted = Wanted(lambda: frozenset(self.uris))
        self.is_modern = True
        self.refuses: set[str] = set()  # the upstream
        self.declines: set[str] = set()  # the owner
        self.is_owner_deaf = False
        self.upstream_sends = NOBODY
        self.owner_sends = NOBODY
        self.promised: set[str] = set()  # URIs whose clients were told that they get all changes from now on
        self.unseen: set[str] = set()  # those of them that have changed, which no way has sent
        self.turns: dict[Way, int] = {}  # of the last asking
        self.asking: dict[Way, tuple[str | None, frozenset[str]]] = {}  # listens without an answer yet
        self.gaps: set[str] = set()  # those of them that no way sent for a while

    @initialize(is_modern=st.booleans(), owner=st.sampled_from([None, "a"]))
    def connect(self, is_modern: bool, owner: str | None) -> None:
        self.is_modern = is_modern
        self.asking.clear()
        self.wanted.begin(owner, for_lists=is_modern)

    # Clients

    @rule(uri=uris)
    def want(self, uri: str) -> None:
        self.uris.add(uri)
        self.wanted.ask_again([uri])
        self.look()

    @rule(uri=uris)
    def drop(self, uri: str) -> None:
        self.uris.discard(uri)
        for held in (self.promised, self.unseen, self.gaps):
            held.discard(uri)
        self.wanted.look_again()

    # Servers

    @rule()
    def change(self) -> None:
        """Change all resources."""
        self.unseen |= self.promised - self.upstream_sends - self.owner_sends

    @rule(uri=uris, is_owner=st.booleans())
    def turn_moody(self, uri: str, is_owner: bool) -> None:
        moods = self.declines if is_owner else self.refuses
        moods ^= {uri}

    @rule()
    def turn_deaf(self) -> None:
        self.is_owner_deaf = not self.is_owner_deaf

    @precondition(lambda self: self.is_modern and self.wanted.direct.is_open)
    @rule()
    def break_the_upstreams_listen(self) -> None:
        self.upstream_sends = NOBODY
        self.wanted.break_off(self.wanted.direct, None, self.now, is_over=False)
        self.look()

    @precondition(lambda self: self.wanted.shared.is_open)
    @rule(is_over=st.booleans())
    def break_the_owners_listen(self, is_over: bool) -> None:
        self.owner_sends = NOBODY
        shared = self.wanted.shared
        self.wanted.break_off(shared, shared.server, self.now, is_over=is_over)
        self.look()

    @rule(owner=st.sampled_from([None, "a", "b"]))
    def elect(self, owner: str | None) -> None:
        if owner != self.wanted.owner:
            self.wanted.follow(owner)

    @rule(is_modern=st.booleans())
    def reconnect(self, is_modern: bool) -> None:
        self.upstream_sends = self.owner_sends = NOBODY
        self.wanted.end()
        self.look()
        self.connect(is_modern, self.wanted.owner)

    # The subscriber

    @rule(seconds=st.sampled_from([0.5, 3.0, 40.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        for way in (self.wanted.direct, self.wanted.shared):
            if way.again_at <= self.now:
                self.wanted.come_due(way)

    @rule(is_owner=st.booleans())
    def ask(self, is_owner: bool) -> None:
        machine = self.wanted
        way = machine.shared if is_owner else machine.direct
        if way in self.asking or self.turns.get(way) == machine.turn:
            return
        self.turns[way] = machine.turn
        if not (self.is_modern or is_owner):
            self.ask_for_each()
        elif (listen := machine.next_listen(way, self.now)) is not None:
            if is_owner and not listen:
                machine.stop(way)
                self.owner_sends = NOBODY
                self.look()
            else:
                self.asking[way] = machine.owner if is_owner else None, listen

    @rule(is_owner=st.booleans())
    def answer(self, is_owner: bool) -> None:
        """Have an upstream or an owner answer a listen, if one was opened."""
        machine = self.wanted
        way = machine.shared if is_owner else machine.direct
        if way not in self.asking:
            return
        server, listen = self.asking.pop(way)
        if is_owner and self.is_owner_deaf:
            machine.fail_to_listen(way, server, listen, self.now, is_refused=False)
        elif is_owner:
            goes_on = way.is_open and way.server == server
            self.owner_sends = granted = listen - self.declines
            machine.acknowledge(
                way, server, listen, granted, self.now, settle_seconds=SETTLE, goes_on=goes_on
            )
        else:
            self.upstream_sends = granted = listen - self.refuses
            machine.acknowledge(way, server, listen, granted, self.now)
        self.look()

    def ask_for_each(self) -> None:
        machine = self.wanted
        for uri in machine.differing(self.now):
            if uri in machine.direct.agreed:
                machine.leave(uri)
                self.upstream_sends -= {uri}
            elif uri in self.refuses:
                machine.refuse_with(uri, RpcError(-32602, "no"), self.now)
            else:
                self.upstream_sends |= {uri}
                machine.agree(machine.direct, [uri])
            self.look()

    @rule()
    def settle(self) -> None:
        """Ask and answer until nothing more is to be asked, despite all refusals."""
        for is_owner in (True, False):
            self.answer(is_owner)
        for _ in range(ROUNDS):
            turn = self.wanted.turn
            for is_owner in (True, False):
                self.ask(is_owner)
                self.answer(is_owner)
            if self.wanted.turn == turn:
                break
        assert self.wanted.turn == turn
        for is_owner in (True, False):
            self.ask(is_owner)
            assert self.asking == {}
        refused = self.wanted.refused
        if not self.uris <= self.wanted.agreed | refused.keys():  # the upstream's listen broke a moment ago
            assert self.is_modern and not self.wanted.direct.is_open
            assert self.wanted.direct.again_at <= self.now + BROKEN_SECONDS
        assert not refused or self.wanted.direct.again_at <= self.now + REASK_SECONDS

    def look(self) -> None:
        """Take what the machine reports, and note what is promised from now on."""
        sent = self.upstream_sends | self.owner_sends
        self.gaps |= self.promised - sent
        for uri in self.wanted.take_changed():
            assert uri in self.gaps, f"{uri} was sent all the time"
            assert uri in sent, f"{uri} may change again, and that is not sent"
            self.gaps.discard(uri)
            self.unseen.discard(uri)
        self.promised |= self.wanted.agreed & self.uris

    # Invariants

    @invariant()
    def no_more_is_agreed_than_is_sent(self) -> None:
        assert self.wanted.direct.agreed <= self.upstream_sends
        # An orderly end while the next listen is asked for: its acknowledgement decides.
        assert self.wanted.shared.agreed <= self.owner_sends or not self.wanted.shared.is_open

    @invariant()
    def a_uri_is_answered_once_it_is_agreed_or_refused(self) -> None:
        waiting = {uri for uri in URIS if not self.wanted.is_agreed(uri) and uri not in self.wanted.refused}
        assert self.wanted.unanswered(set(URIS)) == waiting

    @invariant()
    def what_is_sent_again_was_reported(self) -> None:
        assert not self.unseen & (self.upstream_sends | self.owner_sends)

    def teardown(self) -> None:
        """Make all servers willing at last, and let time pass."""
        self.refuses, self.declines, self.is_owner_deaf = set(), set(), False
        for _ in range(3):
            self.wait(REASK_SECONDS)
            self.settle()
        machine = self.wanted
        assert not machine.refused
        assert (machine.direct if machine.owner is None else machine.shared).agreed == self.uris
        assert not (machine.shared if machine.owner is None else machine.direct).agreed
        assert not self.unseen


TestAsking = Asking.TestCase
TestAsking.settings = settings(max_examples=examples(100), stateful_step_count=40, deadline=None)


def test_a_new_owner_is_asked_for_what_another_has_declined():
    uris = frozenset(URIS)
    machine = Wanted(lambda: uris)
    machine.begin("a", for_lists=False)
    machine.acknowledge(machine.shared, "a", uris, frozenset(URIS[:1]), 0.0)
    assert machine.of_upstream(0.0) == uris - {URIS[0]}
    machine.follow("b")
    assert machine.next_listen(machine.shared, 0.0) == uris
