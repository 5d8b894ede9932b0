"""The alphabets of an SMS: what costs one septet and is plain ASCII as well, and the characters of UCS-2."""

from __future__ import annotations

import unicodedata

SINGLE_SMS = 160
"""Characters of the GSM 03.38 default alphabet in one message; one more, and it is sent in parts of 153."""

UCS2_SMS = 67
"""
Characters of UCS-2 in one part. A lone message may have 70; with 67 it also arrives whole where the provider puts its
signature before it.
"""

EXTENDED = "^{}\\[~]|\f€"
"""Need an escape: two septets each."""

SAFE = frozenset(
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789 @$_!\"#%&'()*+,-./:;<=>?"
)  # fmt: skip
"""What is in ASCII and in the one-septet part of GSM-7. One character outside would turn the message into UCS-2: 70."""

_REPLACED = str.maketrans(
    {
        "`": "'", "´": "'", "‘": "'", "’": "'", "‚": "'", "“": '"', "”": '"', "„": '"', "«": '"', "»": '"',
        "–": "-", "—": "-", "‒": "-", "−": "-", "…": "...", "·": "-", "•": "-", "→": "->", "≥": ">=", "≤": "<=",
        "×": "x", "°": " deg ", "€": "EUR", "µ": "u", "μ": "u",
        "[": "(", "]": ")", "{": "(", "}": ")", "|": "/", "\\": "/", "~": "-", "^": "'",
    }
)  # fmt: skip


def to_gsm7(text: str) -> str:
    """Return ``text`` on one line in the characters of ``SAFE``: accents dropped, the unknown as ``?``."""
    decomposed = unicodedata.normalize("NFKD", text.translate(_REPLACED)).translate(_REPLACED)
    plain = "".join(c for c in decomposed if not unicodedata.combining(c))
    # Any kind of white space or control character separates words: an SMS is one line.
    spaced = "".join(" " if c.isspace() or unicodedata.category(c).startswith("C") else c for c in plain)
    return " ".join("".join(c if c in SAFE else "?" for c in spaced).split())


def to_ucs2(text: str) -> str:
    """Return ``text`` on one line in characters that are one UCS-2 unit each; others (emoji) as ``?``."""
    spaced = "".join(" " if c.isspace() or unicodedata.category(c).startswith("C") else c for c in text)
    return " ".join("".join(c if ord(c) <= 0xFFFF else "?" for c in spaced).split())


def septets(text: str) -> int:
    """
    Return what ``text`` costs in an SMS of the default alphabet.

    Raises:
        ValueError: A character is in neither ``SAFE`` nor ``EXTENDED``.
    """
    for c in text:
        if c not in SAFE and c not in EXTENDED:
            raise ValueError(f"{c!r} is not a character we send by SMS")
    return sum(2 if c in EXTENDED else 1 for c in text)
