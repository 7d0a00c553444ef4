from node.bench.train import run


def test_the_exact_profile_learns_what_plain_numpy_learns() -> None:
    figures = run(steps=60, widths=(64, 48, 10))
    assert figures["steps_per_s"] > 0
    assert figures["slowdown_ratio"] > 0
    assert figures["loss_gap"] < 0.02
    assert figures["accuracy_percent"] > 80
