"""URLs as they may stand in messages and logs."""

from __future__ import annotations

import re

HIDDEN = "(hidden)"
# A name alone is a secret in HTTP only: abfs://container@account names a place.
_USER_INFO = re.compile(r"(?<=://)[^/@\s:]*:[^/@\s]*@|(?<=http://)[^/@\s]+@|(?<=https://)[^/@\s]+@")
_QUERY = re.compile(r"(?<=\?)[^#\s'\"]+(?=$|[#\s'\"])")


def safe_url(text: str) -> str:
    """Return a URL, or a text that holds some, without users, passwords and queries of URLs.

    Each of them may be a secret: a password, a signature, a token.
    """
    if "://" not in text:
        return text
    return _QUERY.sub(HIDDEN, _USER_INFO.sub(f"{HIDDEN}@", text))
