"""``python -m tests.model``: the model check with bounds of one's own; prints what it went through."""

from __future__ import annotations

import argparse
import time
from dataclasses import replace

from tests.model.chain_check import explore
from tests.model.interleaving_check import VIEWS_MAX, Interleavings
from tests.model.liveness_check import check_no_dead_end
from tests.model.rules import committees


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.model", description="check the abstract rules of SDBFT")
    parser.add_argument("--views", type=int, default=6, help="views of the check that takes views in turn")
    parser.add_argument("--live-views", type=int, default=5, help="views of the search for dead ends")
    parser.add_argument(
        "--free-views",
        type=int,
        default=2,
        choices=range(1, VIEWS_MAX + 1),
        help="views in which votes interleave",
    )
    parser.add_argument(
        "--honest", type=int, default=3, choices=(3, 4), help="honest seats beside the faulty weight"
    )
    parser.add_argument("--heights", type=int, default=3, help="lengths of epochs to check, from 1 block")
    parser.add_argument("--only", type=int, default=None, help="number of one committee")
    options = parser.parse_args()
    kinds = committees(30, options.honest)
    for number, committee in enumerate(kinds):
        if options.only not in (None, number):
            continue
        for height in range(1, options.heights + 1):
            rules = replace(committee, last_height=height)
            began = time.process_time()
            chains = explore(rules, options.views)
            live = check_no_dead_end(rules, options.live_views)
            free = Interleavings(rules, options.free_views).run() if options.honest == 3 else None
            print(
                f"committee {number}: {rules.honest} honest, {rules.faulty} faulty, epoch of {height}:"
                f" {chains.states} states in {chains.chains_seen} chains of {options.views} views,"
                f" {live.known_chains} known chains of {options.live_views} views lead on"
                + (f", {free.states} interleaved states of {options.free_views} views" if free else "")
                + f"; {time.process_time() - began:.1f} s",
                flush=True,
            )
    print(f"{len(kinds)} kinds of committees with {options.honest} honest seats; no invariant broken, no dead end")


if __name__ == "__main__":
    main()
