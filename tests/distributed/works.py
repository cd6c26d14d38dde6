"""What ranks do in tests of the launcher: small works without a model, through the real store and service."""

from __future__ import annotations

import os
import signal
import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path


def columns(num_rows, width, seed):
    """The columns of an iteration, as the roles would write them."""
    import torch

    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, width + 1, (num_rows,), generator=draw)
    mask = torch.arange(width)[None] < lengths[:, None]
    tokens = torch.randint(0, 99, (num_rows, width), generator=draw)
    return {
        "response_tokens": tokens,
        "response_mask": mask,
        "token_rewards": torch.randn(num_rows, width, generator=draw) * mask,
        "truncated": torch.rand(num_rows, generator=draw) < 0.5,
        "values": torch.randn(num_rows, width, generator=draw) * mask,
        "final_values": torch.randn(num_rows, generator=draw),
    }


def exchange(command, config, ckpt_path, *, store, advantages, progress):
    """Give columns to the service, and hold what comes back against the same in one process, bit for bit."""
    import torch

    from relax_lightning.data.experience import LocalAdvantages
    from relax_lightning.data.store import LocalStore

    algorithm = config.model.algorithm
    choices = {
        "plain": algorithm,
        "whitened": replace(algorithm, normalize_advantages=True, lambd=0.95),
        "bootstrap": replace(algorithm, truncation="bootstrap", lambd=0.9, lambd_critic=1.0),
    }
    seed = int(ckpt_path or 0)
    for name, chosen in choices.items():
        whole, local = columns(24, 37, seed), LocalStore()
        local.put(name, range(24), whole)
        wanted_metrics = LocalAdvantages(local).compute(name, 24, chosen)
        wanted = local.get(name, range(24), ("advantages", "returns"), reader="test")
        # Two writers with a share each, the second of them in another order.
        for rows in ([*range(0, 24, 2)], [*range(23, 0, -2)]):
            store.put(name, rows, {column: tensor[rows] for column, tensor in whole.items()})
        assert advantages.compute(name, 24, chosen) == wanted_metrics
        got = store.get(name, range(24), ("advantages", "returns"), reader="test")
        assert all(torch.equal(got[column], wanted[column]) for column in wanted)
        assert {column: t.dtype for column, t in got.items()} == {c: t.dtype for c, t in wanted.items()}
        picked = store.get(name, [5, 2], ("response_tokens", "response_mask"), reader="test")
        assert torch.equal(picked["response_tokens"], whole["response_tokens"][[5, 2]])
        assert torch.equal(picked["response_mask"], whole["response_mask"][[5, 2]])
    print("exchanged", os.environ["RANK"], seed)
    _refusals(store, config)
    return 0


def _refusals(store, config):
    import pytest
    import torch

    from relax_lightning.distributed.store import TransferQueueStore

    with pytest.raises(ValueError, match=r"plain: test has read the column returns of rows 3 before"):
        store.get("plain", [3], ["returns"], reader="test")
    with pytest.raises(ValueError, match=r"plain: wanted new rows of the column values, got 7 again"):
        store.put("plain", [7], {"values": torch.zeros(1, 37)})
    with pytest.raises(ValueError, match=r"wanted 2 rows of the column values, got 3"):
        store.put("more", [0, 1], {"values": torch.zeros(3, 5)})
    # Rows of two widths are padded; one that is not there is named, and the deadline holds.
    store.put("more", [0], {"values": torch.ones(1, 2)})
    store.put("more", [1], {"values": torch.ones(1, 3), "rewards": torch.ones(1)})
    got = store.get("more", [0, 1], ["values"], reader="test")["values"]
    assert got.tolist() == [[1, 1, 0], [1, 1, 1]]
    hasty = TransferQueueStore(store.process, store.coordinator, deadline_seconds=0.5)
    began = time.monotonic()
    with pytest.raises(RuntimeError) as caught:
        hasty.get("more", [0, 1, 2], ["values", "rewards", "advantages"], reader="hasty")
    assert time.monotonic() - began < 5
    assert str(caught.value) == (
        "more: hasty waited 0.5 s for columns that nobody wrote: values (rows 2), rewards (rows 0, 2), "
        "advantages (no row)"
    )
    store.clear("more")
    with pytest.raises(RuntimeError, match=r"nobody wrote: values \(no row\)"):
        hasty.get("more", [0], ["values"], reader="test")
    store.put("more", [0], {"values": torch.zeros(1, 1)})
    assert hasty.get("more", [0], ["values"], reader="test")["values"].tolist() == [[0.0]]
    hasty.close()


def show(command, config, ckpt_path, *, store, advantages, progress):
    """Print, warn and show progress on every rank, then train as the loop does when a signal comes: save and end."""
    rank = os.environ["RANK"]
    print(f"hello of rank {rank}, {command}, {Path.cwd().name}")
    warnings.warn(f"mind rank {rank}", stacklevel=1)
    sys.stderr.write("no end of line")
    progress.start(1, 2)
    progress.phase("rollout")
    progress.iteration(1, {"reward/mean": 0.25})
    progress.stop()
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    ranks = torch.tensor([float(rank)])
    dist.all_reduce(ranks)
    dist.destroy_process_group()
    assert ranks.item() == 1.0 and os.environ["LOCAL_RANK"] == rank and os.environ["LOCAL_WORLD_SIZE"] == "2"
    got = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: got.append(number))
    Path(f"begun-{rank}").touch()
    while not got:
        time.sleep(0.01)
    print("saved after", signal.Signals(got[0]).name)
    return 128 + got[0]


def fail(command, config, ckpt_path, *, store, advantages, progress):
    """Rank 0 waits in a collective; rank 1 raises in its actor phase, or goes on until it is killed."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    progress.phase("actor")
    if os.environ["RANK"] == "1" and ckpt_path == "wait":
        print("waiting to be killed", file=sys.stderr, flush=True)
        Path("begun").touch()
        time.sleep(600)
    if os.environ["RANK"] == "1":
        raise ValueError("nothing but trouble")
    dist.all_reduce(torch.zeros(1))
    return 0


def leave(command, config, ckpt_path, *, store, advantages, progress):
    """Rank 1 leaves, or all do; who is left goes on until a file is there, also when it gets a first signal."""
    is_last = os.environ["RANK"] == "1"
    progress.phase("actor")
    if ckpt_path == "signal" and is_last:
        os.kill(os.getpid(), signal.SIGTERM)
    if ckpt_path == "all" or (ckpt_path == "one" and is_last):
        sys.exit(3)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: Path("noted").touch())
    Path(f"{ckpt_path}-begun").touch()
    while not Path(f"{ckpt_path}-over").exists():
        time.sleep(0.01)
    return 0


def keep_exchanging(command, config, ckpt_path, *, store, advantages, progress):
    """Go on until something ends it; a file tells that it has begun."""
    print(f"exchanging from {ckpt_path}")
    for number in range(10**6):
        name = f"iteration {number}"
        store.put(name, range(4), columns(4, 5, number))
        advantages.compute(name, 4, config.model.algorithm)
        store.clear(name)
        Path("begun").touch()
    return 0
