"""The settings of rings."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.errors import ConfigurationError
from headrace.server.settings.numbers import check_numbers
from headrace.server.settings.plug_settings import PlugSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class RingSettings(PlugSettings):
    """The settings of rings.

    Attributes:
        ring_bytes: Maximum size of one ring, the shared memory from which a client on this host
            reads its batches; 0 for none. The default is twice what clients request by default.
        ring_uids: User ids that may have rings besides the server's own, separated by commas. Rings
            need unix sockets, which ``unix_mode`` protects too.
    """

    ring_bytes: int = 256 << 20
    ring_uids: str = ""

    def __post_init__(self) -> None:
        check_numbers(self, least={"ring_bytes": 0})
        for uid in self._uids:
            if not (uid.isascii() and uid.isdigit()):
                raise ConfigurationError(
                    f"ring_uids has {uid!r}; expected user ids, such as 1000,1001"
                )

    @property
    def users(self) -> frozenset[int]:
        """Return the ids of users that may have rings besides the server's own."""
        return frozenset(map(int, self._uids))

    @property
    def _uids(self) -> list[str]:
        return [part for part in map(str.strip, self.ring_uids.split(",")) if part]
