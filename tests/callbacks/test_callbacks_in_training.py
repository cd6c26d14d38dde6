"""MetricLogger, CurvePlot, PhaseTimeline and the two warm-ups in Lightning's real Trainer, one process."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader

from callbacks.critic_warmup import CriticOnlyWarmup
from callbacks.curves import CurvePlot
from callbacks.lr_warmup import LRWarmup
from callbacks.metrics import MetricLogger
from callbacks.timeline import PhaseTimeline
from relax_lightning.config import WarmupConfig
from relax_lightning.ppo.batch import Prompts, Rollouts
from relax_lightning.ppo.callback import HookDispatcher, PPOCallback, check_hook_names
from relax_lightning.tracking.journal_logger import JournalLogger

PROMPTS = Prompts(ids=(0,), token_ids=((1,),), texts=("3 + 4 =",), labels=("7",), metadata=({},))


def make_rollouts(num_samples: int = 3) -> Rollouts:
    return Rollouts(
        sample_ids=torch.arange(num_samples),
        prompt_tokens=torch.ones(num_samples, 1, dtype=torch.int64),
        prompt_lengths=torch.ones(num_samples, dtype=torch.int64),
        response_tokens=torch.ones(num_samples, 2, dtype=torch.int64),
        response_lengths=torch.arange(num_samples),
        response_mask=torch.ones(num_samples, 2, dtype=torch.bool),
        rollout_log_probs=torch.zeros(num_samples, 2),
        rewards=torch.linspace(0, 1, num_samples),
        finish_reasons=("stop",) * num_samples,
        prompts=("3 + 4 =",) * num_samples,
        responses=tuple(f"ü{i}" for i in range(num_samples)),
        labels=("7", torch.tensor(7), None)[:num_samples],
        temperature=1.0,
        weight_version=0,
    )


class ScriptedModule(LightningModule):
    """Fires the hooks of PPO iterations with invented numbers; `fail_at` raises in that iteration's critic phase."""

    def __init__(self, fail_at: int = 0, error: type[BaseException] = RuntimeError) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.iteration = 0
        self.actor_updates: list[bool] = []
        self._fail_at, self._error = fail_at, error

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.0)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.iteration = checkpoint["global_step"]

    def training_step(self, batch: Any, batch_idx: int) -> None:
        self.iteration = self.trainer.global_step + 1
        hooks = HookDispatcher(self.trainer, self)
        hooks.fire("on_iteration_start", PROMPTS)
        hooks.fire("on_phase_start", "rollout")
        hooks.fire("on_rollout_end", make_rollouts())
        hooks.fire("on_phase_end", "rollout", 0.25)
        hooks.fire("on_phase_start", "critic")
        print("a user's print")
        if self.iteration == self._fail_at:
            raise self._error("broken on purpose")
        hooks.fire("on_phase_end", "critic", 0.125)
        metrics = {
            "reward/mean": self.iteration / 10,
            "critic/value_loss": 0.5,
            "memory/critic_gpu_peak_gib": 2.5,
        }
        self.actor_updates.append(hooks.should_update_actor(self.iteration))
        if self.actor_updates[-1]:
            metrics["actor/pg_loss"] = -0.25
        self.optimizers().step()  # pyright: ignore
        hooks.fire("on_iteration_end", metrics)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val/sums/length_mean", 4.0, logger=False)

    def on_validation_epoch_end(self) -> None:
        self.log("val/sums/reward_mean", 0.75, logger=False)


Fit = Callable[..., tuple[Trainer, ScriptedModule, JournalLogger]]


@pytest.fixture
def fit(tmp_path: Path) -> Fit:
    def run(
        steps: int, *, resume: str | None = None, fail_at: int = 0, error: type[BaseException] = RuntimeError
    ):
        logger = JournalLogger(tmp_path, resume_run_id=resume)
        module = ScriptedModule(fail_at, error)
        callbacks = [CriticOnlyWarmup(2), MetricLogger(samples_per_table=2), CurvePlot(), PhaseTimeline()]
        trainer = Trainer(
            max_steps=steps, default_root_dir=tmp_path, logger=logger, callbacks=callbacks, accelerator="cpu",
            val_check_interval=2, check_val_every_n_epoch=None, enable_progress_bar=False, enable_model_summary=False,
            enable_checkpointing=False, num_sanity_val_steps=1,
        )  # fmt: skip
        loader = DataLoader(range(100))  # pyright: ignore[reportArgumentType]
        checkpoint = tmp_path / "trainer.ckpt"
        try:
            trainer.fit(module, loader, DataLoader(range(1)), ckpt_path=checkpoint if resume else None)  # pyright: ignore
            trainer.save_checkpoint(checkpoint)
        finally:
            run.last = trainer, module, logger  # pyright: ignore[reportFunctionMemberAccess]
        return trainer, module, logger

    return run


def events(folder: Path, name: str) -> list[dict[str, Any]]:
    trace = json.loads((folder / "timeline.json").read_text())
    return [event for event in trace["traceEvents"] if event["ph"] == "X" and event["name"] == name]


def test_training_and_its_resume_leave_a_whole_record(
    fit: Fit, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    _, module, logger = fit(4)
    output = capsys.readouterr().out
    assert module.actor_updates == [False, False, True, True]
    assert logger.journal.series("reward/mean") == ([1, 2, 3, 4], [0.1, 0.2, 0.3, 0.4])
    assert logger.journal.series("actor/pg_loss")[0] == [3, 4]
    assert logger.journal.series("val/sums/reward_mean") == ([2, 4], [0.75, 0.75])
    assert logger.journal.series("val/sums/length_mean") == ([2, 4], [4.0, 4.0])

    lines = output.splitlines()
    assert [line.split("  ")[0] for line in lines if line.startswith("iteration ")] == [
        f"iteration {k}/4" for k in (1, 2, 3, 4)
    ]
    assert sum(line.startswith("validation ") for line in lines) == 2  # the sanity check is no validation
    assert sum("pg_loss" in line for line in lines) == 2
    summary = output[output.index("run folder") :]
    for text in (
        str(tmp_path),
        "4, 0:00 of wall time",
        "last reward  0.400",
        "critic_gpu 2.50 GiB",
        "metrics.jsonl",
    ):
        assert text in summary, text

    rows = json.loads((tmp_path / "samples" / "iter_0000004.json").read_text())
    first = {
        "prompt": "3 + 4 =",
        "response": "ü0",
        "label": "7",
        "reward": 0.0,
        "length": 0,
        "finish_reason": "stop",
    }
    assert rows[0] == first and rows[1]["label"] == "tensor(7)" and len(rows) == 2
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert [event["dur"] for event in events(tmp_path, "critic")] == [125_000] * 4
    assert [event["args"]["iteration"] for event in events(tmp_path, "iteration")] == [1, 2, 3, 4]
    assert len(events(tmp_path, "validation")) == 2

    fit(6, resume=logger.run_key)
    (_, _, resumed) = fit.last  # pyright: ignore[reportFunctionMemberAccess]
    assert resumed.journal.series("reward/mean")[0] == [1, 2, 3, 4, 5, 6]
    assert [event["args"]["iteration"] for event in events(tmp_path, "iteration")] == [1, 2, 3, 4, 5, 6]
    assert "6 (4 of them before this start)" in capsys.readouterr().out

    fit(1)
    assert [event["args"]["iteration"] for event in events(tmp_path, "iteration")] == [1]


def test_exception_leaves_curves_timeline_and_a_clean_screen(fit: Fit, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="broken on purpose"):
        fit(4, fail_at=3)
    assert (tmp_path / "curves.png").exists()
    assert len(events(tmp_path, "iteration")) == 2
    assert len(events(tmp_path, "rollout")) == 3
    _, _, logger = fit.last  # pyright: ignore[reportFunctionMemberAccess]
    assert logger.journal.series("reward/mean")[0] == [1, 2]
    assert logger.end_status is None

    with pytest.raises(SystemExit):
        fit(4, fail_at=2, error=KeyboardInterrupt)
    assert fit.last[2].end_status == "KILLED"  # pyright: ignore[reportFunctionMemberAccess]


def test_a_resume_puts_aside_what_it_trains_again(fit: Fit, tmp_path: Path) -> None:
    _, _, logger = fit(2)
    saved = (tmp_path / "trainer.ckpt").read_bytes()
    fit(4, resume=logger.run_key)
    lost = JournalLogger(tmp_path, logger.run_key)
    lost.log_metrics({"actor/lr": 0.1}, 3)
    lost.finalize("failed")
    (tmp_path / "trainer.ckpt").write_bytes(saved)
    _, _, resumed = fit(3, resume=logger.run_key)
    assert resumed.journal.series("reward/mean") == ([1, 2, 3], [0.1, 0.2, 0.3])
    assert "actor/lr" not in resumed.journal.names
    assert "actor/lr" in (tmp_path / "metrics.lost.jsonl").read_text()


def test_what_fails_after_an_error_does_not_hide_it(
    fit: Fit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Folders where files belong: neither the picture, nor the timeline, nor the spool can be written.
    for name in (".curves.png.partial", ".timeline.json.partial"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(
        JournalLogger, "_finish", lambda logger, status: (tmp_path / "no" / "x").write_text("")
    )
    with pytest.raises(RuntimeError, match="broken on purpose") as raised:
        fit(4, fail_at=3)
    assert raised.value.__context__ is None
    said = [record.getMessage() for record in caplog.records if "failed too" in record.getMessage()]
    assert [text.split()[0] for text in said] == ["CurvePlot", "PhaseTimeline", "JournalLogger"]
    assert not any("\n" in text for text in said)


def test_warmups_answer_as_specified(fit: Fit) -> None:
    trainer, module, _ = fit(1)
    warmup = LRWarmup(actor=WarmupConfig(num_iters=4))
    # (i + 1) / 4 for optimizer steps 0, 1, 2, 3, then 1; the critic has no warm-up.
    assert [warmup.lr_scale(trainer, module, "actor", i) for i in range(6)] == [
        0.25,
        0.5,
        0.75,
        1.0,
        1.0,
        1.0,
    ]
    assert [warmup.lr_scale(trainer, module, "critic", i) for i in range(2)] == [1.0, 1.0]
    assert [CriticOnlyWarmup(2).should_update_actor(trainer, module, i) for i in (1, 2, 3)] == [
        False,
        False,
        True,
    ]
    assert CriticOnlyWarmup().should_update_actor(trainer, module, 1)
    with pytest.raises(
        ValueError, match=r"callbacks\.critic_only_warmup\.num_steps: wanted 0 or more, got -1"
    ):
        CriticOnlyWarmup(-1)
    with pytest.raises(ValueError, match=r"callbacks\.metrics\.samples_per_table: wanted 0 or more, got -1"):
        MetricLogger(-1)
    for callback in (warmup, CriticOnlyWarmup(), MetricLogger(), CurvePlot(), PhaseTimeline()):
        check_hook_names(callback)


def test_questions_that_are_not_answered_are_refused(fit: Fit) -> None:
    trainer, module, _ = fit(1)
    silent = type("Silent", (PPOCallback,), {"should_update_actor": print_, "lr_scale": print_})()
    trainer.callbacks.append(silent)
    hooks = HookDispatcher(trainer, module)
    with pytest.raises(ValueError, match=r"Silent\.should_update_actor\(3\): wanted True or False, got None"):
        hooks.should_update_actor(3)
    with pytest.raises(ValueError, match=r"Silent\.lr_scale\('critic', 2\): wanted a factor .*got None"):
        hooks.lr_scale("critic", 2)


def print_(*_: Any) -> None:
    """Answers nothing."""
