"""Readers of configuration files: each turns a text into a `Reading`, none executes anything."""
