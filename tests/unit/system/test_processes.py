"""Work spread over processes: in order, and with few results waiting for whoever takes them."""

import time

import pytest

from gpufeed.system.processes import run


def mark(folder, number: int) -> int:
    """Leaves a file that says that this task was done; the first takes longest."""
    time.sleep(0.2 if number == 0 else 0)
    (folder / str(number)).touch()
    return number


def refuse_third(number: int) -> int:
    if number == 3:
        raise ValueError("the third")
    return number


def tasks(folder, count: int) -> tuple:
    return [folder] * count, range(count)


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("count", [0, 1, 5, 40])
def test_results_come_in_the_order_of_the_tasks(tmp_path, workers, count):
    assert list(run(mark, tasks(tmp_path, count), workers)) == list(range(count))
    assert len(list(tmp_path.iterdir())) == count


@pytest.mark.parametrize("workers", [2, 3])
def test_tasks_wait_for_whoever_takes_the_results(tmp_path, workers):
    results = run(mark, tasks(tmp_path, 200), workers)
    for taken in range(1, 4):
        next(results)
        time.sleep(0.3)
        # what was taken, and what waits or is at work
        assert taken < len(list(tmp_path.iterdir())) <= taken + 2 * workers
    results.close()
    assert len(list(tmp_path.iterdir())) <= 3 + 2 * workers


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_of_a_task_comes_in_its_place(workers):
    results = run(refuse_third, (range(50),), workers)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="the third"):
        next(results)
