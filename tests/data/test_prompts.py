"""Reading, tokenizing and handing out prompts; every kind of bad line; resuming, also through Lightning."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from relax_lightning.config import PromptsConfig
from relax_lightning.data.prompts import PromptDataset, PromptLoader
from relax_lightning.ppo.batch import Prompts
from relax_lightning.rewards.registry import load_label


class Characters:
    """A tokenizer of one token a character; 1 begins a text unless told otherwise."""

    eos_token_id = 0

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [1] * add_special_tokens + [ord(character) for character in text]

    def decode(self, token_ids: list[int]) -> str:
        return "".join(chr(token) for token in token_ids if token > 1)

    def apply_chat_template(self, conversation: Any, *, add_generation_prompt: bool, tokenize: bool) -> str:
        if conversation[-1]["role"] == "assistant":
            raise RuntimeError("the assistant has spoken already")
        turns = "".join(f"<{message['role']}>{message['content']}" for message in conversation)
        return turns + "<assistant>" * add_generation_prompt


def load(path: Path, room: int | None = None, **changes: Any) -> PromptDataset:
    return PromptDataset.load(PromptsConfig(path=str(path), **changes), Characters(), max_prompt_tokens=room)


def write_lines(path: Path, *rows: Any) -> Path:
    path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
    return path


def numbered(tmp_path: Path, num_prompts: int) -> PromptDataset:
    return load(
        write_lines(tmp_path / "n.jsonl", *({"prompt": f"{i}=", "label": i} for i in range(num_prompts)))
    )


def test_json_lines(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": ""}, {"role": "user", "content": "hé"}]
    path = write_lines(
        tmp_path / "a.jsonl",
        {"q": "1+1=", "a": "2", "m": {"level": 1}},
        "\n",
        {"q": messages, "a": [3], "m": {}},
    )
    data = load(path, input_key="q", label_key="a", metadata_key="m")
    prompts = data.select([1, 0])
    text = "<system><user>hé<assistant>"
    assert prompts == Prompts(
        ids=(1, 0),
        token_ids=(tuple(map(ord, text)), (1, *map(ord, "1+1="))),
        texts=(text, "1+1="),
        labels=([3], "2"),
        metadata=({}, {"level": 1}),
    )
    templated = load(path, input_key="q", label_key="a", apply_chat_template=True)
    assert templated.texts == ("<user>1+1=<assistant>", text)
    assert templated.metadata == ({}, {})
    assert templated.token_ids[0].tolist() == list(map(ord, "<user>1+1=<assistant>"))


def test_parquet(tmp_path: Path) -> None:
    rows = [
        {"prompt": [{"role": "user", "content": "a"}], "label": 1, "extra": {"x": 1}},
        {"prompt": [{"role": "user", "content": "b"}], "label": 2, "extra": {"x": 2}},
    ]
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    data = load(path, metadata_key="extra")
    assert data.texts == ("<user>a<assistant>", "<user>b<assistant>")
    assert data.labels == (1, 2) and data.metadata == ({"x": 1}, {"x": 2})
    rows[1]["prompt"] = []
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    with pytest.raises(ValueError, match=r"a\.parquet, row 2: 'prompt' is empty"):
        load(path)
    path.write_bytes(b"no parquet")
    with pytest.raises(ValueError, match=r"a\.parquet: not readable as Parquet"):
        load(path)


GOOD = {"prompt": "1+1=", "label": "2"}


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ('{"prompt": "1+1=", \n', "invalid JSON: Expecting property name.* at column"),
        ("[1, 2]\n", "wanted an object with keys, got list"),
        ('{"text": "1+1=", "label": "2"}\n', "the key 'prompt' is missing; there is 'text', 'label'"),
        ("{}\n", "the key 'prompt' is missing; there is no key at all"),
        ('{"prompt": "1+1="}\n', "the key 'label' is missing; there is 'prompt'"),
        ('{"prompt": 3, "label": "2"}\n', "'prompt' must be text or a list of messages, got int"),
        (
            '{"prompt": [3], "label": "2"}\n',
            "'prompt' must hold messages with `role` and `content` as text, got 3",
        ),
        ('{"prompt": [{"role": "user"}], "label": "2"}\n', "must hold messages"),
        ('{"prompt": " ", "label": "2"}\n', "'prompt' is empty"),
        ('{"prompt": [{"role": "user", "content": ""}], "label": "2"}\n', "'prompt' is empty"),
        (
            '{"prompt": [{"role": "assistant", "content": "a"}], "label": "2"}\n',
            "chat template failed: the assistant",
        ),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, bad: str, reason: str) -> None:
    path = write_lines(tmp_path / "bad.jsonl", GOOD, "\n", bad, GOOD)
    with pytest.raises(ValueError, match=rf"{path}, line 3: .*{reason}"):
        load(path)


def test_the_reward_says_what_labels_it_takes(tmp_path: Path) -> None:
    def read(reward: str | None, *rows: Any, **changes: Any) -> tuple[Any, ...]:
        path = write_lines(tmp_path / "labels.jsonl", *({"prompt": "1+1="} | row for row in rows))
        config = PromptsConfig(path=str(path), **changes)
        return PromptDataset.load(config, Characters(), read_label=load_label(reward)).labels

    column = {"reward_model": {"ground_truth": "34", "style": "rule"}}
    assert read("dapo_math", column, label_key="reward_model") == ("34",)
    assert read(None, column, label_key="reward_model") == (column["reward_model"],)
    assert read("dapo_math", {"label": "34"}, {"label": 1e-05}) == ("34", 1e-05)
    with pytest.raises(
        ValueError,
        match=r"labels\.jsonl, line 2: 'label' does not suit the reward dapo_math: wanted an answer as text or a "
        r"finite number, got float nan; correct it, or set label_key to the column that has the answer$",
    ):
        read("dapo_math", {"label": "34"}, {"label": float("nan")})
    # Without labels: for rewards that need none.
    for reward in (None, "reasoning_gym"):
        assert read(reward, {}, {}, label_key=None) == (None, None)
    with pytest.raises(
        ValueError, match=r"line 1: label_key: null does not suit the reward exact_match: .* got null"
    ):
        read("exact_match", {}, label_key=None)


def test_labels_of_parquet_and_of_numpy(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    rows = [{"prompt": "a", "label": Decimal("2.50")}, {"prompt": "b", "label": None}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    with pytest.raises(ValueError, match=r"a\.parquet, row 2: 'label' does not suit .* got null"):
        PromptDataset.load(PromptsConfig(path=str(path)), Characters(), read_label=load_label("dapo_math"))


def test_bad_files_and_metadata(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none\.jsonl: no such file"):
        load(tmp_path / "none.jsonl")
    with pytest.raises(ValueError, match=r"read from \.jsonl or \.parquet, got '\.csv'"):
        load(write_lines(tmp_path / "a.csv", GOOD))
    with pytest.raises(ValueError, match="there are no prompts in it"):
        load(write_lines(tmp_path / "empty.jsonl", "\n"))
    path = write_lines(tmp_path / "meta.jsonl", GOOD | {"meta": 3})
    with pytest.raises(ValueError, match="line 1: 'meta' must be an object with keys, got int"):
        load(path, metadata_key="meta")
    path.write_bytes(b'{"prompt": "\xff", "label": 1}\n')
    with pytest.raises(ValueError, match="line 1: not UTF-8"):
        load(path)


def test_long_prompts_are_dropped_and_counted(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", *({"prompt": "x" * n, "label": n} for n in (3, 9, 4, 5)))
    assert load(path).num_dropped == 0
    for data in (load(path, 5), load(path, 100, max_prompt_tokens=5), load(path, 5, max_prompt_tokens=100)):
        assert data.labels == (3, 4) and data.num_dropped == 2  # with the token that begins the text: 4 and 5
    with pytest.raises(ValueError, match="all 4 prompts are longer than 3 tokens; raise max_prompt_tokens"):
        load(path, 3)


MINE = """
class Mine:
    def __init__(self, size):
        self.size = size
    def __len__(self):
        return self.size
    def __getitem__(self, index):
        return {"prompt": f"{index}=", "label": index} | ({"metadata": {"i": index}} if index else {})

class Stream:
    def __iter__(self):
        return iter([])
"""


def test_a_class_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_prompts.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)

    def own(name: str, **init_args: Any) -> PromptDataset:
        config = PromptsConfig(class_path=f"own_prompts.{name}", init_args=init_args)
        return PromptDataset.load(config, Characters())

    data = own("Mine", size=2)
    assert data.texts == ("0=", "1=") and data.labels == (0, 1) and data.metadata == ({}, {"i": 1})
    with pytest.raises(ValueError, match=r"own_prompts\.Mine: init_args \{\} do not fit"):
        own("Mine")
    with pytest.raises(
        ValueError, match=r"own_prompts\.Stream must be a sequence of prompts, but has no __len__"
    ):
        own("Stream")
    with pytest.raises(ValueError, match="has no Yours"):
        own("Yours")


def ids(loader: PromptLoader, num_batches: int | None = None) -> list[tuple[int, ...]]:
    batches: Iterator[Prompts] = iter(loader)
    return [next(batches).ids for _ in range(len(loader) if num_batches is None else num_batches)]


def test_epochs(tmp_path: Path) -> None:
    data = numbered(tmp_path, 10)
    loader = PromptLoader(data, 3, shuffle=True, seed=7)
    first, second = ids(loader), ids(loader)
    assert len(loader) == len(first) == 3 and first != second
    assert len({i for batch in first for i in batch}) == 9
    assert ids(PromptLoader(data, 3, shuffle=True, seed=7)) == first
    assert ids(PromptLoader(data, 3, shuffle=True, seed=8)) != first
    # The order is of (seed, epoch): another batch size cuts the same order elsewhere.
    assert sum(ids(PromptLoader(data, 9, shuffle=True, seed=7)), ()) == sum(first, ())
    plain = PromptLoader(data, 4, shuffle=False, seed=7, drop_last=False)
    assert len(plain) == 3
    assert ids(plain, 1) == [(0, 1, 2, 3)]
    assert ids(plain) == ids(plain) == [(0, 1, 2, 3), (4, 5, 6, 7), (8, 9)]


def test_resume_at_any_batch(tmp_path: Path) -> None:
    data = numbered(tmp_path, 10)
    whole = PromptLoader(data, 3, shuffle=True, seed=7)
    expected = [batch for _ in range(5) for batch in ids(whole)]
    for num_taken in range(8):
        before = PromptLoader(data, 3, shuffle=True, seed=7)
        taken: list[tuple[int, ...]] = []
        while len(taken) < num_taken:
            taken += ids(before, min(3, num_taken - len(taken)))
        state = json.loads(json.dumps(before.state_dict()))
        after = PromptLoader(data, 3, shuffle=True, seed=7)
        iter(after)
        after.load_state_dict(state)
        iter(after)  # an iterator nobody reads takes nothing
        rest = [batch.ids for batch in after]
        assert taken + rest + ids(after) == expected[: len(taken + rest) + 3]


def test_resume_with_other_prompts_is_refused(tmp_path: Path) -> None:
    state = PromptLoader(numbered(tmp_path, 10), 3, shuffle=True, seed=7).state_dict()
    changed = write_lines(tmp_path / "c.jsonl", *({"prompt": f"{i}=", "label": i or 1} for i in range(10)))
    for data, batch_size, seed, message in (
        (numbered(tmp_path, 9), 3, 7, "num_prompts: 10 then, 9 now; fingerprint"),
        (load(changed), 3, 7, r"another order \(fingerprint: "),
        (numbered(tmp_path, 10), 4, 7, "batch_size: 3 then, 4 now"),
        (numbered(tmp_path, 10), 3, 8, "seed: 7 then, 8 now"),
    ):
        with pytest.raises(ValueError, match=message):
            PromptLoader(data, batch_size, shuffle=True, seed=seed).load_state_dict(state)


def test_too_few_prompts_for_a_batch(tmp_path: Path) -> None:
    data = numbered(tmp_path, 2)
    with pytest.raises(ValueError, match=r"a batch takes 3 prompts, the data set has 2 \(0 were too long\)"):
        PromptLoader(data, 3, shuffle=True, seed=0)
    assert ids(PromptLoader(data, 3, shuffle=False, seed=0, drop_last=False)) == [(0, 1)]


class Recorder(LightningModule):
    """Notes the prompts of each step and trains nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.seen: list[tuple[int, ...]] = []
        self.validated: list[tuple[int, ...]] = []

    def training_step(self, prompts: Prompts) -> None:
        self.seen.append(prompts.ids)
        optimizer = self.optimizers()
        optimizer.step()  # pyright: ignore[reportAttributeAccessIssue]

    def validation_step(self, prompts: Prompts) -> None:
        self.validated.append(prompts.ids)

    def transfer_batch_to_device(self, batch: Prompts, device: torch.device, dataloader_idx: int) -> Prompts:
        return batch  # nothing of it goes to a device, and Lightning cannot rebuild a frozen record

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD([self.weight], lr=0.1)


class SaveEveryStep(Callback):
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        trainer.save_checkpoint(self.folder / f"{trainer.global_step}.ckpt")


def fit(
    data: PromptDataset, max_steps: int, callbacks: list[Callback], ckpt_path: Path | None = None
) -> Recorder:
    module = Recorder()
    trainer = Trainer(
        max_steps=max_steps,
        max_epochs=-1,
        accelerator="cpu",
        logger=False,
        callbacks=callbacks,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        val_check_interval=2,
        check_val_every_n_epoch=None,
        limit_val_batches=1,
    )
    train = PromptLoader(data, 3, shuffle=True, seed=7)
    validation = PromptLoader(data, 4, shuffle=False, seed=0, drop_last=False)
    trainer.fit(module, train, validation, ckpt_path=ckpt_path, weights_only=False if ckpt_path else None)
    return module


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_lightning_resumes_at_the_next_batch(tmp_path: Path) -> None:
    data = numbered(tmp_path, 10)  # 3 batches an epoch
    whole = fit(data, 8, [SaveEveryStep(tmp_path)])
    assert len(whole.seen) == 8 and len({tuple(sorted(sum(whole.seen[i : i + 3], ()))) for i in (0, 3)}) == 2
    assert whole.seen[:6] == ids(loader := PromptLoader(data, 3, shuffle=True, seed=7)) + ids(loader)
    assert set(whole.validated) == {(0, 1, 2, 3)} and len(whole.validated) == 4
    for step in (1, 2, 3, 4, 5, 6, 7):
        assert fit(data, 8, [], tmp_path / f"{step}.ckpt").seen == whole.seen[step:], (
            f"resumed after step {step}"
        )
