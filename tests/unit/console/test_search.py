"""The order and the number of matches of the palette."""

from __future__ import annotations

from kavka.console.pages.search import MAX_MATCHES_PER_KIND, best


def test_the_name_itself_is_first_then_prefixes_then_words_then_others():
    candidates = ("reorders", "shop.orders", "orders.archive", "Orders", "orders-2", "stock")
    assert best(candidates, "orders") == ["Orders", "orders-2", "orders.archive", "shop.orders", "reorders"]


def test_there_are_at_most_a_few_matches_of_a_kind():
    assert best((f"t{number:05}" for number in range(10_000)), "t") == [f"t{n:05}" for n in range(MAX_MATCHES_PER_KIND)]
