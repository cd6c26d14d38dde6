"""PPO with a critic as a LightningModule: one training step is one iteration."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from relax_lightning.config import ActorConfig, AlgorithmConfig, CriticConfig, ModelConfig, ReferenceConfig
from relax_lightning.data.evaluation import Evaluation
from relax_lightning.data.ppo import PPODataModule
from relax_lightning.data.rollout import Scores
from relax_lightning.megatron.build import build_actor, build_critic, describe_model
from relax_lightning.megatron.reference import Reference, build_reference
from relax_lightning.megatron.role import Actor, Critic, StepResult
from relax_lightning.ppo.batch import Experience, Prompts, Rollouts
from relax_lightning.ppo.callback import HookDispatcher, check_hook_names
from relax_lightning.ppo.log_probs import LogProbs
from relax_lightning.ppo.shaping import RewardShaping
from relax_lightning.ppo.updates import Batching, FiniteGuard, StepLog, importance_statistics, run_steps
from relax_lightning.rollout.engine import HoldsMemory
from relax_lightning.strategies.colocate import ColocateStrategy


class IterationClock(torch.optim.Optimizer):
    """Ticks once an iteration, so that everything Lightning counts in steps counts PPO iterations.

    The real optimizers are Megatron's, inside the roles.
    """

    def __init__(self) -> None:
        super().__init__([torch.nn.Parameter(torch.zeros(1))], {})

    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """One iteration is over."""
        if closure is not None:
            closure()


class PPOModule(LightningModule):
    """Actor and critic, the order of the phases, and the losses. The arguments are the keys under `model`."""

    def __init__(
        self,
        actor: ActorConfig,
        critic: CriticConfig | None = None,
        algorithm: AlgorithmConfig | None = None,
        reference: ReferenceConfig | None = None,
        bridge: str = "auto",
        dtype: str = "auto",
        global_batch_size: int | None = None,
        micro_batch_size: int | None = None,
        max_tokens_per_microbatch: int | None = None,
        max_consecutive_nan: int = 3,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.config = ModelConfig(
            actor=actor,
            critic=critic or CriticConfig(),
            algorithm=algorithm or AlgorithmConfig(),
            reference=reference,
            bridge=bridge,
            dtype=dtype,
            global_batch_size=global_batch_size,
            micro_batch_size=micro_batch_size,
            max_tokens_per_microbatch=max_tokens_per_microbatch,
            max_consecutive_nan=max_consecutive_nan,
        )
        self._guard = FiniteGuard(self.config.max_consecutive_nan)
        self._running: int | None = None
        self._loaded_step = 0
        self._published_steps = -1
        self.iteration_offset = 0
        """Iterations of the checkpoint that the roles were loaded from when it held no trainer."""
        self.read_parts: list[Path] = []
        """Folders of every checkpoint that will be read, a part each, such as `iter_0000012/actor`."""
        self.load_folders: dict[str, Path] = {}
        """A role's Megatron checkpoint to load after building, by role; empty: a fresh start or a whole resume."""
        self.load_weights_only = False
        """Leave optimizers and schedules of `load_folders` alone."""
        self.warm_starts: dict[str, Path] = {}
        """A role's Megatron checkpoint that its weights alone come from in a fresh start, by role."""

    # --- set-up -----------------------------------------------------------------------------------------------

    @property
    def iteration(self) -> int:
        """The iteration that is running, or the last one that ran; counted from 1."""
        if self._running is not None:
            return self._running
        # `validate` loads the weights of an iteration, but not Lightning's counters.
        return self.iteration_offset + max(self.trainer.global_step, self._loaded_step)

    def setup(self, stage: str) -> None:
        """Refuse misspelt hooks, before anything is built."""
        for callback in self.trainer.callbacks:  # pyright: ignore[reportAttributeAccessIssue]
            check_hook_names(callback)
        self.hooks = HookDispatcher(self.trainer, self)
        self._shaping = RewardShaping(self._data.rollout.config, self.config.algorithm)

    def configure_model(self) -> None:
        """Build actor and critic on this rank's device, once."""
        if getattr(self, "actor", None) is not None:
            return
        strategy = self._strategy
        strategy.verify(self.read_parts)
        self.actor: Actor
        self.critic: Critic
        actor_steps, critic_steps = self._num_steps()
        self.actor = build_actor(self.config, strategy.root_device, actor_steps)
        self.actor.model.leave_out(self._data.rollout.vocabulary.absent)
        reference = self._build_reference()
        self._take_in(self.actor)
        strategy.clear_gpu_for_critic()
        self.critic = build_critic(self.config, strategy.root_device, critic_steps)
        self._take_in(self.critic)
        strategy.manifest["model"] = describe_model(self.config, self.actor)
        strategy.manifest["iteration_offset"] = self.iteration_offset
        self._batching = Batching(self.config, on_gpu=strategy.root_device.type == "cuda")
        self._log_probs = LogProbs(self.config.algorithm, self.actor, self._batching, reference)
        self._start_engine()

    def _take_in(self, role: Actor | Critic) -> None:
        """Give a role that was just built its place on the GPU, and the weights it begins with."""
        self._strategy.register(role.name, role)
        trusted = self._strategy.trusts_checkpoints
        if role.name in self.warm_starts:
            role.load(self.warm_starts[role.name], weights_only=True, trusted=trusted)
        if role.name in self.load_folders:
            role.load(self.load_folders[role.name], weights_only=self.load_weights_only, trusted=trusted)

    def _build_reference(self) -> Reference | None:
        """Before the actor is loaded: where nothing else is said, the reference is what it started from."""
        algorithm, reference = self.config.algorithm, self.config.reference
        if reference is None or not (algorithm.kl_coef or algorithm.use_kl_loss):
            return None
        trusted = self._strategy.trusts_checkpoints
        return build_reference(reference, self.actor, self.config.actor.hf_checkpoint, trusted=trusted)

    def _start_engine(self) -> None:
        engine = self._data.rollout.engine
        if not isinstance(engine, HoldsMemory):
            engine.attach(self.actor, self._data.rollout.tokenizer)
            return
        self._strategy.clear_gpu()
        engine.attach(self.actor, self._data.rollout.tokenizer)
        self._strategy.register_engine(engine)

    def _num_steps(self) -> tuple[int, int]:
        """Optimizer steps of actor and critic over the whole training, for their learning-rate decay."""
        samples = self._data.rollout.samples_per_iteration
        per_pass = -(-samples // (self.config.global_batch_size or samples))
        iterations = self.iteration_offset + max(self.trainer.max_steps, 1)
        algorithm = self.config.algorithm
        critic = iterations * per_pass * (algorithm.num_critic_epochs or algorithm.num_ppo_epochs)
        trained = iterations
        if self.config.actor.optimizer.decay != "constant":
            trained = sum(self.hooks.should_update_actor(iteration) for iteration in range(1, iterations + 1))
        return max(trained, 1) * per_pass * algorithm.num_ppo_epochs, critic

    @property
    def _strategy(self) -> ColocateStrategy:
        strategy = self.trainer.strategy
        assert isinstance(strategy, ColocateStrategy)
        return strategy

    @property
    def _data(self) -> PPODataModule:
        data = self.trainer.datamodule  # pyright: ignore[reportAttributeAccessIssue]
        assert isinstance(data, PPODataModule)
        return data

    def configure_optimizers(self) -> IterationClock:
        """The clock; the optimizers that train are the roles' own."""
        return IterationClock()

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Prompts stay where they are: nothing computes with them on the device."""
        return batch

    def on_train_start(self) -> None:
        """The weights are loaded by now: the engine takes them."""
        self._strategy.make_room("publish")
        self._to_engine()

    def on_validation_start(self) -> None:
        """`validate` alone has published nothing yet."""
        self._publish_lost()

    # --- the iteration ----------------------------------------------------------------------------------------

    def training_step(self, prompts: Prompts, batch_idx: int) -> None:
        """One PPO iteration: rollout, values and advantages, critic, actor, publication."""
        self._running = self.iteration + 1
        try:
            self._run_iteration(prompts)
        finally:
            self._running = None

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """After all callbacks."""
        self._strategy.agree_to_stop(self.trainer)

    def _run_iteration(self, prompts: Prompts) -> None:
        start = perf_counter()
        with self._strategy.iteration():
            self.hooks.fire("on_iteration_start", prompts)
            self._publish_lost()
            rollouts, metrics = self._rollout(prompts)
            experience, more = self._learn_critic(rollouts, *self._log_probs_for_rewards(rollouts))
            metrics |= more
            if self.hooks.should_update_actor(self.iteration):
                self._shaping.steer_kl()
                metrics |= self._learn_actor(experience)
            self._publish()
        self._tick()
        metrics |= Scores.of(rollouts).metrics() | self._data.rollout.reward_metrics
        metrics |= self._strategy.phase_metrics
        num_tokens = int(rollouts.prompt_lengths.sum() + rollouts.response_lengths.sum())
        metrics["perf/tokens_per_second"] = num_tokens / (perf_counter() - start)
        self.log_dict(metrics, logger=False)
        self.hooks.fire("on_iteration_end", metrics)

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        self.hooks.fire("on_phase_start", name)
        start = perf_counter()
        with self._strategy.phase(name):
            yield
        self.hooks.fire("on_phase_end", name, perf_counter() - start)

    def _rollout(self, prompts: Prompts) -> tuple[Rollouts, dict[str, float]]:
        with self._phase("rollout"):
            rollouts = self._data.rollout.generate(prompts, self.iteration)
            mask, metrics = self._shaping.learnable(rollouts)
            rollouts = replace(rollouts, response_mask=mask)
            if self.config.algorithm.truncation == "mask":
                learnable = rollouts.response_mask & ~rollouts.truncated[:, None]
                rollouts = replace(rollouts, response_mask=learnable)
            self.hooks.fire("on_rollout_end", rollouts)
        return rollouts, metrics

    def _log_probs_for_rewards(self, rollouts: Rollouts) -> tuple[Tensor, Tensor] | tuple[None, None]:
        if not self._log_probs.are_for_rewards:
            return None, None
        with self._phase("reference"):
            return self._log_probs.for_rewards(rollouts)

    def _learn_critic(
        self, rollouts: Rollouts, old_log_probs: Tensor | None, ref_log_probs: Tensor | None
    ) -> tuple[Experience, dict[str, float]]:
        algorithm = self.config.algorithm
        with self._phase("critic"):
            groups = self._batching.groups(rollouts, list(range(len(rollouts))), self.critic.groups)
            bootstrap = algorithm.truncation == "bootstrap"
            values, final_values = self.critic.values(rollouts, groups, with_final=bootstrap)
            self.hooks.fire("on_values_computed", rollouts, values)
            rewards, metrics = self._shaping.token_rewards(rollouts, old_log_probs, ref_log_probs)
            experience, more = self._data.advantages.compute(
                rollouts, values, final_values, algorithm, rewards=rewards, iteration=self.iteration
            )
            metrics |= more
            if old_log_probs is not None:
                experience = replace(experience, old_log_probs=old_log_probs, ref_log_probs=ref_log_probs)
            self.hooks.fire("on_advantages_computed", experience)
            num_epochs = algorithm.num_critic_epochs or algorithm.num_ppo_epochs
            log = self._run_steps(self.critic, experience, num_epochs)
        return experience, metrics | log.metrics("value_loss")

    def _learn_actor(self, experience: Experience) -> dict[str, float]:
        algorithm = self.config.algorithm
        with self._phase("actor"):
            experience = self._log_probs.for_losses(experience)
            log = self._run_steps(self.actor, experience, algorithm.num_ppo_epochs)
        return log.metrics("pg_loss") | log.mismatch() | importance_statistics(experience, algorithm)

    def _publish(self) -> None:
        if self.actor.num_steps_done == self._published_steps and all(
            self.actor.groups.peers.gather(self._strategy.engine_keeps_weights)
        ):
            return
        with self._phase("publish"):
            self.hooks.fire("on_weights_published", self._to_engine())

    def _publish_lost(self) -> None:
        """Publish again where an engine has given up its weights since: a checkpoint brings both roles to the GPU."""
        engine = self._data.rollout.engine
        is_lost = isinstance(engine, HoldsMemory) and any(self._strategy.peers.gather(engine.weights_lost))
        if is_lost or engine.weight_version == 0:
            self._strategy.make_room("publish")
            self._to_engine()

    def _to_engine(self) -> int:
        """Publish the actor's weights; the GPU is ready for it."""
        version = self._data.rollout.engine.publish()
        self._published_steps = self.actor.num_steps_done
        if self._strategy.verify_publish:
            self._data.rollout.engine.verify()
        return version

    def _run_steps(self, role: Actor | Critic, experience: Experience, num_epochs: int) -> StepLog:
        def before_step(step: int) -> float:
            self.hooks.fire(f"on_before_{role.name}_step", step)
            return self.hooks.lr_scale(role.name, step)

        def after_step(result: StepResult, rows: list[int]) -> bool:
            sample_ids = experience.rollouts.sample_ids[rows].tolist()
            warning = self._guard.check(result, role.name, self.iteration, sample_ids)
            if warning is not None:
                rank_zero_warn(warning)
            limit = self.config.algorithm.target_kl
            return role.name == "critic" or limit is None or result.metrics["ppo_kl_k3"] <= limit

        seed = hash((self._data.seed, self.iteration, role.name == "actor")) & 0x7FFF_FFFF
        steps = self._batching.steps(len(experience), num_epochs, seed)
        return run_steps(
            role, experience, self._batching, steps, self.config.algorithm, before_step, after_step
        )

    def _tick(self) -> None:
        clock = self.optimizers()
        assert not isinstance(clock, list)
        clock.step()

    def validation_step(self, prompts: Prompts, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Generate and score one batch of a validation set; what is left of a set that failed is skipped."""
        name = self._data.rollout.validation_names[dataloader_idx]
        if name in self._evaluation.failed:
            return
        with self._evaluation.attempt(name):
            self._strategy.make_room("rollout")
            self._evaluation.add(name, self._data.rollout.evaluate(prompts, name))

    def on_validation_epoch_start(self) -> None:
        """Forget the evaluation before."""
        rollout, trainer = self._data.rollout, self.trainer
        # `validate` has nothing to go on with, and a sanity check of a few batches is there to fail.
        is_check = trainer.sanity_checking and trainer.num_sanity_val_steps != math.inf
        raises = rollout.on_validation_error == "raise" or trainer.state.fn != TrainerFn.FITTING or is_check
        self._evaluation = Evaluation(rollout.validation, raises=raises, where=f"iteration {self.iteration}")

    def on_validation_epoch_end(self) -> None:
        """Statistics over all samples of each set, for a mean of batches would weigh them wrongly."""
        self.log_dict(self._evaluation.metrics(), logger=False)

    # --- checkpoints ------------------------------------------------------------------------------------------

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the random states that Lightning leaves out."""
        checkpoint["random_states"] = {
            "python": random.getstate(),
            "numpy": np.random.get_state(),
            "torch": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        }
        checkpoint["consecutive_nan"] = self._guard.consecutive
        checkpoint["iteration_offset"] = self.iteration_offset
        checkpoint["shaping"] = self._shaping.state_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the random states."""
        states = checkpoint["random_states"]
        random.setstate(states["python"])
        np.random.set_state(states["numpy"])
        torch.set_rng_state(states["torch"])
        if states["cuda"] and len(states["cuda"]) == torch.cuda.device_count():
            torch.cuda.set_rng_state_all(states["cuda"])
        self._guard.consecutive = checkpoint["consecutive_nan"]
        self.iteration_offset = checkpoint["iteration_offset"]
        self._loaded_step = checkpoint["global_step"]
        self._shaping.load_state_dict(checkpoint["shaping"])
