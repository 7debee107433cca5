"""Whether a controller can be reached, and whether certificates will go on being good. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from detectors.doctor.agent import ConfigState, FolderFacts, judge_folder
from detectors.doctor.check import (
    HostCheck,
    HostOutcome,
    HostPart,
    HostVerdict,
    broken,
    hidden,
    lacking,
    not_applicable,
    ok,
    quoted,
    unknown,
)
from detectors.wording import names_in_words

SOON_DAYS: Final = 30.0  # Let's Encrypt and kubeadm warn a month ahead
_RENEW: Final = "rankmend controller server-cert --host NAME --output new/  # an agent's: node-cert"
_SHOWN: Final = 4


class ControllerAnswer(Enum):
    NONE_NAMED = "none_named"
    ANSWERS = "answers"
    UNREACHABLE = "unreachable"
    BUSY = "busy"
    NO_FILE = "no_file"  # a file that was named can't be used
    REFUSED = "refused"  # no role for the question: the token is known
    BAD_TOKEN = "bad_token"  # noqa: S105 - the name of an answer
    NO_TOKEN = "no_token"  # noqa: S105
    WRONG_NAME = "wrong_name"
    WRONG_TIME = "wrong_time"
    UNKNOWN_AUTHORITY = "unknown_authority"
    NO_TLS = "no_tls"
    NO_CERTIFICATE = "no_certificate"


_TLS: Final = {
    ControllerAnswer.WRONG_NAME: "address the controller by a name that its certificate has, or make another: rankmend controller server-cert",
    ControllerAnswer.WRONG_TIME: "set the clock of this host, or renew the controller's certificate: rankmend controller server-cert",
    ControllerAnswer.UNKNOWN_AUTHORITY: "--ca-file ca.crt, the file that rankmend controller init has made",
    ControllerAnswer.NO_TLS: "write http:// for a controller without TLS, or correct the port",
    ControllerAnswer.NO_CERTIFICATE: "--ca-file ca.crt, the file that rankmend controller init has made",
}


@dataclass(frozen=True, slots=True)
class ControllerFacts:
    urls: Sequence[str]
    answer: ControllerAnswer
    text: str = ""
    config: str = ""  # of a controller on this host
    config_state: ConfigState = ConfigState.ABSENT
    config_error: str = ""
    state: FolderFacts | None = None  # of a controller on this host
    is_agents: bool = False  # the agent asks it, with its certificate


def _reach(facts: ControllerFacts) -> HostVerdict:
    where = ", ".join(facts.urls)
    match facts.answer:
        case ControllerAnswer.NONE_NAMED:
            return not_applicable("none is named (--controller, RANKMEND_CONTROLLER)")
        case ControllerAnswer.UNREACHABLE:
            return broken(
                f"{where} does not answer: {facts.text}",
                "systemctl status rankmend-controller  # on its host; check name, port and firewall",
            )
        case ControllerAnswer.BUSY:
            return lacking(f"{where} is busy: {facts.text}", "wait, then try again")
        case ControllerAnswer.NO_FILE:
            return unknown(f"{where} was not queried: {facts.text}", "name a file that can be used")
        case _:
            return ok(where)


def _trust(facts: ControllerFacts) -> HostVerdict:
    if facts.answer in _TLS:
        return broken(facts.text, _TLS[facts.answer])
    if facts.answer in (
        ControllerAnswer.NONE_NAMED,
        ControllerAnswer.UNREACHABLE,
        ControllerAnswer.NO_FILE,
    ):
        return not_applicable("no controller has answered")
    if all(url.startswith("http://") for url in facts.urls):
        return not_applicable("http: no certificate")
    return ok("its certificate is good, by this CA")


_RIGHTS: Final = (
    "rankmend controller token add NAME --role launch --role read --output FILE"
    "  # on its host; then give --token-file FILE"
)


def _token(facts: ControllerFacts) -> HostVerdict:
    if facts.is_agents:
        return not_applicable("the agent shows its certificate instead")
    verdicts = {
        ControllerAnswer.NO_FILE: broken(facts.text, "chmod 600 the token file, and own it"),
        ControllerAnswer.BAD_TOKEN: broken(f"the token is refused: {facts.text}", _RIGHTS),
        ControllerAnswer.NO_TOKEN: lacking("it asks for a token, and none is given", _RIGHTS),
        ControllerAnswer.REFUSED: ok("the token is known, without the role read"),
        ControllerAnswer.ANSWERS: ok("accepted"),
    }
    return verdicts.get(facts.answer) or not_applicable("no controller has answered")


def _config(facts: ControllerFacts) -> HostVerdict:
    match facts.config_state:
        case ConfigState.ABSENT:
            return not_applicable("no controller is set up on this host")
        case ConfigState.GOOD:
            return ok(facts.config)
        case ConfigState.WRONG:
            mend = "systemctl reload rankmend-controller  # once it is corrected"
            return broken(facts.config_error, mend)
        case ConfigState.HIDDEN:
            return hidden(facts.config_error, "root reads it")


def _state(facts: ControllerFacts) -> HostVerdict:
    if facts.state is None:
        return not_applicable("no controller is set up on this host")
    make = "systemctl enable --now rankmend-controller  # makes /var/lib/rankmend-controller"
    return judge_folder(facts.state, "rankmend-controller", make)


_P: Final = HostPart.CONTROLLER
CONTROLLER_CHECKS: Final[tuple[HostCheck[ControllerFacts], ...]] = (
    HostCheck(
        "controller_reach",
        _P,
        "controller in reach",
        "start of jobs that name it, and recovery across nodes",
        _reach,
    ),
    HostCheck("controller_trust", _P, "TLS", "every connection to the controller", _trust),
    HostCheck(
        "controller_config",
        _P,
        "controller's configuration",
        "the controller's next start or reload on this host",
        _config,
    ),
    HostCheck("controller_state", _P, "controller's state", "the journals of all its jobs", _state),
    HostCheck("controller_token", _P, "token", "start of jobs, and commands to them", _token),
)


@dataclass(frozen=True, slots=True)
class CertificateFacts:
    path: str
    days_left: float | None = None  # None: could not be read
    days_until_valid: float = 0.0  # above 0: not valid yet
    error: str = ""
    is_hidden: bool = False  # this user may not read it


@dataclass(frozen=True, slots=True)
class KeyFacts:
    path: str
    is_there: bool = True
    is_open: bool = False  # to users who are neither its owner nor root


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    certificates: Sequence[CertificateFacts] = ()
    keys: Sequence[KeyFacts] = ()


def _valid(files: CertificateFiles) -> HostVerdict:
    if not files.certificates:
        return not_applicable("no certificate is configured here")
    return worst([_judge_certificate(certificate) for certificate in files.certificates])


def _judge_certificate(facts: CertificateFacts) -> HostVerdict:
    if facts.is_hidden:
        return hidden(f"{facts.path}: this user may not read it", "root reads it")
    if facts.error or facts.days_left is None:
        return broken(facts.error or f"{facts.path} can't be read", _RENEW)
    if facts.days_until_valid > 0:
        return broken(
            f"{facts.path} is valid in {facts.days_until_valid:.1f} days only",
            "check the clock of this host",
        )
    if facts.days_left <= 0:
        return broken(f"{facts.path} expired {-facts.days_left:.0f} days ago", _RENEW)
    if facts.days_left < SOON_DAYS:
        return lacking(f"{facts.path} expires in {facts.days_left:.0f} days", _RENEW)
    return ok(f"{facts.path}: {facts.days_left:.0f} days left")


def _private(files: CertificateFiles) -> HostVerdict:
    if not files.keys:
        return not_applicable("no key is configured here")
    gone = [key.path for key in files.keys if not key.is_there]
    if gone:
        return broken(f"no {_names(gone)}", "correct the configuration, or put the key there")
    readable = [key.path for key in files.keys if key.is_open]
    if readable:
        return broken(
            f"other users may read {_names(readable)}",
            "chmod 600 " + " ".join(map(quoted, readable[:_SHOWN])),
        )
    return ok(f"for their owners only: {_names([key.path for key in files.keys])}")


_RANK: Final = (
    HostOutcome.NOT_APPLICABLE,
    HostOutcome.OK,
    HostOutcome.HIDDEN,
    HostOutcome.UNKNOWN,
    HostOutcome.LACKING,
    HostOutcome.BROKEN,
)


def worst(verdicts: Sequence[HostVerdict]) -> HostVerdict:
    """Return the worst; of equal ones the first."""
    return max(verdicts, key=lambda verdict: _RANK.index(verdict.outcome))


def _names(names: Sequence[str]) -> str:
    return names_in_words(names, _SHOWN)


_C: Final = HostPart.CERTIFICATES
CERTIFICATE_CHECKS: Final[tuple[HostCheck[CertificateFiles], ...]] = (
    HostCheck(
        "certificates_valid",
        _C,
        "certificates",
        "from its last day on every connection that uses it",
        _valid,
    ),
    HostCheck(
        "certificates_private",
        _C,
        "private keys",
        "what the certificate proves: any user here can act as this host",
        _private,
    ),
)
