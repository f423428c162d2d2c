"""Verbs of the command that need more than a few lines: a module for each, imported when it is asked for."""
