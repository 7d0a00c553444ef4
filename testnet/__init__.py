"""Test networks on one machine."""

SHORT_HELP = "A network of this machine: validators, a relay, GPU workers, one real task."
"""Of the command, for the list of commands, which loads none of them."""
