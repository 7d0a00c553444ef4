"""Test networks on one machine."""

SHORT_HELP = "Run a local test network: validators, a relay, workers and one real task."
"""Short help of the command; listing the commands loads none of them."""
