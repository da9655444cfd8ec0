"""Whether results meet conditions, a sentence for each. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from mcpmux.bench.assertion import CONNECT, DELIVERY, ONLY_TIMES, SERVICE, Assertion, unknown_part
from mcpmux.bench.histogram import Distribution
from mcpmux.bench.results import Operation, Results
from mcpmux.bench.wording import count_text, rate_text, share_text, time_text

EXIT_HELD = 0
EXIT_FAILED = 1


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """Of one condition and one target. `value`: what was measured, None when nothing was."""

    assertion: Assertion
    held: bool
    value: float | None
    sentence: str


def judge(assertion: Assertion, results: Results) -> Judgement:
    """Whether results meet a condition. What was not measured does not meet it."""
    if assertion.part is not None and assertion.part not in {*results.operations, *ONLY_TIMES}:
        why = unknown_part(assertion.part, [*results.operations, *ONLY_TIMES])
        return _unmeasured(assertion, results, why)
    value, count = _measured(assertion, results)
    if value is None:
        return _unmeasured(assertion, results, "nothing of it was measured")
    held = assertion.holds(value)
    said = "holds" if held else "does not hold"
    sentence = f"{results.about.name}: {assertion.text} {said}: it is {_text(assertion.kind, value)}"
    percent = assertion.percent
    if percent is not None and count * (100 - percent) < 100 and percent < 100:
        sentence += f" (of {count_text(count)} only, so the slowest one decides)"
    return Judgement(assertion=assertion, held=held, value=value, sentence=sentence)


def judge_all(assertions: Iterable[Assertion], results: Iterable[Results]) -> list[Judgement]:
    """Every condition for every target."""
    wanted = list(assertions)
    return [judge(assertion, one) for one in results for assertion in wanted]


def exit_code(judgements: Iterable[Judgement]) -> int:
    """0 when all hold, 1 otherwise."""
    return EXIT_HELD if all(judgement.held for judgement in judgements) else EXIT_FAILED


def _unmeasured(assertion: Assertion, results: Results, why: str) -> Judgement:
    sentence = f"{results.about.name}: {assertion.text} does not hold: {why}"
    return Judgement(assertion=assertion, held=False, value=None, sentence=sentence)


def _measured(assertion: Assertion, results: Results) -> tuple[float | None, int]:
    """(the value, out of how many)."""
    fan_out = results.fan_out
    if assertion.measure == "generator":
        return results.generator.cpu_share, 1
    if assertion.measure == "lost":
        return (fan_out.losses, fan_out.expected) if fan_out else (None, 0)
    if assertion.measure == "duplicates":
        return (fan_out.duplicates, fan_out.expected) if fan_out else (None, 0)
    if assertion.part in results.operations:
        operation = results.operations[assertion.part or ""]
        return _of_operation(assertion, results, operation, operation.latency)
    if assertion.part == CONNECT:
        return _time(assertion, results.connections.times), results.connections.times.count
    if assertion.part == DELIVERY:
        return (_time(assertion, fan_out.delay), fan_out.delay.count) if fan_out else (None, 0)
    whole = results.overall()
    times = whole.service if assertion.part == SERVICE else whole.latency
    return _of_operation(assertion, results, whole, times)


def _of_operation(
    assertion: Assertion, results: Results, operation: Operation, times: Distribution
) -> tuple[float | None, int]:
    if assertion.measure == "requests":
        return operation.count, operation.count
    if assertion.measure == "rate":
        return (results.rate(operation) if results.seconds else None), operation.count
    if assertion.measure == "errors":
        whole = operation.error_share if assertion.kind == "share" else float(operation.failed)
        return (whole if operation.count else None), operation.count
    return _time(assertion, times), times.count


def _time(assertion: Assertion, times: Distribution) -> float | None:
    if not times.count:
        return None
    percent = assertion.percent
    if percent is not None:
        return times.percentile(percent)
    return {"mean": times.mean, "min": times.least, "max": times.most}[assertion.measure]


def _text(kind: str, value: float) -> str:
    if kind == "seconds":
        return time_text(value)
    if kind == "share":
        return share_text(value)
    return rate_text(value) if kind == "rate" else count_text(int(value))
