"""Proofs by which one job's launchers know each other: HMACs with a key that only they have."""

import hashlib
import hmac
import json


class PeerKey:
    """Makes and checks the proofs of one job's launchers."""

    def __init__(self, secret: str, job_id: str) -> None:
        text = f"rankmend peers {job_id}".encode()
        self._key = hmac.digest(secret.encode(), text, hashlib.sha256)

    def prove(self, *parts: str) -> str:
        """Return the proof of parts, none of which can stand for two."""
        return hmac.new(self._key, json.dumps(parts).encode(), hashlib.sha256).hexdigest()

    def holds(self, mac: str, *parts: str) -> bool:
        return hmac.compare_digest(mac.encode(), self.prove(*parts).encode())
