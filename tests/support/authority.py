"""A certificate authority by openssl, and renewals as certbot makes them."""

import subprocess
from pathlib import Path


class Authority:
    """A certificate authority of the test's own."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self.cert, self.key = folder / f"{name}.crt", folder / f"{name}.key"
        openssl("req", "-x509", *new_key(self.key), "-subj", f"/CN={name}", "-out", self.cert)

    def issue(self, name: str) -> tuple[Path, Path]:
        cert, key = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        request, extra = self.folder / f"{name}.csr", self.folder / f"{name}.ext"
        extra.write_text("subjectAltName=IP:127.0.0.1\n")
        openssl("req", "-new", *new_key(key), "-subj", f"/CN={name}", "-out", request)
        openssl(
            *("x509", "-req", "-in", request, "-CA", self.cert, "-CAkey", self.key),
            *("-CAcreateserial", "-days", "1", "-extfile", extra, "-out", cert),
        )
        return cert, key


def new_key(path: Path) -> tuple[str | Path, ...]:
    return ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", path)


def openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


class Lineage:
    """The certificate of one name as certbot keeps it: links in ``live`` that lead to numbered files in ``archive``."""

    def __init__(self, folder: Path, name: str) -> None:
        self._archive, self._live = folder / "archive" / name, folder / "live" / name
        for made in (self._archive, self._live):
            made.mkdir(parents=True)
        self.cert, self.key = self._live / "fullchain.pem", self._live / "privkey.pem"
        self._number = 0

    def add(self, cert: Path, key: Path) -> None:
        """Put the next certificate with its key into the archive; the links still lead to the one before."""
        self._number += 1
        for source, link in ((cert, self.cert), (key, self.key)):
            self._numbered(link).write_bytes(source.read_bytes())

    def turn(self, link: Path) -> None:
        """Have one of the two links lead to the newest file."""
        beside = link.with_suffix(".new")
        beside.symlink_to(self._numbered(link))
        beside.replace(link)

    def renew(self, cert: Path, key: Path) -> None:
        self.add(cert, key)
        self.turn(self.cert)
        self.turn(self.key)

    def _numbered(self, link: Path) -> Path:
        return self._archive / f"{link.stem}{self._number}.pem"
