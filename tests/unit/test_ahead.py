"""Work ahead in a thread: nothing is lost, nothing is left running."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tilesight.ahead import Ahead


def drain(stream: Ahead[int]) -> list[int]:
    found: list[int] = []
    while not stream.is_over:
        found += stream.take(wait=True)
    return [*found, *stream.take(wait=False)]


def test_gives_all_in_order_from_a_thread_of_its_own() -> None:
    threads = set()

    def numbers() -> Iterator[int]:
        for number in range(50):
            threads.add(threading.get_ident())
            yield number

    with Ahead(numbers, 4) as stream:
        assert drain(stream) == list(range(50))
    assert threads.isdisjoint({threading.get_ident()})
    assert len(threads) == 1


def test_raises_what_the_iterator_raised_after_what_it_gave() -> None:
    def numbers() -> Iterator[int]:
        yield 1
        raise ZeroDivisionError("two")

    with Ahead(numbers, 4) as stream:
        found: list[int] = []
        while not found:
            found = stream.take(wait=True)
        with pytest.raises(ZeroDivisionError, match="two"):
            drain(stream)
    assert found == [1]


def test_is_never_further_ahead_than_its_room() -> None:
    drawn: list[int] = []
    many = threading.Event()

    def numbers() -> Iterator[int]:
        for number in range(1000):
            drawn.append(number)
            if number == 3:
                many.set()
            yield number

    with Ahead(numbers, 3) as stream:
        assert many.wait(10)
        assert len(stream.take(wait=True)) <= 4
    assert len(drawn) < 20


def test_leaving_the_block_closes_the_iterator() -> None:
    closed = threading.Event()

    def numbers() -> Iterator[int]:
        try:
            while True:
                yield 1
        finally:
            closed.set()

    with Ahead(numbers, 2) as stream:
        stream.take(wait=True)
    assert closed.is_set()
