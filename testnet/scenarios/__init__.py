"""Scenarios on a network of processes: who cheats, who finds it, and who loses what."""
