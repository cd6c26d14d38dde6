import io
import logging
import sys

from rich.console import Console

from relax_lightning.tracking.live import LiveProgress, make_progress
from relax_lightning.tracking.progress import LineProgress, Progress, TimeLeft, iteration_text

CRITIC_ONLY = {
    "reward/mean": 0.5125, "response/length_mean": 5.25, "critic/value_loss": 0.08125,
    "critic/explained_variance": 0.42, "critic/value_clipfrac": 0.05, "perf/tokens_per_second": 12345.6,
}  # fmt: skip
WHOLE = {
    **CRITIC_ONLY, "actor/pg_loss": -0.0123, "actor/pg_clipfrac": 0.012, "actor/ppo_kl": 0.0031, "actor/entropy": 1.23,
}  # fmt: skip


def test_one_aligned_line_an_iteration_and_one_a_validation() -> None:
    stream = io.StringIO()
    progress = LineProgress(stream)
    progress.start(1, 160)
    progress.phase("rollout")
    progress.iteration(1, CRITIC_ONLY)
    progress.phase("actor")
    progress.iteration(2, WHOLE)
    progress.validation(2, {"val/sums/reward_mean": 0.5, "val/sums/length_mean": 5.0})
    progress.stop()

    first, second, validation = stream.getvalue().splitlines()
    assert first.startswith(
        "iteration   1/160  reward  0.512  length    5.2  value_loss  0.0813  expl_var  0.420"
    )
    assert "pg_loss" not in first and "ppo_kl" not in first
    assert "pg_loss -0.0123  pg_clip 0.012  ppo_kl  0.0031  entropy  1.230" in second
    assert first.index("tokens/s  12,346") == second.index("tokens/s  12,346")
    assert "left 0:0" in second
    assert validation == "validation   2/160  sums/length_mean 5  sums/reward_mean 0.5"


def test_time_left_counts_iterations_that_remain() -> None:
    left = TimeLeft()
    assert left.seconds is None
    left.start(4, 10)
    assert left.seconds is None
    left.tick(4)
    one = left.seconds
    assert one is not None and one >= 0
    for iteration in range(5, 11):
        left.tick(iteration)
    assert left.seconds == 0
    left.start(1, None)
    left.tick(1)
    assert left.seconds is None
    assert iteration_text(7, None) == "    7" and iteration_text(7, 10) == " 7/10"


def test_live_table_shows_all_and_survives_prints() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100, color_system=None)
    handler = logging.StreamHandler(sys.stderr)
    logging.getLogger("lightning.pytorch").addHandler(handler)
    progress = LiveProgress(console)
    progress.start(1, 160)
    stream = handler.stream
    print("printed by a user")
    handler.emit(logging.makeLogRecord({"msg": "logged by lightning"}))
    progress.phase("critic")
    progress.iteration(12, CRITIC_ONLY)
    progress.validation(12, {"val/sums/reward_mean": 0.5})
    progress.stop()
    progress.stop()
    logging.getLogger("lightning.pytorch").removeHandler(handler)

    assert stream is not handler.stream is sys.stderr
    assert isinstance(console.file, io.StringIO)
    drawn = console.file.getvalue()
    assert "printed by a user" in drawn and "logged by lightning" in drawn
    last = drawn[drawn.rindex("relax-lightning") :]
    for text in (
        "12/160",
        "rollout",
        "critic",
        "actor",
        "0.512",
        "0.0813",
        "0.420",
        "sums/reward_mean 0.5",
        "ppo_kl",
    ):
        assert text in last, text
    lines = last.splitlines()
    (reward,) = [line for line in lines if "response length" not in line and "reward  " in line]
    assert reward.count(" - ") == 1  # the actor did not run: its pg_loss beside the reward is a dash
    assert drawn.endswith("\x1b[?25h")  # the cursor is given back


def test_progress_fits_where_it_is_shown(monkeypatch) -> None:
    assert type(make_progress(is_enabled=False)) is Progress
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert isinstance(make_progress(), LineProgress)
