"""Terms that are not words of an item: its owner, role and block, and the words of keys.

They are indexed with the words of an item, so that a filter is a term of the query and the database
reads no matches that the filter would drop. Hashes are short: an item that is proposed by mistake
is dropped when its session is read.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b

from holdfast.core.search.analysis import terms
from holdfast.core.search.query import Phrase

MARK = "\ue000"
"""The first character of terms that are not words; words never contain it."""
LONG = MARK + "long"
"""Marks items whose phrases PostgreSQL cannot find, because it stores too few term positions."""
BLOCK_BITS = 12
"""Items are numbered; those whose numbers differ only in this many low bits form a block."""
MAX_PREFIXES = 4
"""How many leading parts of a key, each ended by a colon, are indexed for prefix filters."""
KEY_BACK = -1
"""The place, before all items of its entry, of a row with the words of a session's key."""
KEY_WORD = MARK + "k"
"""The beginning of terms that are words of keys: a search in items does not find them."""


@lru_cache(maxsize=1024)
def scope_terms(tenant: str, key: str | None, session: int) -> str:
    """Return the terms for the owner of an item, separated by blanks."""
    prefixes = [prefix_term(tenant, prefix) for prefix in key_prefixes(key or "")]
    return " ".join((tenant_term(tenant), owner_term(tenant, key, session), *prefixes))


@lru_cache(maxsize=1024)
def tenant_term(tenant: str) -> str:
    """Return the term of a tenant's items."""
    return MARK + _hash(tenant)


def owner_term(tenant: str, key: str | None, session: int) -> str:
    """Return the term for the items of a key, in all generations, or of a keyless session."""
    return MARK + _hash(f"{tenant}\0{key}" if key is not None else f"{tenant}\0\0{session}")


@lru_cache(maxsize=1024)
def prefix_term(tenant: str, prefix: str) -> str:
    """Return the term for items whose key begins with a prefix that ends with a colon."""
    return MARK + _hash(f"{tenant}\0{prefix}\0")


def key_prefixes(key: str) -> list[str]:
    """Return the first parts of a key, each with the parts before it."""
    if ":" not in key:
        return []
    parts = key.split(":", MAX_PREFIXES)[:-1]
    return [":".join(parts[: count + 1]) + ":" for count in range(len(parts))]


def key_terms(tenant: str, key: str) -> str:
    """Return the terms of a row that stands for a key, separated by blanks."""
    return " ".join((tenant_term(tenant), *(KEY_WORD + word for word in terms(key))))


def key_phrase(phrase: Phrase) -> Phrase:
    """Return a phrase of a query as one of words of keys; its last word may go on."""
    return Phrase(tuple(KEY_WORD + term for term in phrase.terms), is_prefix=True)


def role_term(role: str) -> str:
    """Return the term of items of a role."""
    return MARK + role[:2]


def _hash(name: str) -> str:
    return blake2b(name.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()


# ── queries ─────────────────────────────────────────────────────────────────────────────────


def fts5_query(phrases: Iterable[Phrase], filters: Iterable[Sequence[str]]) -> str:
    """Return a query for FTS5: all phrases, and one term of each filter.

    Terms are letters, digits and marks, so nothing has to be escaped.
    """
    parts = ["(" + " OR ".join(f'"{term}"' for term in group) + ")" for group in filters]
    for phrase in phrases:
        star = "*" if phrase.is_prefix else ""
        parts.append(f'"{" ".join(phrase.terms)}"{star}')
    return " AND ".join(parts)


def phrases_tsquery(phrases: Iterable[Phrase]) -> str:
    """Return a query for PostgreSQL: all phrases."""
    parts = []
    for phrase in phrases:
        quoted = [f"'{term}'" for term in phrase.terms]
        if phrase.is_prefix:
            quoted[-1] += ":*"
        words = f"({' <-> '.join(quoted)})"
        if len(quoted) > 1:
            # For long items the index proposes those with all terms; their text decides.
            words = f"({words} | ('{LONG}' & {' & '.join(quoted)}))"
        parts.append(words)
    return " & ".join(parts)


def filters_tsquery(filters: Iterable[Sequence[str]]) -> str:
    """Return a query for PostgreSQL: one term of each filter."""
    groups = (" | ".join(f"'{term}'" for term in group) for group in filters)
    return " & ".join(f"({group})" for group in groups)


def block_terms(blocks: Iterable[int]) -> list[str]:
    """Return the terms for items in some blocks, which only PostgreSQL has."""
    return [f"{MARK}b{block:x}" for block in blocks]
