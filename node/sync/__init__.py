"""A node's way into a chain that is old already: the state of the newest epoch from peers, each piece proven."""
