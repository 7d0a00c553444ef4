from tasks.engines.builtin_datasets import make_dataset
from tasks.engines.training import initial_state
from tasks.executor.job import Job
from tasks.recipes import digits_spec
from tasks.spec import classifier_plan, decode_spec, encode_spec


def test_the_digits_can_be_posted_as_they_are() -> None:
    dataset = make_dataset("digits")
    spec = digits_spec(dataset, dataset_blob=b"\x01" * 32, seed=b"\x02" * 32, max_price_per_tera_unit=10**14)
    assert decode_spec(encode_spec(spec)) == spec
    assert (spec.windows, spec.window_segments(0), spec.window_segments(2)) == (3, 20, 20)
    assert spec.dataset.root == dataset.root()
    assert spec.init_root == initial_state(classifier_plan(spec)).root(classifier_plan(spec))
    assert Job.of(spec).segments == 60
