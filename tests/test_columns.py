"""The table of columns: every place that shows or computes a metric agrees with it."""

from pathlib import Path

from bayespg.learning.advance import Record
from bayespg.runs.columns import DRAWN, ON_BAR, ON_PAGE, TOTALS, Column

ROOT = Path(__file__).parents[1]


def test_a_column_is_a_string_that_knows_how_it_is_shown():
    assert {"steps": 1}[Column.STEPS] == 1
    assert f"{Column.STEPS}" == "steps"
    assert Column.STEPS.show(12345.0) == "12,345"
    assert Column.DIVERGENCE.show(float("nan")) == ""
    assert Column("return") is Column.RETURN


def test_every_column_has_a_meaning_a_form_and_a_line_in_the_documents():
    documented = (ROOT / "docs" / "training.md").read_text()
    for column in Column:
        assert column.meaning
        assert float(column.show(0.0)) == 0
        assert f"`{column}`" in documented
    assert {*TOTALS, *ON_BAR, *ON_PAGE, *DRAWN} <= set(Column)


def test_what_an_update_records_is_in_the_table():
    assert set(Record._fields) - {"stage"} <= set(Column)
