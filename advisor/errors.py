"""Exceptions that a user may see: each has an exit code and, where known, the nearest fix."""

from __future__ import annotations

EXIT_OK = 0
EXIT_NEGATIVE = 1
EXIT_USAGE = 2
EXIT_ENVIRONMENT = 3
EXIT_FAULT = 70
EXIT_INTERRUPTED = 130


class AdvisorError(Exception):
    """Base of every error that is reported to the user without a traceback.

    `message` names the offending value and the rule it breaks; `hint` is the nearest fix.
    """

    exit_code = EXIT_USAGE

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\n  fix: {self.hint}"


class InputError(AdvisorError):
    """A flag, a file or a value that cannot be used (exit 2)."""


class UnknownNameError(InputError):
    """A preset name that does not exist (exit 2); the hint carries the closest names."""


class UnsupportedModelError(InputError):
    """A model file of an architecture, or with a key, that the advisor cannot count (exit 2)."""


class EnvironmentMissingError(AdvisorError):
    """Something the command needs is not installed or not present on this host (exit 3)."""

    exit_code = EXIT_ENVIRONMENT
