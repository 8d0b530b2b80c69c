"""Secrets stay out of files: they are named, never written, and what looks like one is refused wherever it appears."""

from __future__ import annotations

import re

from advisor.errors import InputError

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
SECRET_NAME = re.compile(r"(^|_)(TOKEN|KEY|APIKEY|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|PAT)$", re.IGNORECASE)
# Forms that issuers publish so that scanners can find them; a bare 40-digit key is the form of wandb and of old GitHub.
FORMS = (
    ("Hugging Face token", re.compile(r"\b(?:hf|api_org)_[A-Za-z0-9]{10,}")),
    ("GitHub token", re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{10,}|github_pat_[A-Za-z0-9_]{10,})")),
    ("GitLab token", re.compile(r"\bglpat-[A-Za-z0-9_-]{10,}")),
    ("API key", re.compile(r"\b(?:sk|pk|rk)-[A-Za-z0-9_-]{16,}")),
    ("NVIDIA API key", re.compile(r"\bnvapi-[A-Za-z0-9_-]{10,}")),
    ("W&B key", re.compile(r"\b(?:wandb_v1_[A-Za-z0-9_]{10,}|local-[0-9a-f]{40})")),
    ("AWS access key", re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b")),
    ("Google API key", re.compile(r"\bAIza[A-Za-z0-9_-]{30,}")),
    ("Slack token", re.compile(r"\bxox[abprs]-[A-Za-z0-9-]{10,}")),
    ("JSON web token", re.compile(r"\beyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}")),
    ("private key", re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY")),
    ("40-digit key", re.compile(r"(?<![0-9A-Za-z@:])[0-9a-f]{40}(?![0-9A-Za-z])")),
    ("password in a URL", re.compile(r"://[^/\s:@'\"]+:[^/\s@'\"]+@")),
    ("bearer header", re.compile(r"\bBearer\s+[A-Za-z0-9._~+/-]{8,}", re.IGNORECASE)),
    (
        "value of a secret",
        re.compile(
            r"(?i)(?<![a-z0-9])(?:[a-z0-9_-]*[_-])?(?:token|api[_-]?key|secret|password|passwd)"
            r"(?:=|:\s?|['\"]?\s+)['\"]?(?![$\"'{<:?]|none\b|null\b|true\b|false\b)(?=[^\s'\"]*[0-9])[^\s'\"]{16,}"
        ),
    ),
)


def check_secret_name(name: str) -> str:
    """The name of a variable that holds a secret; InputError (without the value) when a value was given too."""
    if "=" in name:
        raise InputError("--secret takes the name of a variable, not its value", "export it, then --secret NAME")
    if not NAME.fullmatch(name):
        raise InputError("--secret is not the name of an environment variable", "for example --secret HF_TOKEN")
    refuse_secrets(name, "--secret")
    return name


def check_variable(name: str, value: str) -> None:
    """Raise InputError for a variable that by its name or value is a secret, or that is no variable."""
    if not NAME.fullmatch(name):
        raise InputError(f"{name!r} is not the name of an environment variable", "--env NAME=VALUE")
    if SECRET_NAME.search(name):
        raise InputError(
            f"{name} is a secret by its name and is not written to a file", f"export {name}, then --secret {name}"
        )
    refuse_secrets(value, f"--env {name}")


def refuse_secrets(text: str, where: str) -> None:
    """Raise InputError when `text` holds anything of the form of a secret; the message does not repeat it."""
    for kind, form in FORMS:
        if form.search(text):
            raise InputError(
                f"{where} holds what looks like a {kind}; secrets are not written to files",
                "export it before sbatch and name it with --secret",
            )
