"""The order of the cells of a block: one comparison after another, each in an order of its own."""

from itertools import groupby

from record_fixtures import cell

from gpufeed.core.schedule import Schedule, shuffled

LOADERS = ("resident", "host_cache", "dali_cpu", "replay")


def order_of(cells, repeats=3):
    """repeat -> the cells in the order in which they are measured."""
    by_id = {one.id: one for one in cells}
    order = Schedule({"tiny": by_id}, 0, repeats)
    places = {
        (repeat, name): order.priority("tiny", name, repeat) for repeat in range(repeats) for name in by_id
    }
    assert len({*places.values()}) == len(places)
    assert order.before_all > max(places.values())
    ranked = sorted(places, key=places.get, reverse=True)
    assert [repeat for repeat, _ in ranked] == sorted(repeat for repeat, _ in ranked)  # block after block
    return [[by_id[name] for of, name in ranked if of == repeat] for repeat in range(repeats)]


def test_the_cells_of_a_comparison_follow_one_another():
    axes = [{"model": model, "cores": cores} for model in ("resnet18", "vit_tiny") for cores in (2, 16)]
    blocks = order_of([cell(loader, **own) for own in axes for loader in LOADERS])
    compared = [[key for key, _ in groupby((one.model, one.cores) for one in block)] for block in blocks]
    assert [len(keys) for keys in compared] == [4, 4, 4]
    assert len({tuple(keys) for keys in compared}) > 1
    assert len({tuple(one.loader for one in block[:4]) for block in blocks}) > 1


def test_cells_that_choose_no_cores_are_in_the_order_that_they_had_before():
    cells = [cell(loader, model=model) for model in ("resnet18", "vit_tiny") for loader in LOADERS]
    blocks = [[one.id for one in block] for block in order_of(cells)]
    assert blocks == [shuffled((one.id for one in cells), 0, repeat, "tiny") for repeat in range(3)]
