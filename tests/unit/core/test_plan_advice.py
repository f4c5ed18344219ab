"""The key `advice` of an experiment: what it asks for, what is measured by what the document says."""

import json

import pytest
from config_fixtures import with_tiny

from gpufeed.core.config import planned
from gpufeed.core.errors import GpufeedError
from gpufeed.core.plan_advice import candidates, measured, settings


def config(advice, **blocks):
    usual = {
        "today": {"loader": "dataloader_sync"},
        "others": {"loader": ["overlap", "resident"]},
        "ceiling": {"loader": "replay"},
    }
    return with_tiny(usual | blocks, common={"dataset": "synthetic"}, advice=advice)


def test_all_but_ceilings_are_probed_and_what_is_chosen_is_measured(tmp_path):
    found = config({"of": "today"})
    plan = planned(found)
    asked = settings(found, plan, "tiny")
    assert asked == {"of": plan.blocks["tiny"]["today"][0], "best": 3}
    today, overlap, resident = candidates(plan, "tiny")
    (replay,) = plan.blocks["tiny"]["ceiling"]
    assert measured(plan, "tiny", asked["of"], tmp_path / "none.json") == [today, replay]
    document = tmp_path / "advice.json"
    rows = [{"cell_id": overlap, "chosen": False}, {"cell_id": resident, "chosen": True}]
    document.write_text(json.dumps({"candidates": rows}))
    assert measured(plan, "tiny", asked["of"], document) == [today, resident, replay]
    document.write_text("{")
    assert measured(plan, "tiny", asked["of"], document) == [today, replay]
    del found["experiments"]["tiny"]["advice"]
    assert settings(found, plan, "tiny") is None


@pytest.mark.parametrize(
    ("advice", "blocks", "found"),
    [
        ({}, {}, "no 'of' in experiments.tiny.advice"),
        ({"of": "today", "best": 0}, {}, "experiments.tiny.advice.best: 0"),
        ({"of": "tomorrow"}, {}, "block 'tomorrow' in experiments.tiny.advice.of"),
        ({"of": "others"}, {}, "which has 2 possible cells"),
        ({"of": "ceiling"}, {}, "which has 0 possible cells"),
        ({"of": "today"}, {"more": {"loader": "overlap", "trainer": "lightning"}}, "trainer lightning has"),
        ({"of": "today"}, {"more": {"loader": "overlap", "batch_size": 64}}, "batch_size is not that of"),
    ],
)
def test_a_wrong_key_is_told_before_anything_is_planned(advice, blocks, found):
    with pytest.raises(GpufeedError) as caught:
        planned(config(advice, **blocks))
    assert found in str(caught.value)
