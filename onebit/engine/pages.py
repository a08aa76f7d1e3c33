"""KV pages: who holds them, and which content they cache.

A page is free, held (by one or more sequences) or idle: held by nobody, but with content that a
later prompt may reuse. Idle pages are taken least recently used first when no page is free, so
the cache costs no memory. A full page is named by the hash of its tokens chained to the hash of
the page before it; equal names mean equal tokens from position 0 on.
"""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b

from onebit.findings import error
from onebit.findings.errors import OnebitError

KEY_BYTES = 16


def chain_key(parent: bytes, tokens: bytes) -> bytes:
    """Return the name of a page with these tokens (int32 bytes) after the page `parent`.

    A cryptographic hash: no prompt can be made to match another one's pages.
    """
    return blake2b(parent + tokens, digest_size=KEY_BYTES).digest()


class PagePool:
    """The pages of a program, counted. Not thread-safe."""

    def __init__(self, pages: int) -> None:
        self._free = list(range(pages - 1, -1, -1))
        self._holders = [0] * pages
        self._key_of: list[bytes | None] = [None] * pages
        self._page_of: dict[bytes, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        self.total = pages

    @property
    def free(self) -> int:
        """Pages without holder or content."""
        return len(self._free)

    @property
    def idle(self) -> int:
        """Pages without holder whose content is cached."""
        return len(self._idle)

    @property
    def available(self) -> int:
        """Pages that `allocate` can give out."""
        return len(self._free) + len(self._idle)

    def holders(self, page: int) -> int:
        """Return how many sequences hold `page`."""
        return self._holders[page]

    def find(self, key: bytes) -> int | None:
        """Return the page with this content, if it is cached."""
        return self._page_of.get(key)

    def hold(self, page: int) -> None:
        """Add a holder to a cached page."""
        if self._holders[page] == 0:
            del self._idle[page]
        self._holders[page] += 1

    def allocate(self) -> int:
        """Return an empty page with one holder; evicts the least recently used idle page.

        Raises:
            OnebitError: none is available. The scheduler asks for `available` first.
        """
        if self._free:
            page = self._free.pop()
        elif self._idle:
            page, _ = self._idle.popitem(last=False)
            self._forget(page)
        else:
            raise OnebitError(
                error("engine.no_page", "no KV page is available", "raise engine.kv_memory")
            )
        self._holders[page] = 1
        return page

    def publish(self, page: int, key: bytes) -> None:
        """Name the content of a held, fully computed page. The first page of a name keeps it."""
        if self._key_of[page] is None and key not in self._page_of:
            self._key_of[page] = key
            self._page_of[key] = page

    def release(self, pages: list[int], keep: bool) -> None:
        """Drop one holder of each page, in a sequence's order.

        Pages nobody holds any more become idle if their content is named and `keep` is set,
        else free. The last pages become idle first: they are of use only after the ones before
        them, so they go first.
        """
        for page in reversed(pages):
            self._holders[page] -= 1
            if self._holders[page]:
                continue
            if keep and self._key_of[page] is not None:
                self._idle[page] = None
            else:
                self._forget(page)
                self._free.append(page)

    def clear(self) -> None:
        """Forget all content: nothing of it is left on the device. No page may be held."""
        while self._idle:
            page, _ = self._idle.popitem()
            self._forget(page)
            self._free.append(page)

    def _forget(self, page: int) -> None:
        key = self._key_of[page]
        if key is not None:
            del self._page_of[key]
            self._key_of[page] = None
