"""Job files that `dekube templates` shows, one for each kind of job."""
