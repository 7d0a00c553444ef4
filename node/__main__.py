"""``python -m node`` is ``dekube``."""

from node.cli import main

if __name__ == "__main__":
    main()
