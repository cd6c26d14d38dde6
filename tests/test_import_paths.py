"""What users import, by its name in the package and by the paths that earlier releases had."""

import subprocess
import sys

PROGRAM = """
import sys
import relax_lightning

assert not {"torch", "lightning", "transformers"} & set(sys.modules), "importing the package imports what is heavy"
assert not hasattr(relax_lightning, "Rollout")

from relax_lightning import Experience, PPOCallback, Prompts, RolloutFunction, Rollouts, Sample
import relax_lightning.batch as old_batch
from relax_lightning.callback import PPOCallback as old_callback
import relax_lightning.ppo.batch as batch

assert old_batch is batch and sys.modules["relax_lightning.batch"] is batch
assert batch.__name__ == batch.__spec__.name == "relax_lightning.ppo.batch"
assert old_callback is PPOCallback and PPOCallback.__module__ == "relax_lightning.ppo.callback"
assert (Prompts, Rollouts, Experience) == (batch.Prompts, batch.Rollouts, batch.Experience)
assert Sample.__module__ == RolloutFunction.__module__ == "relax_lightning.rollout.turns"

from relax_lightning.run.import_path import import_object

for engine in ("rollout.megatron_engine.MegatronEngine", "rollout.sglang_engine.SGLangEngine"):
    assert isinstance(import_object("data.rollout.engine.class_path", f"relax_lightning.{engine}"), type)
"""


def test_names_and_old_paths():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
