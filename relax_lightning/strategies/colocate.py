"""One GPU pool for rollout, critic and actor in turn: who holds it, and how the pair is saved and loaded."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from lightning.pytorch import Trainer
from lightning.pytorch.plugins.environments import ClusterEnvironment
from lightning.pytorch.strategies import ParallelStrategy
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor
from torch.distributed.checkpoint import CheckpointException

from relax_lightning import __version__
from relax_lightning.checkpoints.checksums import changed_files, is_listed, refuse_misfits
from relax_lightning.checkpoints.folders import iteration_of, read_folders
from relax_lightning.config import ParallelConfig
from relax_lightning.distributed.peers import ALONE, Peers
from relax_lightning.megatron.groups import initialize_groups
from relax_lightning.plan.files import nearest_existing
from relax_lightning.rollout.engine import HoldsMemory
from relax_lightning.run.gpu_memory import use_growing_segments
from relax_lightning.strategies.environment import cluster_environment as surroundings
from relax_lightning.strategies.offload import EngineResident, RoleResident, Trained
from relax_lightning.strategies.pair import PairedCheckpoints
from relax_lightning.strategies.pool import GpuPool
from relax_lightning.strategies.trainer_state import PICKLED, STATE, TrainerState, read_state

log = logging.getLogger("relax_lightning")

OUT_OF_MEMORY = (
    "out of GPU memory in the {phase} phase. Three remedies: give actor, critic and rollout equal shapes in "
    "cluster.resources, lower data.rollout.engine.init_args.mem_fraction_static, or raise "
    "model.{{actor,critic}}.optimizer.cpu_offload_fraction"
)


def _not_saved(iteration: int, roots: Iterable[Path], error: BaseException) -> RuntimeError:
    places = []
    for root in dict.fromkeys(map(Path.absolute, roots)):
        free = shutil.disk_usage(nearest_existing(root)).free
        places.append(f"{root}, where {free / 2**20:,.0f} MiB are free")
    # Megatron's writers put their reason last.
    lines = [line for line in str(error).splitlines() if line.strip(" )")]
    reason = lines[-1] if lines else type(error).__name__
    return RuntimeError(
        f"iteration {iteration} cannot be saved in {' and '.join(places)}: {reason}; the checkpoints before it are "
        "whole"
    )


class Role(Trained, Protocol):
    """What the strategy knows of actor and critic: that they hold tensors, and can be written and read."""

    def save(self, directory: Path) -> None:
        """Write everything."""
        ...

    def load(self, directory: Path, *, weights_only: bool = False, trusted: bool = False) -> None:
        """Read everything, or the weights."""
        ...


class ColocateStrategy(ParallelStrategy):
    """Lightning's strategy for actor, critic and rollout engine on the same devices.

    Args:
        device: This rank's device.
        parallel: How the actor is cut over ranks.
        critic_parallel: How the critic is; None: as the actor.
        seed: Of Megatron's own random states.
        save_root: Where the actor and the trainer are saved.
        critic_save_root: Where the critic is saved; None: with the actor.
        critic_load_root: Where the critic of a resumed checkpoint lies when not beside the actor.
        verify_publish: Compare the engine's weights with the actor's after every publication.
        verify_checkpoints: Compare what is loaded with its checksums.
        trust_checkpoints: Run the code that a checkpoint may hold.
        cluster_environment: Where this rank stands; None: as the environment's variables say, else alone.
        pool: Who may be on the GPU when; None: everything stays.
        predicted: Planned bytes of the GPU by phase, everything on it counted.
        critic_size: Planned bytes of the critic on it.
    """

    strategy_name = "colocate"

    def __init__(
        self,
        device: torch.device,
        *,
        parallel: ParallelConfig | None = None,
        critic_parallel: ParallelConfig | None = None,
        seed: int = 0,
        save_root: str | Path = "checkpoints",
        critic_save_root: str | Path | None = None,
        critic_load_root: str | Path | None = None,
        verify_publish: bool = False,
        verify_checkpoints: bool = True,
        trust_checkpoints: bool = False,
        cluster_environment: ClusterEnvironment | None = None,
        pool: GpuPool | None = None,
        predicted: Mapping[str, int] | None = None,
        critic_size: int = 0,
    ) -> None:
        super().__init__(parallel_devices=[device], cluster_environment=cluster_environment or surroundings())
        rank_zero_only.rank = self.global_rank  # pyright: ignore[reportFunctionMemberAccess]
        self._device = device
        self._parallel = parallel or ParallelConfig()
        self._critic_parallel = critic_parallel
        self._seed = seed
        self._roots = (Path(save_root), Path(critic_save_root or save_root))
        self._critic_load_root = Path(critic_load_root or critic_save_root or save_root)
        self._pool = pool or GpuPool()
        self._predicted = predicted or {}
        self._critic_size = critic_size
        self._roles: dict[str, Role] = {}
        self._resume_folder: Path | None = None
        self.peers: Peers = ALONE
        """All processes of the job, once `setup_environment` has joined them."""
        self.verify_publish = verify_publish
        """Whether the engine's weights are compared with the actor's after every publication."""
        self._verifies_checkpoints = verify_checkpoints
        self.trusts_checkpoints = trust_checkpoints
        """Whether the code that a checkpoint may hold is run."""
        self.is_dirty = False
        """Whether an iteration is under way, or one was broken off since the roles were built or loaded: then actor
        and critic may not belong together."""
        self.phase_metrics: dict[str, float] = {}
        """`phase/*_seconds` and `memory/*` of the iteration so far."""
        self.manifest: dict[str, Any] = {}
        """What else goes into the manifest of a checkpoint: what the model is, and the tracking run to continue."""
        self.before_first_save: Callable[[], None] = lambda: None
        """Makes way for the first checkpoint; called on every rank."""

    # --- phases -----------------------------------------------------------------------------------------------

    @contextmanager
    def iteration(self) -> Iterator[None]:
        """One PPO iteration. While it runs, and after one broke off, nothing can be saved."""
        self.phase_metrics = {"phase/switch_seconds": 0.0}
        one_broke_off = self.is_dirty
        self.is_dirty = True
        yield
        self.is_dirty = one_broke_off

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Own the device for one phase: `rollout`, `reference`, `critic`, `actor` or `publish`.

        Raises:
            RuntimeError: The device ran out of memory; names the remedies.
        """
        try:
            self.make_room(name)
            if self._on_gpu:
                torch.cuda.reset_peak_memory_stats(self._device)
            start = time.perf_counter()
            yield
            if self._on_gpu:
                torch.cuda.synchronize(self._device)
            self.phase_metrics[f"phase/{name}_seconds"] = time.perf_counter() - start
        except torch.OutOfMemoryError as error:
            raise RuntimeError(OUT_OF_MEMORY.format(phase=name)) from error
        if self._on_gpu:
            self.phase_metrics |= self._memory_metrics(name)

    def make_room(self, phase: str) -> None:
        """Move what the phase does not use off the GPU, where it must go, and bring back what it uses."""
        start = time.perf_counter()
        self._pool.enter(phase)
        switched = self.phase_metrics.get("phase/switch_seconds", 0.0) + time.perf_counter() - start
        self.phase_metrics["phase/switch_seconds"] = switched

    @property
    def _on_gpu(self) -> bool:
        return self._device.type == "cuda"

    def _memory_metrics(self, phase: str) -> dict[str, float]:
        """Peak of the whole GPU: this rank's own, and what the driver says that others and CUDA itself hold."""
        free, total = torch.cuda.mem_get_info(self._device)
        others = total - free - torch.cuda.memory_reserved(self._device)
        peak = torch.cuda.max_memory_reserved(self._device) + others
        metrics = {f"memory/{phase}_gpu_peak_gib": peak / 2**30}
        if phase in self._predicted:
            metrics[f"memory/{phase}_gpu_predicted_gib"] = self._predicted[phase] / 2**30
        return metrics

    # --- devices and groups -----------------------------------------------------------------------------------

    @property
    def root_device(self) -> torch.device:
        """This rank's device."""
        return self._device

    def setup_environment(self) -> None:
        """Join the process groups before anything is built."""
        super().setup_environment()
        if self._on_gpu:
            use_growing_segments()
        self.peers = initialize_groups(self._parallel, self._device, self._seed, critic=self._critic_parallel)
        self._pool.together = self.peers.collect

    def model_to_device(self) -> None:
        """Nothing: the roles live where they were built, and the module has no parameters of its own."""

    def barrier(self, name: str | None = None) -> None:
        """Wait for all ranks."""
        if dist.is_initialized() and self.world_size > 1:
            dist.barrier(device_ids=[self._device.index] if self._on_gpu else None)

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """The object of rank `src`, on every rank."""
        return self.peers.gather(obj if self.global_rank == src else None)[src]

    def agree_to_stop(self, trainer: Trainer) -> None:
        """Stop all ranks where a callback of one of them asked for it: the others would wait for it for ever."""
        trainer.should_stop = bool(self.peers.largest(int(trainer.should_stop)))

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """Sum or mean of a tensor over all ranks."""
        if self.world_size == 1 or not isinstance(tensor, Tensor):
            return tensor
        dist.all_reduce(tensor, group=group)
        return tensor / self.world_size if reduce_op in ("mean", "avg") else tensor

    # --- saving and loading -----------------------------------------------------------------------------------

    @cached_property
    def checkpoints(self) -> PairedCheckpoints:
        """The run's checkpoints on disk, once `setup_environment` is through."""
        return PairedCheckpoints(
            *self._roots,
            is_writer=self.is_global_zero,
            barrier=self.barrier,
            share=(self.peers.rank, self.peers.size),
            gather=self.peers.gather,
        )

    def parts_of(self, checkpoint: str | Path) -> list[Path]:
        """The folders of `<root>/iter_N` that a resume reads: of both roles, and the trainer's.

        Raises:
            ValueError: A half of the pair is missing.
        """
        folder = Path(checkpoint)
        return [*read_folders(folder, self._critic_load_root).values(), folder / "trainer"]

    def verify(self, parts: Iterable[Path]) -> None:
        """Compare what will be loaded with its checksums, before anything is built; every rank calls it.

        Args:
            parts: Folders, such as `iter_0000012/actor`.

        Raises:
            ValueError: Names the first file that is not what was saved.
        """
        listed = list(dict.fromkeys(parts))
        for part in listed:
            refuse_misfits(part)
        if not self._verifies_checkpoints:
            return
        changed = changed_files(listed, (self.peers.rank, self.peers.size))
        if found := [line for lines in self.peers.gather(changed) for line in lines]:
            raise ValueError(found[0])
        if self.is_global_zero:
            for part in (part for part in listed if part.is_dir() and not is_listed(part)):
                log.warning("%s has no checksums: it is loaded unverified", part)

    def register(self, name: str, role: Role) -> None:
        """Make a role part of every checkpoint, and of what shares the GPU."""
        self._roles[name] = role
        self._pool.register(name, RoleResident(role))

    def clear_gpu(self) -> None:
        """Make room for an engine that is about to start."""
        self._pool.clear()

    def clear_gpu_for_critic(self) -> None:
        """Make room for the critic, which is about to be built, where the GPU does not hold both roles at once."""
        self._pool.clear(room_for=self._critic_size)

    def register_engine(self, engine: HoldsMemory) -> None:
        """Let an engine with memory of its own share the GPU; waits until it is up."""
        if engine.memory():
            self._pool.register("engine", EngineResident(engine))
            engine.borrow_policy(partial(self._pool.borrowed, "actor", "weights"), self._pool.vacated)

    @property
    def engine_keeps_weights(self) -> bool:
        """Whether the engine of this rank holds between two phases what was published to it."""
        return self._pool.engine_keeps_weights

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        """Save actor, critic and trainer as one pair under `<save root>/iter_N`, N taken from `filepath`.

        Raises:
            RuntimeError: An iteration is under way or was broken off, or the disk refused.
            ValueError: `filepath` is no `iter_N` folder.
        """
        if self.is_dirty:
            raise RuntimeError(
                "refused to save in the middle of an iteration, or after one broke off: the critic may be one step "
                "ahead of the actor; save after on_iteration_end, or load a checkpoint first"
            )
        iteration = iteration_of(filepath)
        if iteration is None:
            raise ValueError(f"wanted a checkpoint path that ends in iter_0000012 or alike, got {filepath}")

        # On every rank and first: what cannot be saved is found before anything is written.
        state = TrainerState(checkpoint)

        def write_trainer(folder: Path) -> None:
            folder.mkdir()
            state.write(folder)

        def write_role(name: str, folder: Path) -> None:
            self.make_room(name)
            self._roles[name].save(folder)

        self.before_first_save()
        self.before_first_save = lambda: None
        try:
            self.checkpoints.save(iteration, write_role, write_trainer, self._manifest())
        except TimeoutError:
            raise  # the engine's, which makes way for the role
        except (OSError, CheckpointException) as error:
            raise _not_saved(iteration, self._roots, error) from error

    def _manifest(self) -> dict[str, Any]:
        versions = {name: version(name) for name in ("lightning", "megatron-core", "torch")}
        versions["relax-lightning"] = __version__
        parallel = {
            "tensor": self._parallel.tensor,
            "pipeline": self._parallel.pipeline,
            "world": self.world_size,
        }
        return {"versions": versions, "parallel": parallel, **self.manifest}

    @property
    def restore_checkpoint_after_setup(self) -> bool:
        """The roles are built in `configure_model` and loaded after it."""
        return True

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """The trainer's part of `<root>/iter_N`; the roles follow in `load_model_state_dict`.

        Raises:
            ValueError: A half of the pair or the trainer's part is missing.
        """
        folder = Path(checkpoint_path)
        read_folders(folder, self._critic_load_root)
        if not any((folder / "trainer" / name).is_file() for name in (STATE, PICKLED)):
            raise ValueError(
                f"{folder} has no trainer state (wanted {folder / 'trainer' / STATE}); give a checkpoint that fit saved"
            )
        self._resume_folder = folder
        return read_state(folder / "trainer", trusted=self.trusts_checkpoints)

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Load the roles of the checkpoint that `load_checkpoint` opened."""
        assert self._resume_folder is not None
        for name, folder in read_folders(self._resume_folder, self._critic_load_root).items():
            self.make_room(name)
            self._roles[name].load(folder, trusted=self.trusts_checkpoints)
        self.is_dirty = False

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Empty: the roles are saved by themselves."""
        return {}
