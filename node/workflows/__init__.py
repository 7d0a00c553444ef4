"""Several tasks of one file: posted once, also over interruptions (docs/decisions/0101-requests.md)."""
