"""The controller's configuration: a TOML file, read once into one value. deploy/controller.toml lists the keys."""

import hashlib
import re
import ssl
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlsplit

import msgspec

from rankmend.alerting import http_base, target_url
from rankmend.errors import ConfigError
from rankmend.files import read_capped
from rankmend.links import RUNBOOKS, RUNBOOKS_PATH, check_runbooks
from rankmend.listening import make_server_context, parse_listen
from rankmend.redfish_session import parse_url
from recovery.api.contact import check_url, is_loopback
from recovery.controller.cluster.cluster_limits_file import PolicyFile, read_policy_file
from recovery.journal.postgres.database_url import check_database_url
from recovery.schedulers.kubernetes.limits import KubernetesLimits
from recovery.schedulers.slurm.limits import SlurmLimits
from recovery.service.http.guard import read_networks
from recovery.service.roles import Role
from recovery.service.tokens import Tokens, read_tokens

PORT: Final = 9477  # beside the agent's 9476
AGENT_PORT: Final = 9476
FILE_BYTES_MAX: Final = 1024 * 1024
NODE_MARK: Final = "{node}"  # stands for a node's name
ACTING_LEASE_S_MIN: Final = 4.0  # renewed each second, and a call takes a second at least
CHECK_S_MIN: Final = 30.0  # a BMC is a slow computer, and other things read it, too
OIDC_ROLES: Final = tuple(role.value for role in (Role.READ, Role.FLEET_READ, Role.ACT))
RELOADABLE: Final = frozenset(
    {"tls", "tokens_file", "policy_file", "redirect_to", "discovery", "limits", "console", "oidc"}
)
_CERTIFICATE: Final = re.compile(
    "-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL
)
_PATTERNS_MAX: Final = 20_000  # a line a node

_Positive = Annotated[float, msgspec.Meta(gt=0, le=1e6)]
_Count = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]


class Tls(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    cert_file: str
    key_file: str
    client_ca_file: str | None = None  # authority of the nodes' certificates; None: none are taken


class JobsSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    at_once_max: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 500
    of_subject_percent: Annotated[float, msgspec.Meta(gt=0, le=100)] = 50.0  # of these
    ended_kept_days: Annotated[float, msgspec.Meta(ge=0, le=3650)] = 90.0
    report_s: Annotated[float, msgspec.Meta(ge=0.1, le=60)] = 1.0


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Limits per client. Rates are per second in the long run; ten times that at once."""

    connections: _Count = 25_000  # 10,000 nodes hold two each, and as many again after a failover
    # Of one address: 500 launchers on one host hold two each. One address never holds more than three quarters of all.
    connections_per_address: _Count = 1_000
    # Addresses and networks behind which there are many machines (NAT, a proxy): these have no bound of their own.
    shared_addresses: Annotated[tuple[str, ...], msgspec.Meta(max_length=1_000)] = ()
    bodies_bytes: Annotated[int, msgspec.Meta(ge=1 << 23, le=1 << 36)] = 256 << 20  # at once
    reports_per_node: _Positive = 10.0  # a launcher reports once a second, and at each event
    # Joins and polls of one subject. All launchers of a site may have one token: 10,000 that are told to stop
    # and to start poll 20,000 times within a second, which is what the bucket holds.
    launches: _Positive = 2000.0
    alerts: _Positive = 20.0  # messages, not alerts
    reads: _Positive = 50.0
    acts: _Positive = 5.0
    # Of the jobs of one subject: 250 jobs with a record of 300 bytes every 5 s write 1.3 GB.
    journal_bytes_per_day: Annotated[int, msgspec.Meta(ge=1 << 20, le=1 << 44)] = 4 << 30


class Discovery(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The http_sd answer for Prometheus."""

    agent_port: Annotated[int, msgspec.Meta(ge=1, le=65535)] = AGENT_PORT
    domain: str = ""  # put behind a node's name: "cluster.example" makes gpu-1.cluster.example
    nodes: tuple[str, ...] = ()  # nodes that are there whether a job uses them or not
    cluster: str = ""  # label `cluster` of every agent
    # Node name or shell pattern to a value: a name counts first, then the first pattern that matches.
    # Regular expression; its first group is the rack of a node's name: label `rack`, and racks of the console.
    rack_pattern: Annotated[str, msgspec.Meta(max_length=200)] = ""
    racks: Annotated[dict[str, str], msgspec.Meta(max_length=_PATTERNS_MAX)] = {}  # before it
    # HOST:PORT of the agent, if it is not at the node's name and agent_port; {node} stands for the name
    addresses: Annotated[dict[str, str], msgspec.Meta(max_length=_PATTERNS_MAX)] = {}
    # What nodes share: the file of `rankmend fabric topology`, or Slurm's topology.conf.
    topology_file: str | None = None
    # Readings of coolant units, each named as its coolant loop there: the file of `rankmend check cooling`.
    cooling_file: str | None = None
    # The same of power feeds: the file of `rankmend check power`.
    power_file: str | None = None


class Alertmanagers(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Alertmanagers: for notices to people, and for alerts missed before the start."""

    urls: Annotated[tuple[str, ...], msgspec.Meta(max_length=16)] = ()
    token_file: str | None = None
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    receiver: str = (
        ""  # this controller's receiver in their configuration: only its alerts are read
    )
    runbooks: str = ""  # absolute URL of the folder that alerts link to; empty: the console's pages


class BmcRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The BMCs of the nodes with these names: whether a silent node has power (`bmc_power`)."""

    match: Annotated[str, msgspec.Meta(min_length=1, max_length=253)]  # node name or shell pattern
    url: str  # https://HOST[:PORT]; {node} stands for the node's name
    credentials_file: str  # TOML with user and password, 0600
    system: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._-]{1,64}$")] | None = None
    ca_file: str | None = None  # PEM; None: the system's CAs
    timeout_s: Annotated[float, msgspec.Meta(ge=0.1, le=10)] = 3.0  # of one reading
    # Between two readings of a BMC that nobody needs now, so that people learn of one that fails. 0: none.
    check_s: Annotated[float, msgspec.Meta(ge=0, le=86_400)] = 300.0


class ConsoleSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The web console."""

    enabled: bool = True
    open: bool = False  # whoever reaches the port may read; acting takes a token in any case
    url: str = ""  # at which people reach it; empty: made of this host's name and `listen`
    # Ask the agent of a blamed node for its readings when an incident opens, and when it is over.
    read_agents: bool = True
    # For agents that serve https: the authority of their certificates, and a certificate and key of ours. None: http.
    agents_ca_file: str | None = None
    agents_cert_file: str | None = None
    agents_key_file: str | None = None


class OidcGroup(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the members of a group may do; the first entry with one of a person's groups counts."""

    group: Annotated[str, msgspec.Meta(min_length=1, max_length=500)]  # as the provider calls it
    roles: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    nodes: tuple[str, ...] = ()  # shell patterns; (): all
    jobs: tuple[str, ...] = ()


class OidcSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An identity provider (OpenID Connect) with which people sign in to the console."""

    issuer: str  # its address, exactly as its description names it
    client_id: Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
    client_secret_file: str  # 0600
    groups: Annotated[tuple[OidcGroup, ...], msgspec.Meta(min_length=1, max_length=500)]
    title: Annotated[str, msgspec.Meta(min_length=1, max_length=60)] = (
        "single sign-on"  # on the button
    )
    name_claim: Annotated[str, msgspec.Meta(min_length=1, max_length=200)] = "preferred_username"
    groups_claim: Annotated[str, msgspec.Meta(min_length=1, max_length=200)] = "groups"
    scopes: Annotated[tuple[str, ...], msgspec.Meta(max_length=20)] = ("openid", "profile")
    # Then a person signs in again, and the provider says anew which groups it is in.
    session_hours: Annotated[float, msgspec.Meta(gt=0, le=24)] = 8.0
    refused: Annotated[tuple[str, ...], msgspec.Meta(max_length=10_000)] = ()  # names
    ca_file: str | None = None  # PEM; None: the system's CAs


class PostgresSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How the database of `journal` is used."""

    password_file: str | None = None  # 0600; None: PGPASSFILE, ~/.pgpass or no password
    accept_loss: bool = False  # of acknowledged decisions, by asynchronous commits or standbys
    # After a controller's death its jobs wait for so long. Three renewals within it may fail.
    lease_s: Annotated[float, msgspec.Meta(ge=2, le=600)] = 8.0
    url: str = ""  # of this controller, for those who ask another one; empty: made as the console's


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    listen: str = f"127.0.0.1:{PORT}"
    state_dir: str
    journal: str | None = None  # postgresql://...; None: files in state_dir
    postgres: PostgresSection = PostgresSection()
    tokens_file: str | None = None
    policy_file: str | None = None
    redirect_to: str | None = None  # URL of the controller that took over this one's jobs
    tls: Tls | None = None
    jobs: JobsSection = JobsSection()
    limits: Limits = Limits()
    discovery: Discovery = Discovery()
    alertmanagers: Alertmanagers = Alertmanagers()
    bmcs: Annotated[tuple[BmcRule, ...], msgspec.Meta(max_length=10_000)] = ()
    slurm: SlurmLimits = SlurmLimits()
    kubernetes: KubernetesLimits = KubernetesLimits()
    console: ConsoleSection = ConsoleSection()
    oidc: OidcSection | None = None


def load(path: Path) -> Config:
    """Return the configuration in a TOML file, or raise ConfigError that names what is wrong."""
    data = read_capped(path, FILE_BYTES_MAX, ConfigError, name=f"the configuration {path}")
    try:
        config = msgspec.toml.decode(data, type=Config)
        check(config)
    except (msgspec.MsgspecError, UnicodeDecodeError, ConfigError) as error:
        raise ConfigError(f"{path}: {error}") from error
    return config


def check(config: Config) -> None:
    """Raise ConfigError for what the types alone don't refuse."""
    host, _port = parse_listen(config.listen)
    if not is_loopback(host) and (config.tls is None or config.tokens_file is None):
        missing = [
            name
            for name, value in (("[tls]", config.tls), ("tokens_file", config.tokens_file))
            if value is None
        ]
        raise ConfigError(
            f"listen = {config.listen!r} is open to the network, and {' and '.join(missing)} not set: "
            f"anyone who can reach the port could stop every job. Make certificates, tokens and a "
            f"configuration with: rankmend controller init DIR --host NAME; or listen on "
            f"127.0.0.1:{PORT}"
        )
    read_networks(config.limits.shared_addresses)
    try:
        re.compile(config.discovery.rack_pattern)
    except re.error as error:
        raise ConfigError(
            f"discovery.rack_pattern {config.discovery.rack_pattern!r} is not a regular expression: {error}"
        ) from error
    if not Path(config.state_dir).is_absolute():
        raise ConfigError(f"state_dir is not an absolute path: {config.state_dir!r}")
    _check_postgres(config)
    if config.redirect_to is not None:
        check_url(config.redirect_to, has_token=True)
    for url in config.alertmanagers.urls:
        target_url(url)
    if config.alertmanagers.runbooks:
        check_runbooks(config.alertmanagers.runbooks)
    _check_addresses(config.discovery)
    if config.console.url:
        http_base(config.console.url, "[console] url")
    if config.console.agents_ca_file is None and config.console.agents_cert_file is not None:
        raise ConfigError("[console] agents_cert_file needs agents_ca_file, too")
    _check_oidc(config)
    for number, rule in enumerate(config.bmcs, 1):
        try:
            parse_url(rule.url.replace("{node}", "node"))
            if 0 < rule.check_s < CHECK_S_MIN:
                raise ConfigError(
                    f"check_s is {rule.check_s:g}: give {CHECK_S_MIN:g} or more, or 0 for no check"
                )
        except ConfigError as error:
            raise ConfigError(f"[[bmcs]] number {number} ({rule.match}): {error}") from error


def _check_postgres(config: Config) -> None:
    if config.journal is not None:
        check_database_url(config.journal)
        acts = config.slurm.enabled or config.kubernetes.enabled or config.bmcs
        if acts and config.postgres.lease_s < ACTING_LEASE_S_MIN:
            raise ConfigError(
                f"[postgres] lease_s is {config.postgres.lease_s:g}: [slurm], [kubernetes] and [[bmcs]] need "
                f"{ACTING_LEASE_S_MIN:g} or more, since each call ends a second before the lease"
            )
    if config.postgres.url:
        check_url(config.postgres.url, has_token=True)


def _check_oidc(config: Config) -> None:
    section = config.oidc
    if section is None:
        return
    if config.tokens_file is None:
        raise ConfigError(
            "[oidc] needs tokens_file: without tokens everybody on this machine may do everything, without signing in"
        )
    parts = urlsplit(section.issuer)
    is_plain = parts.scheme == "http" and is_loopback(parts.hostname or "")
    if (
        not parts.hostname
        or not (parts.scheme == "https" or is_plain)
        or parts.query
        or parts.fragment
    ):
        raise ConfigError(
            f"[oidc] issuer = {section.issuer!r} is not https://HOST[:PORT][/PATH], as the provider's description names it"
        )
    if "openid" not in section.scopes:
        raise ConfigError(f"[oidc] scopes = {list(section.scopes)} lack 'openid'")
    for entry in section.groups:
        for role in entry.roles:
            if role not in OIDC_ROLES:
                raise ConfigError(
                    f"[[oidc.groups]] {entry.group!r}: roles has {role!r}; write {', '.join(OIDC_ROLES)}. Launchers and "
                    f"Alertmanager use tokens"
                )


def _check_addresses(discovery: Discovery) -> None:
    for pattern, address in discovery.addresses.items():
        try:
            host, port = parse_listen(address.replace(NODE_MARK, "node"))
        except ConfigError:
            host, port = "", 0
        if not host or not port:
            raise ConfigError(
                f"[discovery.addresses] {pattern!r}: {address!r} is not HOST:PORT, "
                f"such as {NODE_MARK}-mgmt.example:9476"
            )


def console_base(config: Config, host_name: str) -> str:
    """Return the address of the pages for people, without a final slash; empty where none are served."""
    if not config.console.enabled:
        return ""
    if config.console.url:
        return config.console.url.rstrip("/")
    return _listening_base(config, host_name)


def runbooks_base(config: Config, host_name: str) -> str:
    """Return the address of the folder with the runbooks, without a final slash: the configured one, or the console's."""
    if config.alertmanagers.runbooks:
        return check_runbooks(config.alertmanagers.runbooks)
    console = console_base(config, host_name)
    return f"{console}/{RUNBOOKS_PATH}" if console else RUNBOOKS


def controller_base(config: Config, host_name: str) -> str:
    """Return the address of this controller for launchers that ask another one, without a final slash."""
    return config.postgres.url.rstrip("/") or _listening_base(config, host_name)


def _listening_base(config: Config, host_name: str) -> str:
    host, port = parse_listen(config.listen)
    is_everywhere = host in ("", "0.0.0.0", "::")  # noqa: S104 - compared, not listened on
    named = host_name if is_everywhere else f"[{host}]" if ":" in host else host
    return f"{'http' if config.tls is None else 'https'}://{named}:{port}"


def fingerprint_of(config: Config) -> str:
    """Return the SHA-256 of this controller's certificate in hexadecimal; empty without TLS. Raises ConfigError."""
    if config.tls is None:
        return ""
    text = read_capped(Path(config.tls.cert_file), FILE_BYTES_MAX, ConfigError).decode(
        "ascii", "replace"
    )
    found = _CERTIFICATE.search(text)
    if found is None:
        raise ConfigError(f"{config.tls.cert_file} has no certificate")
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(found[0])).hexdigest()


def tls_files(config: Config) -> list[str]:
    """Return the files of the controller's own certificate; none without TLS."""
    tls = config.tls
    files = () if tls is None else (tls.cert_file, tls.key_file, tls.client_ca_file)
    return [file for file in files if file is not None]


def read_tokens_of(config: Config) -> Tokens | None:
    """Return the tokens in force; None where everybody on this machine may do everything."""
    return Tokens(read_tokens(Path(config.tokens_file))) if config.tokens_file else None


def read_policy_of(config: Config) -> PolicyFile:
    return read_policy_file(Path(config.policy_file) if config.policy_file else None)


def make_context(tls: Tls) -> ssl.SSLContext:
    """Return the context of these files, or raise ConfigError that names the one at fault."""
    context = make_server_context(tls, ssl.CERT_OPTIONAL)
    context.set_alpn_protocols(["http/1.1"])
    return context
