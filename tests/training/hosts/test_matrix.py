"""Several devices in one process and in several train as one device does, on JAX."""

import pytest
from matrix import FACTORS, TOLERANCES, covering_cases, every_case, furthest, on_one, pairs_of, precision_of, run_cases

pytest.importorskip("jax")
SHORT = {  # in the default run, by processes
    1: ("fsdp sgd clip 4 float32 all",),
    2: ("tensor sgd clip 4 float32 all",),
}


def check(cases, processes, one, found):
    """Compares each case with one device; prints the figures, which `-s` shows."""
    differences = {case: furthest(found[case], one[on_one(case)]) for case in cases}
    for case, (loss, weight) in differences.items():
        print(f"{processes} processes, {case}: loss {loss:.1e}, weight {weight:.1e}")
    far = [case for case, figures in differences.items() if not max(figures) <= TOLERANCES[precision_of(case)]]
    assert far == []


@pytest.mark.timeout(600)
def test_devices_train_as_one_does(tmp_path):
    """The switches of encoders, clipping, micro-batches, averages, rates by layer, several steps at once together."""
    alone = run_cases([on_one(SHORT[1][0]), *SHORT[1]], 1, tmp_path / "1")
    check(SHORT[1], 1, alone, {case: alone[case] for case in SHORT[1]})
    check(SHORT[2], 2, alone, run_cases(SHORT[2], 2, tmp_path / "2"))


def test_covering_cases_let_any_two_values_meet():
    met = {pair for case in covering_cases() for pair in pairs_of(tuple(case.split()))}
    sizes = [len(values) for values in FACTORS.values()]
    assert len(met) == (sum(sizes) ** 2 - sum(size**2 for size in sizes)) // 2


@pytest.fixture(scope="module")
def one_of_any_two(tmp_path_factory):
    return run_cases(sorted(set(map(on_one, covering_cases()))), 1, tmp_path_factory.mktemp("one"), 3600)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("processes", [1, 2, 4])
def test_any_two_options_together_train_as_on_one_device(processes, one_of_any_two, tmp_path):
    check(covering_cases(), processes, one_of_any_two, run_cases(covering_cases(), processes, tmp_path, 3600))


@pytest.fixture(scope="module")
def one_of_all(tmp_path_factory):
    return run_cases(every_case("one"), 1, tmp_path_factory.mktemp("one"), 7200)


@pytest.mark.slow
@pytest.mark.timeout(14400)
@pytest.mark.parametrize("kind", FACTORS["kind"])
@pytest.mark.parametrize("processes", [1, 2, 4])
def test_every_option_trains_as_on_one_device(processes, kind, one_of_all, tmp_path):
    """The whole matrix: 72 cases each."""
    check(every_case(kind), processes, one_of_all, run_cases(every_case(kind), processes, tmp_path, 7200))
