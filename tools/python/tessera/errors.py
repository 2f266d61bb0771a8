"""The exceptions of tessera. Each has a message that names the given and the allowed values, and the code of its status."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

__all__ = ["DeadlineExceeded", "InvalidArgument", "NotFound", "StatusError", "Unimplemented"]


class StatusError(RuntimeError):
    """An operation failed. `code` is the status code's name, such as "FAILED_PRECONDITION"."""

    code = "UNKNOWN"


class InvalidArgument(StatusError, ValueError):
    """The arguments are invalid. The call had no effect."""

    code = "INVALID_ARGUMENT"


class NotFound(StatusError, LookupError):
    """The requested object does not exist."""

    code = "NOT_FOUND"


class DeadlineExceeded(StatusError, TimeoutError):
    """The timeout has passed."""

    code = "DEADLINE_EXCEEDED"


class Unimplemented(StatusError, NotImplementedError):
    """The operation is not implemented or not supported."""

    code = "UNIMPLEMENTED"


_CLASSES = {cls.code: cls for cls in (InvalidArgument, NotFound, DeadlineExceeded, Unimplemented)}


def from_code(code: str, message: str) -> StatusError:
    """Returns the exception for a status code; called by the extension module."""
    error = _CLASSES.get(code, StatusError)(message)
    error.code = code
    return error


@contextlib.contextmanager
def flags_as_arguments() -> Iterator[None]:
    """Converts the flags in messages of the command-line tools, `--memory=80GB`, to Python's arguments of the same names."""
    try:
        yield
    except StatusError as error:
        message = re.sub(r"(?<![\w-])--(?=[a-z]\w*)", "", str(error))
        raise from_code(error.code, message) from None
