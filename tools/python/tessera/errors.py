"""The exceptions of tessera. Each carries a message that names what was given, what is allowed, and the code of its status."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

__all__ = ["DeadlineExceeded", "InvalidArgument", "NotFound", "StatusError", "Unimplemented"]


class StatusError(RuntimeError):
    """An operation failed. `code` is the status code's name, such as "FAILED_PRECONDITION"."""

    code = "UNKNOWN"


class InvalidArgument(StatusError, ValueError):
    """The arguments are invalid; nothing happened."""

    code = "INVALID_ARGUMENT"


class NotFound(StatusError, LookupError):
    """What was asked for does not exist."""

    code = "NOT_FOUND"


class DeadlineExceeded(StatusError, TimeoutError):
    """The time was over."""

    code = "DEADLINE_EXCEEDED"


class Unimplemented(StatusError, NotImplementedError):
    """This is not there yet."""

    code = "UNIMPLEMENTED"


_CLASSES = {cls.code: cls for cls in (InvalidArgument, NotFound, DeadlineExceeded, Unimplemented)}


def from_code(code: str, message: str) -> StatusError:
    """Returns the exception for a status code; called by the extension module."""
    error = _CLASSES.get(code, StatusError)(message)
    error.code = code
    return error


@contextlib.contextmanager
def flags_as_arguments() -> Iterator[None]:
    """Messages of the command-line tools name flags, `--memory=80GB`: Python's arguments have the same names without dashes."""
    try:
        yield
    except StatusError as error:
        message = re.sub(r"(?<![\w-])--(?=[a-z]\w*)", "", str(error))
        raise from_code(error.code, message) from None
