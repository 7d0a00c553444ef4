"""State sync: a new node fetches the state of a recent epoch from peers; each piece is proven."""
