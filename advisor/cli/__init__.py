"""The command line: one file per verb, `pages/` lays answers out, `render.py` alone prints."""
