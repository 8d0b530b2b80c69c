"""A chosen layout as text that the user's framework takes: one file per target, templates beside."""
