"""`rankmend controller init`: makes the files with which a controller can be open to the network."""

import os
import pwd
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rankmend.errors import ConfigError
from rankmend.files import read_capped, replace_file
from recovery.service import roles, template, tokens
from recovery.service.controller_config import FILE_BYTES_MAX, PORT
from recovery.service.http import authority
from recovery.service.roles import Role

CONFIG: Final = "controller.toml"


@dataclass(frozen=True, slots=True)
class Made:
    """The created files, to show to the user."""

    config: Path
    authority: Path
    admin_token: Path
    launch_token: Path


def init(folder: Path, hosts: list[str], state_dir: Path, user: str | None) -> Made:
    """Make certificates, tokens and a configuration in a folder that is not there or empty.

    It may hold the configuration that a package has brought, as long as nobody has changed that one.
    ``user``: the service's, to whom its key and token file then belong.
    """
    folder = folder.absolute()
    owner = _find_user(user)
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        shipped = _shipped_in(folder)
    except OSError as error:
        raise ConfigError(f"cannot make {folder}: {error.strerror}") from error
    ca = (folder / "ca.crt", folder / "ca.key")
    server = (folder / "server.crt", folder / "server.key")
    made = Made(folder / CONFIG, ca[0], folder / "admin.token", folder / "launch.token")
    try:
        authority.make_authority(*ca, f"rankmend {hosts[0]}")
        authority.make_server(ca, *server, hosts)
        token_file = folder / "tokens.toml"
        admin_text, admin = tokens.make_token("admin", roles.TOKEN_ROLES, comment="by init")
        launch_text, launch = tokens.make_token("launch", [Role.LAUNCH], comment="by init")
        body = "\n".join([tokens.HEADER, tokens.render(admin), tokens.render(launch)])
        authority.write_new(token_file, body.encode(), 0o600)
        authority.write_new(made.admin_token, f"{admin_text}\n".encode(), 0o600)
        authority.write_new(made.launch_token, f"{launch_text}\n".encode(), 0o600)
        text = template.render(
            f":{PORT}",
            str(state_dir),
            tokens_file=str(token_file),
            tls=(str(server[0]), str(server[1]), str(ca[0])),
        )
        if owner is not None:
            for path in (server[1], token_file):
                os.chown(path, owner.pw_uid, owner.pw_gid)
        replace_file(made.config, text.encode(), ConfigError, mode=0o644)  # last: it may be there
    except BaseException:
        for path in folder.iterdir():  # all others are ours
            if path not in shipped:
                path.unlink()
        if not shipped:
            folder.rmdir()
        raise
    return made


def _shipped_in(folder: Path) -> frozenset[Path]:
    """Return what a package has put into a folder; raise ConfigError where there is anything else.

    Beside the configuration, package managers leave what they did not put into its place (.dpkg-dist, .rpmnew).
    """
    found = frozenset(folder.iterdir())
    config = folder / CONFIG
    if not all(path.name.startswith(CONFIG) for path in found):
        raise ConfigError(f"{folder} is not empty: init does not overwrite files")
    if config in found:
        text = read_capped(config, FILE_BYTES_MAX, ConfigError).decode("utf-8", "replace")
        if not template.is_as_shipped(text):
            raise ConfigError(
                f"{config} has changed since the package installed it: init does not overwrite it. Move it away, run init, "
                f"and make your changes in the new file"
            )
    return found


def _find_user(name: str | None) -> pwd.struct_passwd | None:
    if name is None:
        return None
    try:
        return pwd.getpwnam(name)
    except KeyError as error:
        raise ConfigError(f"this machine has no user {name!r}") from error


def make_server_files(ca_folder: Path, hosts: list[str], target: Path) -> tuple[Path, Path]:
    """Make a new certificate and key for a controller with the authority in ``ca_folder``."""
    ca = (ca_folder / "ca.crt", ca_folder / "ca.key")
    cert, key = target / "server.crt", target / "server.key"
    _refuse_to_write_over(cert, key)
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    authority.make_server(ca, cert, key, hosts)
    return cert, key


def _refuse_to_write_over(*paths: Path) -> None:
    for path in paths:
        if path.exists():
            raise ConfigError(f"{path} already exists: init does not overwrite files")


def make_node_files(ca_folder: Path, node: str, target: Path) -> tuple[Path, Path]:
    """Make a node's certificate and key with the authority in ``ca_folder``."""
    ca = (ca_folder / "ca.crt", ca_folder / "ca.key")
    cert, key = target / f"{node}.crt", target / f"{node}.key"
    _refuse_to_write_over(cert, key)
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    authority.make_node(ca, cert, key, node)
    return cert, key
