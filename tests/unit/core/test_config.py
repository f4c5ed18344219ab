"""A bad config dies with found / expected / what to do; the shipped ones are good."""

import copy
from dataclasses import replace

import pytest
import yaml
from config_fixtures import LEAVES, ROOT, merged, small
from hypothesis import event, given
from hypothesis import strategies as st

from gpufeed.core.cell_matrix import Plan
from gpufeed.core.cells import DEVICES, impossible
from gpufeed.core.config import GROUPS, check, planned, read_hyper
from gpufeed.core.errors import GpufeedError
from gpufeed.core.folders import settle_folders
from gpufeed.core.registry import AUGMENTS, KINDS, LOADERS

PIPELINING = ["experiments", "pipelining"]


SYNTHETIC = ["sources", "synthetic", "options"]


@pytest.mark.parametrize("name", ["config", "demo", "own", "reference", "accuracy", "notebook"])
def test_shipped_configs_plan_every_experiment_that_they_run(name):
    config = merged("config.yaml", f"{name}.yaml")
    plan = planned(config)
    assert all(plan.cells[name] for name in config["run"])


@pytest.mark.parametrize("value", [True, "true"])  # from a file, and from a command line
def test_a_quick_run_has_the_blocks_that_it_names_once_each(value):
    config = small({}, loader=["dataloader_sync", "replay"])
    more = config["experiments"]["more"] = copy.deepcopy(config["experiments"]["tiny"])
    more["blocks"]["others"] = {"dataset": "synthetic", "loader": "resident"}
    more |= {"quick": ["others"], "repeats": {"least": 7}}
    whole = planned(copy.deepcopy(config) | {"quick": "false"})
    config["quick"] = value
    for _ in range(2):  # each job reads the config as the run left it
        plan = planned(config)
        assert plan.cells == {
            "tiny": whole.cells["tiny"],
            "more": {name: whole.cells["more"][name] for name in whole.blocks["more"]["others"]},
        }
        assert plan.repeats == {"tiny": 1, "more": 1}
        assert not plan.auto
    assert whole.repeats == {"tiny": 3, "more": 7}
    assert len(whole.cells["more"]) == 3


def test_loaders_that_leave_images_as_they_are_are_left_out_where_these_are_resized():
    as_they_are = ("torchvision_cuda", "nvimgcodec", "cuda_jpeg", "strips", "resident_jpeg")
    others = {"dali_cpu", "dali_gpu", "dataloader_sync", "spdl"}
    config = small({}, loader=[*as_they_are, *others])
    config["sources"]["synthetic"]["resize"] = [20, 10]
    plan = planned(config)
    assert {cell.loader for cell in plan.cells["tiny"].values()} == others
    assert {found.sentence for found in plan.left_out} == {
        f"{name} does not resize images, and synthetic has `resize`" for name in as_they_are
    }


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_own_images_are_measured_without_a_cuda_gpu_too(device):
    config = merged("config.yaml", "own.yaml") | {"device": device}
    cells = planned(config).cells["own"].values()
    on_cpu = {cell.loader for cell in cells if not impossible(replace(cell, device="cpu"))}
    loaders = {cell.loader for cell in cells}
    assert {"dataloader_workers", "webdataset", "webdataset_resampled", "host_cache", "replay"} <= on_cpu
    assert loaders - on_cpu == {name for name in loaders if LOADERS[name].device == "cuda"}
    assert (loaders == on_cpu) == (device == "cpu")


def test_a_quick_run_on_own_images_has_the_likeliest_loaders_and_the_limit():
    whole = planned(merged("config.yaml", "own.yaml")).cells["own"]
    quick = planned(merged("config.yaml", "own.yaml") | {"quick": True}).cells["own"]
    assert quick.items() < whole.items()
    likeliest = {"cuda_jpeg", "dali_gpu", "dataloader_workers", "host_cache", "replay"}
    possible = {name for name in likeliest if LOADERS[name].windows != "never"}
    assert {cell.loader for cell in quick.values()} == possible
    assert {cell.hyper["recipe"]["size"] for cell in whole.values()} == {224}


def test_the_reference_run_changes_data_repeats_and_run_list_alone():
    changes = yaml.safe_load((ROOT / "config/reference.yaml").read_text())
    assert set(changes) == {"run", "repeats", "use_instead", "experiments", "reference"}
    assert all(set(experiment) == {"repeats"} for experiment in changes["experiments"].values())


def test_config_readme_documents_every_key():
    text = (ROOT / "config/README.md").read_text()
    schema = yaml.safe_load((ROOT / "gpufeed/core/schemas/config.schema.yaml").read_text())
    keys = set(schema["properties"])
    for part in schema["$defs"].values():
        keys |= set(part.get("properties", {}))
    assert [key for key in sorted(keys) if f"`{key}`" not in text] == []


def test_telemetry_is_no_part_of_any_cell():
    config = merged("config.yaml")
    on = planned(config)
    assert config["telemetry"] is True
    off = planned({**config, "telemetry": "off"})
    assert {name: list(cells) for name, cells in on.cells.items()} == {
        name: list(cells) for name, cells in off.cells.items()
    }
    with pytest.raises(GpufeedError, match="telemetry"):
        planned({**config, "telemetry": "sometimes"})


def broken(path, value):
    config = merged("config.yaml")
    at = config
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return config


TWO_FILES = [{"name": name, "sha256": "0" * 64} for name in ("a.bin", "b.bin")]


NAN = float("nan")


@pytest.mark.parametrize(
    ("path", "value", "found", "remedy"),
    [
        (["repeat"], 3, "key 'repeat'", "'repeats'"),
        (["repeats"], 0, "repeats: 0", "correct repeats"),
        (["device"], "gpu", "device: 'gpu'", "correct device"),
        ([*PIPELINING, "common", "batchsize"], 32, "key 'batchsize'", "'batch_size'"),
        ([*PIPELINING, "common", "batch_size"], [8, -1], "-1", "correct experiments"),
        ([*PIPELINING, "blocks", "notebook", "loader"], "dalli", "loader 'dalli'", "write 'dali_"),
        ([*PIPELINING, "blocks", "notebook", "workers"], 2.5, "2.5", "correct experiments"),
        (["sources", "cifar10", "layout"], "cifar", "layout 'cifar'", "'cifar10'"),
        (["sources", "cifar10", "files"], [], "no files in sources.cifar10", "add `files:`"),
        (["sources", "cifar10", "files"], TWO_FILES, "a.bin, b.bin in sources.cifar10", "leave one row"),
        (["sources", "cifar10", "options"], {"size": 8}, "options in sources.cifar10", "remove `options:`"),
        (["sources", "fashion_mnist", "files"], TWO_FILES, "a.bin, b.bin in sources.fashion", "list these"),
        (["sources", "fashion_mnist", "files"], [], "no files in sources.fashion_mnist", "list these four"),
        (["sources"], {"../x": {"layout": "synthetic"}}, "sources: '../x'", "correct sources"),
        ([*SYNTHETIC, "size"], 7, "size: 7", "correct sources.synthetic.options.size"),
        ([*SYNTHETIC, "size"], [64, 4], "size.1: 4", "correct sources.synthetic.options.size.1"),
        ([*SYNTHETIC, "count"], 11, "9 training images for 10 classes", "raise `count`"),
        ([*SYNTHETIC, "count"], 12, "2 evaluation images for 10 classes", "raise `count`"),
        ([*SYNTHETIC, "evaluation_share"], 0.0001, "0 evaluation images for 10 classes", "raise `count`"),
        ([*SYNTHETIC, "evaluation_share"], NAN, "evaluation_share: nan", "correct sources"),
        (SYNTHETIC, {"classes": 900}, "800 training images for 900 classes", "raise `count`"),
        (["sources", "noise_224", "limit"], 9, "limit in sources.noise_224", "`count`"),
        (["sources", "cifar10", "limit"], 0, "limit: 0", "correct sources.cifar10.limit"),
        (["sources", "cifar10", "copies"], 1, "copies: 1", "correct sources.cifar10.copies"),
        (["sources", "cifar10", "times"], 2.0, "times: 2.0", "correct sources.cifar10.times"),
        (["quick"], "yes", "quick: 'yes'", "correct quick"),
        (
            [*PIPELINING, "quick"],
            ["nothing"],
            "block 'nothing' in experiments.pipelining.quick",
            "choose one",
        ),
        (["seed"], 10**30, "seed: 1000000", "correct seed"),
        (["sources", "cifar10", "files", 0, "sha256"], "abc", "sha256: 'abc'", "correct sources"),
        (["use_instead"], {"cifar10": "cifar11"}, "dataset 'cifar11'", "'cifar10'"),
        (["cache_decoder"], "dali", "decoder 'dali'", "'dali_gpu'"),
        (["least_download_kb_s"], -1, "least_download_kb_s: -1", "correct least_download_kb_s"),
        (["max_quarantined_share"], 0.6, "max_quarantined_share: 0.6", "correct max_quarantined_share"),
        (["run"], [], "run: []", "correct run"),
    ],
)
def test_a_wrong_config_says_what_was_found_and_what_to_do(path, value, found, remedy):
    with pytest.raises(GpufeedError) as error:
        planned(broken(path, value))
    assert found in error.value.found
    assert remedy in error.value.remedy
    assert error.value.expected


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        (["run"], ["pipelining", "pipelining"], "no entry twice"),
        (["results"], "", "characters: at least 1"),
        ([*PIPELINING, "sweep"], {"datasets": ["cifar10"] * 2, "decoders": ["pillow"]}, "no entry twice"),
    ],
)
def test_what_is_expected_is_not_what_was_found(path, value, expected):
    with pytest.raises(GpufeedError) as error:
        planned(broken(path, value))
    assert expected in error.value.expected


RESIZED = {"layout": "synthetic", "options": {"count": 2500, "size": 64}, "resize": [32, 32]}


def experiment(dataset: str, loader: str, **more) -> dict:
    block = {"dataset": dataset, "loader": loader, "steps": 4}
    return {"title": "t", "question": "q", "blocks": {"a": block}, **more}


CACHED, PLAIN = experiment("mixed", "resident"), experiment("synthetic", "resident")


def with_resized(cache_decoder: str, experiment: dict, use_instead: dict | None = None) -> dict:
    """A config with one source that is to be resized and one experiment."""
    config = merged("config.yaml")
    config["sources"]["mixed"] = RESIZED
    config["use_instead"] = use_instead or {}
    return {**config, "cache_decoder": cache_decoder, "run": ["x"], "experiments": {"x": experiment}}


@pytest.mark.parametrize("decoders", [["pillow", "dali_gpu"], ["strips"]])
@pytest.mark.parametrize("where", ["cache_decoder", "builds", "one_core", "stand_in"])
def test_strips_resize_nothing(decoders, where):
    builds = {"dataset": "mixed", "decoders": ["opencv"], "counts": [10]}
    config = {
        "cache_decoder": with_resized(decoders[0], CACHED),
        "builds": with_resized("pillow", {**PLAIN, "builds": {**builds, "decoders": decoders}}),
        "one_core": with_resized("pillow", {**PLAIN, "builds": {**builds, "one_core": decoders}}),
        "stand_in": with_resized(decoders[0], PLAIN, {"synthetic": "mixed"}),
    }[where]
    if "strips" not in decoders:
        assert planned(config).cells["x"]
        return
    with pytest.raises(GpufeedError, match="'mixed'") as error:
        planned(config)
    place = "experiments.x.builds" if where in ("builds", "one_core") else "cache_decoder"
    assert place in error.value.found
    assert "resize" in error.value.found
    assert "strips" in error.value.remedy


def test_a_cache_of_strips_that_nobody_resizes_is_planned():
    assert planned(with_resized("strips", PLAIN)).cells["x"]
    assert planned(with_resized("strips", experiment("mixed", "dataloader_sync"))).cells["x"]


@pytest.mark.parametrize("use_instead", [{}, {"synthetic": "mixed"}])
def test_a_sweep_resizes_nothing(use_instead):
    sweep = {"datasets": ["synthetic" if use_instead else "mixed"], "decoders": ["pillow"]}
    with pytest.raises(GpufeedError, match=r"'mixed' in experiments\.x\.sweep") as error:
        planned(with_resized("pillow", {**PLAIN, "sweep": sweep}, use_instead))
    assert "resize" in error.value.found
    assert "sweep" in error.value.remedy
    assert planned(with_resized("pillow", {**PLAIN, "sweep": {**sweep, "datasets": ["synthetic_224"]}}))


def test_a_missing_key_is_named():
    config = merged("config.yaml")
    del config["data"]
    with pytest.raises(GpufeedError, match="no 'data'"):
        check(config)


@pytest.mark.parametrize(
    ("stand_ins", "remedy"),
    [
        ({"tiny_imagenet": "synthetic", "synthetic": "tiny_imagenet"}, "remove one of the two"),
        ({"tiny_imagenet": "synthetic", "synthetic": "cifar10"}, "write tiny_imagenet: cifar10, or remove"),
    ],
)
def test_a_stand_in_that_something_stands_in_for_is_refused(stand_ins, remedy):
    with pytest.raises(GpufeedError, match="use_instead: 'synthetic' for 'tiny_imagenet', and") as error:
        planned(broken(["use_instead"], stand_ins))
    assert error.value.remedy.startswith(remedy)


def test_a_dataset_that_stands_in_for_itself_takes_back_what_an_earlier_file_said():
    assert planned(broken(["use_instead"], {"synthetic": "synthetic"})).cells


def test_check_leaves_the_config_alone():
    config = merged("config.yaml")
    before = copy.deepcopy(config)
    planned(config)
    assert config == before


def test_an_experiment_cannot_have_the_name_of_a_rule():
    config = merged("config.yaml")
    config["experiments"]["tabulate"] = config["experiments"]["vit_lite"]
    with pytest.raises(
        GpufeedError, match="experiment 'tabulate', which is also the name of a rule"
    ) as error:
        planned(config)
    assert "measure_cell" in error.value.expected


RIGHT = {
    "dataset": st.just("synthetic"),
    **{axis: st.sampled_from(sorted(KINDS[axis])) for axis in ("loader", "augment", "model", "trainer")},
    "precision": st.sampled_from(["auto", "fp32", "tf32", "fp16", "bf16"]),
    **{axis: st.integers(1, 512) for axis in ("batch_size", "prefetch_factor", "epochs")},
    "workers": st.integers(0, 16),
    "pin_memory": st.booleans(),
    "persistent_workers": st.booleans(),
    "channels_last": st.booleans(),
    "cuda_graphs": st.sampled_from([False, True, "auto"]),
    "compile": st.booleans(),
    "synchronise": st.sampled_from(["epoch", "step"]),
    "steps": st.none() | st.integers(4, 100),
    "overrides": st.lists(
        st.builds(
            "{}.{}={}".format,
            st.sampled_from(GROUPS),
            st.sampled_from(["learning_rate", "momentum", "stem", "channels", "crop_padding", "a"]),
            st.text(min_size=1) | st.integers() | st.floats() | st.lists(st.integers()),
        ),
        max_size=2,
    ),
}
RIGHT["overrides"] |= st.lists(RIGHT["overrides"], max_size=2)  # lists among them count as their entries


KEYS = st.text(max_size=4) | st.integers()


WRONG = st.recursive(LEAVES, lambda values: st.lists(values) | st.dictionaries(KEYS, values), max_leaves=4)


@st.composite
def blocks(draw):
    """A block whose axes are mostly right, each a value or a list."""
    wrong = draw(st.sets(st.sampled_from(sorted(RIGHT)), max_size=2))
    axes = {"dataset", "loader"} | draw(st.sets(st.sampled_from(sorted(RIGHT))))
    block = {}
    for axis in sorted(axes):
        values = WRONG if axis in wrong else RIGHT[axis]
        # overrides are a list of lists; of the others a single value counts as a list of one
        one_of_many = st.lists(values, min_size=1, max_size=2)
        block[axis] = draw(one_of_many if axis == "overrides" and axis not in wrong else values | one_of_many)
    return block


TYPES = {
    "dataset": str, "loader": str, "augment": str, "model": str, "trainer": str, "precision": str,
    "synchronise": str, "batch_size": int, "workers": int, "epochs": int, "pin_memory": bool,
    "persistent_workers": bool, "channels_last": bool, "compile": bool,
    "overrides": tuple,
}  # fmt: skip


@given(blocks(), st.sampled_from(DEVICES) | WRONG)
def test_any_block_gives_a_plan_of_typed_cells_or_an_error_in_three_parts(block, device):
    config = {**small({}), "device": device}
    config["experiments"]["tiny"]["blocks"]["b"] = block
    error = plan = None
    try:
        plan = planned(config)
    except GpufeedError as raised:
        error = raised
    event("error" if error else "plan")
    if error:
        assert all((error.found, error.expected, error.remedy))
        return
    assert isinstance(plan, Plan)
    for cell in plan.cells["tiny"].values():
        assert {axis: type(getattr(cell, axis)) for axis in TYPES} == TYPES
        assert cell.cuda_graphs == "auto" or type(cell.cuda_graphs) is bool
        assert cell.hyper["trainer"]["learning_rate"] > 0


@pytest.mark.parametrize("device", ["cpu", "mps", "cuda"])
def test_the_shipped_config_plans_on_every_device(device):
    """An experiment that one asks for is one of many that are planned with it."""
    assert planned(merged("config.yaml") | {"device": device}).cells["hybrid_gpu"]


def test_a_trip_through_the_host_is_left_out_of_cuda_graphs():
    axes = {"cuda_graphs": [False, True], "overrides": [[], ["augment.exchange=host"]]}
    found = planned(small({}, loader="resident", augment="chain", **axes))
    kept = {(cell.hyper["augment"]["exchange"], cell.cuda_graphs) for cell in found.cells["tiny"].values()}
    assert kept == {("dlpack", False), ("dlpack", True), ("host", False)}
    (left,) = found.left_out
    assert left.sentence.startswith("augment chain with exchange host waits for the device in every step")


def test_the_home_folder_may_be_written_as_a_tilde(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    config = {"data": "~/scratch/data", "results": "results/here"}
    settle_folders(config)
    assert config == {"data": f"{tmp_path}/scratch/data", "results": "results/here"}


def test_this_folder_is_written_in_full_as_snakemake_warns_of_each_path_below_a_dot(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = {"data": ".", "results": "./out"}
    settle_folders(config)
    assert config == {"data": str(tmp_path), "results": "out"}


@pytest.mark.parametrize("key", ["data", "results"])
def test_a_file_in_the_place_of_a_folder_is_told_before_the_run(tmp_path, key):
    (tmp_path / "file").touch()
    config = {"data": str(tmp_path), "results": str(tmp_path)} | {key: str(tmp_path / "file/below")}
    with pytest.raises(GpufeedError, match=rf"{key}: '.*/file/below' in the config: .*/file is a file"):
        settle_folders(config)
    with pytest.raises(GpufeedError, match="/dev/null is a file"):
        settle_folders(config | {key: "/dev/null"})


@pytest.mark.parametrize("key", ["data", "results"])
def test_a_folder_with_a_brace_is_refused_as_snakemake_would_fail_on_it(key):
    config = {"data": "data", "results": "results", "sources": {}, key: "run {a}"}
    with pytest.raises(GpufeedError) as error:
        settle_folders(config)
    assert (
        error.value.found == f"{key}: 'run {{a}}' in the config: Snakemake would take the {{ for a wildcard"
    )


@pytest.mark.parametrize(("trainer", "resume"), [("fastai", True), ("fastai", False), ("lightning", True)])
def test_repeats_go_on_only_with_trainers_that_keep_checkpoints(trainer, resume):
    config = small({}, loader="dataloader_sync", model="simple_cnn", trainer=trainer)
    config["experiments"]["tiny"]["resume"] = resume
    if trainer != "fastai" or not resume:
        assert len(planned(config).cells["tiny"]) == 1
        return
    with pytest.raises(GpufeedError, match=r"resume: true in experiment 'tiny'.*trainer fastai"):
        planned(config)


def test_the_accuracy_runs_go_on_where_they_were():
    assert merged("config.yaml", "accuracy.yaml")["experiments"]["accuracy"]["resume"] is True


def test_hybrid_gpu_trains_with_rotation_brightness_contrast_and_noise_together_by_all_who_can():
    cells = planned(merged("config.yaml")).cells["hybrid_gpu"].values()
    amounts = ("rotate_degrees", "brightness", "contrast", "salt_pepper")
    together = [cell for cell in cells if all(cell.hyper["augment"].get(name) for name in amounts)]
    able = {name for name in AUGMENTS if set(amounts) <= set(read_hyper("augment", name))}
    assert able == {"torch", "chain"}
    assert {(cell.augment, cell.loader) for cell in together} == {
        (a, b) for a in able for b in ("resident", "replay")
    }
    shared = [{name: cell.hyper["augment"][name] for name in amounts} for cell in together]
    assert all(options == shared[0] for options in shared)
