"""docs/configuration.md is what the code says now."""

import re
from pathlib import Path

from relax_lightning.config.markdown import markdown
from relax_lightning.config.names import REFERENCE_FLAGS
from relax_lightning.config.sections import entries

PAGE = Path(__file__).resolve().parents[2] / "docs/configuration.md"
REFRESH = "relax-lightning config --markdown > docs/configuration.md"


def test_the_page_is_fresh():
    assert PAGE.read_text() == markdown(), f"{PAGE.name} is stale; run: {REFRESH}"
    assert f"`{REFRESH}`" in PAGE.read_text()


def test_every_key_has_a_row_of_five_cells_or_stands_below_a_section_that_has():
    rows = {row[0]: row for row in _rows()}
    assert all(len(row) == 5 for row in rows.values())
    referred = tuple(f"{key}." for key in re.findall(r"^## `(.+)`\n\n.*The keys of", markdown(), re.M))
    missing = [key for key in entries() if key not in rows and not key.startswith(referred)]
    assert all(entries()[key].is_only_a_title for key in missing), missing
    assert rows["model.algorithm.lambd"] == [
        "model.algorithm.lambd", "a number", "`1.0`", "GAE lambda, in [0, 1]", "`--lambd`"
    ]  # fmt: skip
    assert rows["data.rollout.batch_size"][2] == "required"
    # A bar in a meaning would begin a new cell, and <...> would be HTML.
    assert r"k1 \| k2 \| k3" in rows["model.algorithm.kl_loss_type"][3]
    assert r"\<default_root_dir>" in rows["model.actor.save"][3]
    assert [f for f, key in REFERENCE_FLAGS.items() if key in entries() and f"`{f}`" not in markdown()] == []


def _rows():
    for line in markdown().splitlines():
        if line.startswith("| `"):
            key, *cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))]
            yield [key.strip("`"), *cells]
