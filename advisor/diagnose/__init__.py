"""Failed jobs: first failure, cause, cascade, evidence with file and line, next step."""
