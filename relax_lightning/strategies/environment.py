"""Where this process stands among those that train one job, as its launcher has said in the environment."""

from __future__ import annotations

import os

from lightning.pytorch.plugins.environments import ClusterEnvironment, LightningEnvironment

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""What makes a process one rank of a job; torchrun sets them, and so does any other launcher."""


class RankEnvironment(ClusterEnvironment):
    """One rank of a job that a launcher has started.

    Raises:
        ValueError: Only some of `VARIABLES` are set.
    """

    def __init__(self) -> None:
        missing = [name for name in VARIABLES if name not in os.environ]
        if missing:
            raise ValueError(
                f"RANK is set, so {', '.join(missing)} must be set too; start the ranks with torchrun or alike"
            )

    @property
    def creates_processes_externally(self) -> bool:
        """The launcher has."""
        return True

    @property
    def main_address(self) -> str:
        """Where rank 0 listens."""
        return os.environ["MASTER_ADDR"]

    @property
    def main_port(self) -> int:
        """Its port."""
        return int(os.environ["MASTER_PORT"])

    @staticmethod
    def detect() -> bool:
        """Whether a launcher has started this process."""
        return "RANK" in os.environ

    def world_size(self) -> int:
        """Ranks of the job."""
        return int(os.environ["WORLD_SIZE"])

    def set_world_size(self, size: int) -> None:
        """The launcher decides."""

    def global_rank(self) -> int:
        """This one."""
        return int(os.environ["RANK"])

    def set_global_rank(self, rank: int) -> None:
        """The launcher decides."""

    def local_rank(self) -> int:
        """Its place on its machine."""
        return int(os.environ["LOCAL_RANK"])

    def node_rank(self) -> int:
        """Which machine, where the launcher says so."""
        return int(os.environ.get("GROUP_RANK", 0))


def cluster_environment() -> ClusterEnvironment:
    """This process's surroundings: a launcher's, or none."""
    return RankEnvironment() if RankEnvironment.detect() else LightningEnvironment()
