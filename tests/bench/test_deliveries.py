"""Which subscriber has heard of which change: losses, duplicates and delays."""

from __future__ import annotations

from random import Random

import pytest

from mcpmux.bench.push import Deliveries


def test_everybody_hears_once() -> None:
    deliveries = Deliveries(3, 1)
    deliveries.change("a:1", 10.0)
    for subscriber, at in ((0, 10.01), (1, 10.02), (2, 10.03)):
        assert not deliveries.complete("a:1")
        deliveries.hear(subscriber, "a:1", at)
    assert deliveries.complete("a:1")
    results = deliveries.results()
    assert (results.changes, results.expected, results.deliveries) == (1, 3, 3)
    assert (results.losses, results.duplicates) == (0, 0)
    assert results.delay.most == pytest.approx(0.03)
    assert results.delay.least == pytest.approx(0.01)


def test_a_change_that_did_not_happen_is_taken_back() -> None:
    deliveries = Deliveries(2, 1)
    deliveries.change("a:1", 1.0)
    deliveries.withdraw("a:1")
    deliveries.hear(0, "a:1", 1.5)
    results = deliveries.results()
    assert (results.changes, results.expected, results.deliveries, results.duplicates) == (0, 0, 0, 0)


def test_every_hearing_is_a_delivery_or_a_duplicate_or_about_nothing() -> None:
    """Any order of changes and hearings; what is counted is compared with a plain account of them."""
    for seed in range(20):
        random = Random(seed)
        fan_out = Deliveries(4, 3)
        receivers: dict[str, list[int]] = {}
        deliveries = duplicates = changes = 0
        for moment in range(300):
            uri = f"a:{random.randrange(3)}"
            if random.random() < 0.15:
                fan_out.change(uri, float(moment))
                receivers[uri] = []
                changes += 1
            else:
                subscriber = random.randrange(4)
                fan_out.hear(subscriber, uri, float(moment))
                if uri in receivers:
                    duplicates += subscriber in receivers[uri]
                    deliveries += subscriber not in receivers[uri]
                    receivers[uri].append(subscriber)
            assert fan_out.complete(uri) is (set(receivers.get(uri, ())) == {0, 1, 2, 3})
        results = fan_out.results()
        assert (results.changes, results.deliveries, results.duplicates) == (changes, deliveries, duplicates)
        assert (results.expected, results.losses) == (4 * changes, 4 * changes - deliveries)
        assert results.delay.count == deliveries
