from pathlib import Path

from matplotlib.image import imread

from relax_lightning.tracking.curves import PANELS, draw_curves, smooth
from relax_lightning.tracking.journal import Journal


def test_picture_grows_with_the_journal_and_is_replaced_whole(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "metrics.jsonl", "a")
    path = tmp_path / "curves.png"
    journal.record({"reward/mean": 0.1}, 1, timestamp_ms=1)
    draw_curves(journal, path)
    before = imread(path)
    for step in range(2, 100):
        metrics = {name: (step * 7 % 13) / 13 for panel in PANELS for name in panel.metrics}
        journal.record(
            {**metrics, "critic/explained_variance": -50.0 / step, "val/sums/reward_mean": 0.5}, step, step
        )
    draw_curves(journal, path)

    after = imread(path)
    assert after.shape == before.shape == (640, 1500, 4)
    assert (after != before).any(axis=2).mean() > 0.02
    assert [file.name for file in tmp_path.glob("*png*")] == ["curves.png"]
    assert not list(tmp_path.glob(".*.partial"))


def test_smoothing_is_the_mean_of_the_latest_values() -> None:
    # window 2: 1, (1 + 3) / 2, (3 + 5) / 2
    assert smooth([1.0, 3.0, 5.0], 2) == [1.0, 2.0, 4.0]
    assert smooth([1.0, 3.0], 1) == [1.0, 3.0]
    assert smooth([], 3) == []
