"""Reads logs of jobs as streams: files, gz, folders, stdin; rank and node tags; times in several forms; one order."""
