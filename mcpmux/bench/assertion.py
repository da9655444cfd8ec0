"""Conditions on results: `p99<20ms`, `errors<0.1%`, `rate>500/s`, `read.p50<=5ms`. Pure.

A condition is `[PART.]MEASURE COMPARISON VALUE`, blanks allowed between them.

    PART        an operation's name; `service` for the times from the actual send; `connect` for the
                times that connections took; `delivery` for the delays of pushes. None: all operations.
    MEASURE     p0 … p100 (p99.9), mean, min, max   a duration:  us, µs, ms, s, min
                errors                              a share in %, or a count without a unit
                rate                                answers without error: /s or /min
                requests                            a count
                lost, duplicates                    of pushes: a count
                generator                           CPU share of the load generator: %
    COMPARISON  <  <=  >  >=

A condition that cannot hold, or cannot fail, is refused: it would not depend on the server.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from itertools import combinations, product
from operator import ge, gt, le, lt

import msgspec

from mcpmux.bench.results import NO_TIMES, Counted, Results
from mcpmux.config.report import InvalidValue, closest
from mcpmux.format import rate_text, share_text, time_text
from mcpmux.traffic.reading.histogram import Distribution

COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {"<": lt, "<=": le, ">": gt, ">=": ge}

UNITS: Mapping[str, tuple[Mapping[str, float], Callable[[float], str]]] = {
    "seconds": ({"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0}, time_text),
    "rate": ({"/s": 1.0, "/min": 1 / 60}, rate_text),
    "share": ({"%": 0.01}, share_text),
    "count": ({"": 1.0}, "{:,.0f}".format),
}
"""Kind of a value -> its units and what they are worth, and how it is shown."""

KINDS = {"rate": ("rate",), "errors": ("share", "count"), "generator": ("share",)}
"""Measure -> kinds of its values; all others are seconds (of times) or counts."""

OF_TIMES = {"mean": "mean", "min": "least", "max": "most"}  # -> attributes of a distribution
OF_OPERATION = (*OF_TIMES, "errors", "rate", "requests")
OF_RUN: Mapping[str, Callable[[Results], float | None]] = {
    "lost": lambda results: results.fan_out.losses if results.fan_out else None,
    "duplicates": lambda results: results.fan_out.duplicates if results.fan_out else None,
    "generator": lambda results: results.generator.cpu_share,
}
"""Measures of a whole run."""

ONLY_TIMES: Mapping[str, Callable[[Results], Distribution]] = {
    "service": lambda results: results.overall().service,
    "connect": lambda results: results.connections.times,
    "delivery": lambda results: results.fan_out.delay if results.fan_out is not None else NO_TIMES,
}
"""Parts of which nothing but times are known."""

EXAMPLES = "such as 'p99<20ms', 'errors<0.1%', 'rate>500/s' or 'read.p50<=5ms'"

_PERCENTILE = re.compile(r"p(\d+(?:\.\d+)?)$")
_MEASURE = re.compile(r"(?:^|\.)(?P<measure>p\d+(?:\.\d+)?|[^.]*)$")  # the leftmost match: p99.9, not 9
_CONDITION = re.compile(
    r"(?P<left>.*?)\s*(?P<sign><=|>=|==|!=|=<|=>|=|<|>)"
    r"\s*(?P<value>[-+]?(?:\d+(?:\.\d*)?|\.\d+))?\s*(?P<unit>.*)"
)


class BadAssertion(InvalidValue):
    """A condition that cannot be read, or cannot mean anything. The text points at the place."""

    def __init__(self, text: str, place: int, problem: str) -> None:
        super().__init__(f"{problem}\n  {text}\n  {' ' * place}^")
        self.place = place
        self.problem = problem


class Assertion(msgspec.Struct, frozen=True, kw_only=True):
    """A condition. `limit` is in seconds, shares (0 to 1), per second, or a count; `kind` says which."""

    text: str
    part: str | None
    measure: str
    comparison: str
    limit: float
    kind: str

    @property
    def percent(self) -> float | None:
        """Percentile that it is about, or None."""
        match = _PERCENTILE.match(self.measure)
        return float(match[1]) if match else None

    def holds(self, value: float) -> bool:
        """Return whether a value meets it. The value is in the units of `limit`."""
        return COMPARISONS[self.comparison](value, self.limit)

    def text_of(self, value: float) -> str:
        """Return a value in the units of `limit`, for people."""
        return UNITS[self.kind][1](value)


def parse_assertion(text: str) -> Assertion:
    """Read a condition. Raises BadAssertion, which says where it is wrong and what to write."""
    text = " ".join(text.split())

    def refuse(wrong: object, place: int, problem: str) -> None:
        if wrong:
            raise BadAssertion(text, place, problem)

    match = _CONDITION.fullmatch(text)
    if match is None:
        raise BadAssertion(text, len(text), f"an assertion needs a comparison (< <= > >=), {EXAMPLES}")
    left, sign, unit = match["left"], match["sign"], match["unit"]
    signs = {"=<": "<=", "=>": ">="}.get(sign, "<= or >=")
    refuse(sign not in COMPARISONS, match.start("sign"), f"{sign!r} is no comparison here: write {signs}")

    measure = _MEASURE.findall(left)[0]
    place = len(left) - len(measure)
    part = left[: place - 1] if place else None
    nameless = part is not None and not part.strip()
    refuse(nameless, 0, f"write the name of an operation before the dot, {EXAMPLES}")
    refuse(not measure, place, f"an assertion begins with what is measured, {EXAMPLES}")
    percentile = _PERCENTILE.match(measure)
    too_high = percentile and float(percentile[1]) > 100
    refuse(too_high, place, f"{measure} is no percentile: they go from p0 to p100")
    is_time = percentile or measure in OF_TIMES
    times = f"{part} has only times: write {part}.p99, {part}.mean or {part}.max"
    refuse(part in ONLY_TIMES and not is_time, place, times)
    of_run = f"{measure} is about the whole run: write it without {part!r}"
    refuse(measure in OF_RUN and part is not None, 0, of_run)
    if not is_time and measure not in (*OF_OPERATION, *OF_RUN):
        near = closest(measure, (*OF_OPERATION, *OF_RUN, "p50", "p99"))
        guess = f"did you mean {near}?" if near else f"known are p50, p99.9 …, {', '.join(OF_OPERATION)}"
        raise BadAssertion(text, place, f"nothing called {measure!r} is measured; {guess}")

    kinds = KINDS.get(measure, ("seconds" if is_time else "count",))
    kind = next((kind for kind in kinds if unit in UNITS[kind][0]), "")
    place = match.start("unit")
    refuse(match["value"] is None, place, f"a number has to follow the comparison, {EXAMPLES}")
    units = " or ".join(name or "no unit" for kind in kinds for name in UNITS[kind][0])
    what = f"{unit!r} is no unit of {measure}" if unit else f"{measure} needs a unit"
    refuse(not kind, place, f"{what}: write {units}")
    limit = float(match["value"]) * UNITS[kind][0][unit]

    assertion = Assertion(text=text, part=part, measure=measure, comparison=sign, limit=limit, kind=kind)
    # No measure is below 0; a share of errors is not above 1.
    most = 1.0 if (measure, kind) == ("errors", "share") else math.inf
    outcomes, place = {assertion.holds(0.0), assertion.holds(most)}, match.end("sign")
    refuse(outcomes == {False}, place, "this can never hold, whatever the server does")
    refuse(outcomes == {True}, place, "this always holds, so it says nothing about the server")
    return assertion


def check_together(assertions: Iterable[Assertion]) -> None:
    """Refuse conditions that cannot hold at the same time. Raises BadAssertion."""
    for other, assertion in combinations(assertions, 2):
        alike = (assertion.part, assertion.measure, assertion.kind) == (other.part, other.measure, other.kind)
        low, high = sorted((assertion.limit, other.limit))
        values = (low - 1, low, (low + high) / 2, high, high + 1)  # one of each stretch that they make
        if alike and not any(assertion.holds(value) and other.holds(value) for value in values):
            raise BadAssertion(assertion.text, 0, f"this and {other.text!r} cannot both hold")


def check_parts(assertions: Iterable[Assertion], operations: Iterable[str]) -> None:
    """Refuse conditions on operations that a run does not have. Raises BadAssertion."""
    parts = [*operations, *sorted(ONLY_TIMES)]
    for assertion in assertions:
        if assertion.part is not None and assertion.part not in parts:
            raise BadAssertion(assertion.text, 0, unknown_part(assertion.part, parts))


def unknown_part(part: str, known: Iterable[str]) -> str:
    """Return a sentence that names the missing operation and those that exist."""
    names = sorted(known)
    near = closest(part, names)
    guess = f"; did you mean {near!r}?" if near else ""
    return f"there is no operation {part!r} in this run; there are {', '.join(names)}{guess}"


# Whether results meet conditions, with a sentence for each.


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """Of one condition and one target. `value`: the measured one, or None."""

    held: bool
    value: float | None
    sentence: str


def judge(assertion: Assertion, results: Results) -> Judgement:
    """Judge results by a condition. They do not meet it if it was not measured."""
    value, count, why = None, 0, "nothing of it was measured"
    part, parts = assertion.part, [*results.operations, *ONLY_TIMES]
    if assertion.measure in OF_RUN:
        value = OF_RUN[assertion.measure](results)
    elif part is not None and part not in parts:
        why = unknown_part(part, parts)
    else:
        operation = results.operations.get(part or "") or results.overall()
        whole = part is None or part in results.operations
        times = operation.latency if whole else ONLY_TIMES[part or ""](results)
        rate = results.rate(operation) if results.seconds else None
        value, count = value_of(assertion, operation, rate, times), times.count
    held = value is not None and assertion.holds(value)
    sentence = f"{results.about.name}: {assertion.text} {'holds' if held else 'does not hold'}: "
    sentence += why if value is None else f"it is {assertion.text_of(value)}"
    percent = assertion.percent
    if value is not None and percent is not None and count * (100 - percent) < 100 and percent < 100:
        sentence += f" (of {count:,} only, so the slowest one decides)"
    return Judgement(held=held, value=value, sentence=sentence)


ENOUGH = 100  # requests, after which a condition may end a run


def find_lost(assertions: Iterable[Assertion], results: Results) -> str | None:
    """Return a sentence about an upper limit that a run has passed so far, None if there is none.

    Other conditions, such as a least rate, may hold in the end.
    """
    for assertion in assertions:
        if assertion.comparison in ("<", "<=") and results.overall().count >= ENOUGH:
            judgement = judge(assertion, results)
            if judgement.value is not None and not judgement.held:
                return f"{assertion.text} does not hold: it is {assertion.text_of(judgement.value)}"
    return None


def judge_all(assertions: Iterable[Assertion], results: Iterable[Results]) -> list[Judgement]:
    """Return a judgement of every condition for every target."""
    return [judge(assertion, result) for result, assertion in product(results, assertions)]


def judge_operations(results: Iterable[Results]) -> list[Judgement]:
    """Return a judgement that does not hold for each operation of which every request failed."""
    judgements = []
    for result in results:
        for name, part in result.operations.items():
            if part.count and part.failed == part.count:
                worst = max(part.errors, key=lambda kind: part.errors[kind])
                example = result.examples.get(f"{name}: {worst}")
                why = worst if example is None else f"{worst}, such as {example}"
                which = f"all {part.count:,} requests" if part.count > 1 else "the only request"
                sentence = f"{result.about.name}: {which} of `{name}` failed: {why}"
                judgements.append(Judgement(held=False, value=part.error_share, sentence=sentence))
    return judgements


def value_of(
    assertion: Assertion, part: Counted, rate: float | None, times: Distribution | None = None
) -> float | None:
    """Return the value for a condition; None if not measured. `times`: by default those of the part."""
    if assertion.measure == "requests":
        return part.count
    if assertion.measure == "rate":
        return rate
    if assertion.measure == "errors":
        return part.error_share if assertion.kind == "share" or not part.count else part.failed
    times = part.latency if times is None else times
    if not times.count:
        return None
    percent = assertion.percent
    if percent is not None:
        return times.percentile(percent)
    number: float | None = getattr(times, OF_TIMES[assertion.measure])
    return number
