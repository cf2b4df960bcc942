"""Remove secrets from URLs, for messages and logs."""

from __future__ import annotations

import re

HIDDEN = "(hidden)"
# A user name alone may be a secret only in HTTP: abfs://container@account names a place.
_USER_INFO = re.compile(r"(?<=://)[^/@\s:]*:[^/@\s]*@|(?<=http://)[^/@\s]+@|(?<=https://)[^/@\s]+@")
_QUERY = re.compile(r"(?<=\?)[^#\s'\"]+(?=$|[#\s'\"])")


def safe_url(text: str) -> str:
    """Return a URL, or a text that contains URLs, without their users, passwords and queries.

    Each of them may hold a secret, such as a password, a signature or a token.
    """
    if "://" not in text:
        return text
    return _QUERY.sub(HIDDEN, _USER_INFO.sub(f"{HIDDEN}@", text))
