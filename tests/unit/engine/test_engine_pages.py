"""The page pool: holders, names, order of eviction."""

from __future__ import annotations

import pytest

from onebit.engine.pages import PagePool, chain_key
from onebit.findings import OnebitError

A, B, C = (chain_key(b"", bytes([n])) for n in range(3))


def test_keys_chain() -> None:
    assert chain_key(A, b"x") != chain_key(B, b"x")
    assert chain_key(A, b"x") != chain_key(A, b"y")
    assert len(A) == 16


def test_pages_are_given_out_once_until_none_is_left() -> None:
    pool = PagePool(3)
    assert sorted(pool.allocate() for _ in range(3)) == [0, 1, 2]
    with pytest.raises(OnebitError, match="no KV page"):
        pool.allocate()


def test_named_pages_are_found_held_and_released() -> None:
    pool = PagePool(2)
    page = pool.allocate()
    assert pool.find(A) is None
    pool.publish(page, A)
    assert pool.find(A) == page
    pool.hold(page)
    pool.release([page], keep=True)
    assert (pool.holders(page), pool.idle, pool.available) == (1, 0, 1)
    pool.release([page], keep=True)
    assert (pool.holders(page), pool.idle, pool.available) == (0, 1, 2)
    pool.hold(page)
    assert (pool.holders(page), pool.idle, pool.available) == (1, 0, 1)


def test_unnamed_and_private_pages_are_freed() -> None:
    pool = PagePool(2)
    unnamed, private = pool.allocate(), pool.allocate()
    pool.publish(private, A)
    pool.release([unnamed, private], keep=False)
    assert (pool.free, pool.idle) == (2, 0)
    assert pool.find(A) is None


def test_the_first_page_of_a_name_keeps_it() -> None:
    pool = PagePool(2)
    first, second = pool.allocate(), pool.allocate()
    pool.publish(first, A)
    pool.publish(second, A)
    assert pool.find(A) == first
    pool.release([second], keep=True)
    assert (pool.free, pool.idle) == (1, 0)


def test_least_recently_used_goes_first_and_tails_before_heads() -> None:
    pool = PagePool(3)
    pages = [pool.allocate() for _ in range(3)]
    for page, key in zip(pages, (A, B, C), strict=True):
        pool.publish(page, key)
    pool.release(pages, keep=True)
    pool.hold(pages[2])
    pool.release([pages[2]], keep=True)
    assert [pool.allocate() for _ in range(3)] == [pages[1], pages[0], pages[2]]
    assert pool.find(A) is pool.find(B) is pool.find(C) is None
