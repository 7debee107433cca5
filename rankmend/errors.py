"""Every failure that rankmend expects. Messages say what was tried, and with which value."""


class RankmendError(Exception):
    """Base of all expected failures."""


class SourceError(RankmendError):
    """A source exists but can't be read or understood: broken, never healthy."""


class NoSourceError(RankmendError):
    """This node has no such source: absent, never zero."""


class RootOnlyError(SourceError):
    """The kernel keeps this from everybody but root of the host."""


class TornReadError(SourceError):
    """The writer was at work during every try; read again later."""


class ConfigError(RankmendError):
    """A setting is unknown, contradictory or out of range."""


class MissingPackageError(RankmendError):
    """A package that this command needs is not installed."""


class IllegalEventError(RankmendError):
    """An event does not fit the state it was sent to; nothing was changed."""


class JournalError(RankmendError):
    """The journal can't be read or written."""


class JobHeldError(RankmendError):
    """Another launcher holds the job."""


class LaunchError(RankmendError):
    """The ranks can't be started."""


class MessageError(RankmendError):
    """A report or an order can't be understood."""


class StorageError(RankmendError):
    """rankmend's files beside the checkpoints can't be written."""


class ManagerError(RankmendError):
    """What gives out a cluster's nodes (Slurm, Kubernetes) refused what was asked; the text names that and the answer."""


class ManagerAwayError(ManagerError):
    """The manager gave no answer: whether the act took effect is unknown until it answers again."""


class ManagerDeniedError(ManagerError):
    """We may not do this."""
