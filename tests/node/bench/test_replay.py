from __future__ import annotations

from node.bench import replay


def test_a_small_replay_reaches_the_leaders_root_and_gives_all_figures() -> None:
    figures = replay.run(blocks=3, accounts=500, transactions=40, workers=1, warm_up=1)
    assert set(figures) >= {
        "transactions_per_s",
        "decode_us",
        "verify_us",
        "execute_us",
        "trie_us",
        "commit_us",
        "peak_rss_mib",
        "transactions_per_s_10k_accounts",
    }
    assert all(value > 0 for value in figures.values())
