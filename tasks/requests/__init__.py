"""Requests: a model, data and settings, read strictly from named fields (docs/decisions/0101-requests.md)."""
