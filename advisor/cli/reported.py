"""Turns whatever goes wrong in the work of a command, or of one of its processes, into one clear error and a code."""

from __future__ import annotations

import os
from collections.abc import Callable

import click

from advisor.cli import render
from advisor.errors import EXIT_FAULT, EXIT_OK, EXIT_USAGE, AdvisorError


def reported(act: Callable[[], object]) -> int:
    """Exit code of what `act` gives, or of the error that it ends with; interrupts pass."""
    try:
        code = act()
    except click.Abort:
        raise
    except click.exceptions.NoArgsIsHelpError as error:
        render.notice(error.format_message())
        return EXIT_USAGE
    except click.ClickException as error:
        render.click_error(error)
        return EXIT_USAGE
    except AdvisorError as error:
        render.error(error.message, error.hint)
        return error.exit_code
    except render.ReaderGoneError:
        render.let_go()
        return EXIT_OK
    except Exception as error:
        if os.environ.get("ADVISOR_TRACEBACK"):
            raise
        render.fault(error)
        return EXIT_FAULT
    return code if isinstance(code, int) else EXIT_OK
