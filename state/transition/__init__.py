"""The state transition: kinds and their rules, fees, staking, and the runtime that applies them."""
