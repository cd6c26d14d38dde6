import json
import math
from pathlib import Path

from relax_lightning.tracking.journal import Journal, read_batches


def test_points_are_read_back_as_curves(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "run" / "metrics.jsonl", "a")
    journal.record({"reward/mean": 0.1, "actor/lr": 1.0}, step=1, timestamp_ms=10)
    journal.record({"reward/mean": 0.2}, step=2, timestamp_ms=20)

    assert journal.series("reward/mean") == ([1, 2], [0.1, 0.2])
    assert journal.series("actor/lr") == ([1], [1.0])
    assert journal.series("nothing") == ([], [])
    assert journal.names == ["actor/lr", "reward/mean"]
    lines = [json.loads(line) for line in journal.path.read_text().splitlines()]
    assert lines[1] == {"run": "a", "step": 2, "timestamp_ms": 20, "metrics": {"reward/mean": 0.2}}


def test_resumed_run_records_no_step_twice(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    first = Journal(path, "a")
    for step in range(1, 6):
        first.record({"reward/mean": step / 10}, step, timestamp_ms=step)
    resumed = Journal(path, "a")
    for step in range(4, 8):
        resumed.record({"reward/mean": 9.0, f"late/{step}": 1.0}, step, timestamp_ms=100 + step)

    # 4 and 5 keep what was recorded first; 6 and 7 are new; a metric that 4 and 5 did not have is new too.
    assert resumed.series("reward/mean") == ([1, 2, 3, 4, 5, 6, 7], [0.1, 0.2, 0.3, 0.4, 0.5, 9.0, 9.0])
    points = [(batch.step, name) for batch in read_batches(path, "a") for name in batch.metrics]
    assert len(points) == len(set(points)) == 7 + 4


def test_what_a_resume_trains_again_is_put_aside(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    first, other = Journal(path, "a"), Journal(path, "b")
    for step in (1, 2, 3, 4):
        first.record({"actor/lr": 0.1, f"early/{step}": 1.0}, step, timestamp_ms=step)
    other.record({"actor/lr": 7.0}, 4, timestamp_ms=9)
    other.close()
    assert first.first_offset_after(4) is None
    assert first.first_offset_after(2) == list(read_batches(path, "a"))[1].end_offset
    resumed = Journal(path, "a")
    resumed.rewind(2)
    assert resumed.last_step == 2 and "early/3" not in resumed.names
    resumed.record({"actor/lr": 0.001}, 3, timestamp_ms=100)

    for journal in (resumed, Journal(path, "a")):
        assert journal.series("actor/lr") == ([1, 2, 3], [0.1, 0.1, 0.001])
    assert Journal(path, "b").series("actor/lr") == ([4], [7.0])
    aside = tmp_path / "metrics.lost.jsonl"
    assert [(batch.step, batch.metrics["actor/lr"]) for batch in read_batches(aside, "a")] == [
        (3, 0.1),
        (4, 0.1),
    ]
    # A second crash and resume: what was put aside before stays.
    again = Journal(path, "a")
    again.rewind(1)
    assert [batch.step for batch in read_batches(aside, "a")] == [3, 4, 2, 3]


def test_another_run_in_the_same_folder_starts_afresh(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    Journal(path, "a").record({"reward/mean": 0.1}, 1, timestamp_ms=1)
    other = Journal(path, "b")
    other.record({"reward/mean": 0.7}, 1, timestamp_ms=2)

    assert other.series("reward/mean") == ([1], [0.7])
    assert Journal(path, "a").series("reward/mean") == ([1], [0.1])


def test_torn_last_line_is_left_out_and_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    journal = Journal(path, "a")
    journal.record({"reward/mean": 0.1}, 1, timestamp_ms=1)
    journal.close()
    whole = path.read_bytes()
    for torn in (
        b'{"run": "a", "st',
        b'{"run": "a", "step": 2, "timestamp_ms": 2, "metrics": {"reward/mean": 0.2}}',
    ):
        path.write_bytes(whole + torn)
        resumed = Journal(path, "a")
        assert resumed.series("reward/mean") == ([1], [0.1])
        resumed.record({"reward/mean": 0.3}, 2, timestamp_ms=3)
        resumed.close()
        assert [batch.metrics["reward/mean"] for batch in read_batches(path, "a")] == [0.1, 0.3]


def test_numbers_that_are_not_finite_stay_valid_json(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    Journal(path, "a").record({"x": math.nan, "y": -math.inf}, 1, timestamp_ms=1)

    assert json.loads(path.read_text(), parse_constant=lambda text: text)["metrics"] == {
        "x": "nan",
        "y": "-inf",
    }
    again = Journal(path, "a")
    assert math.isnan(again.series("x")[1][0])
    assert again.series("y") == ([1], [-math.inf])


def test_offsets_continue_where_reading_stopped(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    journal = Journal(path, "a")
    for step in (1, 2, 3):
        journal.record({"x": step}, step, timestamp_ms=step)
    first = next(iter(read_batches(path, "a")))
    assert [batch.step for batch in read_batches(path, "a", first.end_offset)] == [2, 3]
    assert list(read_batches(path, "a"))[-1].end_offset == path.stat().st_size
