"""Test networks on one machine."""

SHORT_HELP = "Run a local test network: validators, a relay, workers and one real task."
"""Of the command, for the list of commands, which loads none of them."""
