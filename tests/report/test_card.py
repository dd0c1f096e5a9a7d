from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import yaml

import paperbench
from paperbench.report.card import card, report_on
from paperbench.runs.record import DataFacts, Record
from paperbench.specs.table import Table
from tests.cli.test_compare import MATCHING
from tests.compare.judging import records
from tests.golden import assert_golden
from tests.report.stores import make_store


def card_of(record: Record, siblings: list[Record], results: Path) -> str:
    reports = [paperbench.load_table(one).compare(results).report for one in ("table2", "table3", "table5")]
    return card(record, [one for each in reports if (one := report_on(record, each))], siblings, None)


def test_card_of_a_run_of_the_paper(tmp_path: Path, table2: Table) -> None:
    first, *others = records(table2, "preact/resnet110", MATCHING)
    make_store(tmp_path, [first, *others])
    text = card_of(first, others, tmp_path)
    assert_golden("card", text)
    head = yaml.safe_load(text.split("---")[1])
    (result,) = head["model-index"][0]["results"]
    assert first.result
    assert [one["value"] for one in result["metrics"]] == [first.result.test_error]
    assert head["datasets"] == ["uoft-cs/cifar10"]


def test_names_from_strangers_stay_text(tmp_path: Path, table2: Table) -> None:
    (record,) = records(table2, "preact/resnet110", MATCHING[:1])
    data = DataFacts('x: [1]"| <b>', "of /srv/somebody/photos [a](b)", False, record.spec.data)
    _, head, text = card_of(replace(record, data=data), [], tmp_path).split("---", 2)
    assert yaml.safe_load(head)["model-index"][0]["results"][0]["dataset"]["name"] == data.name
    assert "not the data of a paper" in text
    assert not [word for word in ("<b>", "somebody", "](b)") if word in text]
