"""What the files of a model say of its tokens: those that end a response, and whether the model has a row for each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from relax_lightning.config.architecture import described_model
from relax_lightning.config.faults import Problem, fault
from relax_lightning.config.tree import Config


def end_tokens(config: Config) -> list[int]:
    """Tokens that end a response besides the tokenizer's own, of a resolved configuration.

    They are those of the model's folder; for a model from scratch the folder of its tokenizer counts.

    Raises:
        ValueError: See `end_tokens_of`.
    """
    return end_tokens_of(Path(config.model.actor.hf_checkpoint or config.model.actor.tokenizer or ""))


def end_tokens_of(folder: Path) -> list[int]:
    """As in transformers: those of `generation_config.json`, and of `config.json` where there is no such file.

    Raises:
        ValueError: The file cannot be read, or says something else than an id, several of them, or null.
    """
    path = folder / "generation_config.json"
    said = (_read(path) if path.is_file() else described_model(folder)).get("eos_token_id")
    ids = said if isinstance(said, list) else [] if said is None else [said]
    if not all(isinstance(token, int) and not isinstance(token, bool) for token in ids):
        wanted = "a token, a list of tokens or null as eos_token_id"
        raise ValueError(f"{folder}: {fault(wanted, said, 'correct generation_config.json or config.json')}")
    return ids


def _read(path: Path) -> dict[str, Any]:
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: wanted a JSON object, got none: {error}; fetch it again") from error
    if not isinstance(read, dict):
        raise ValueError(f"{path}: wanted a JSON object, got {type(read).__name__}; fetch it again")
    return read


def vocabulary_rows(config: Config) -> int | None:
    """Rows of the model's vocabulary; None where they cannot be read."""
    actor = config.model.actor
    if actor.architecture is not None:
        return actor.architecture.vocab_size
    rows = described_model(actor.hf_checkpoint).get("vocab_size")
    return rows if isinstance(rows, int) else None


def token_problems(config: Config) -> Iterator[Problem]:
    """Tokens that the model has no row for, and files that do not say what ends a response."""
    try:
        end_tokens(config)
    except ValueError as error:
        yield Problem("model.actor.hf_checkpoint", str(error), involves=("model.actor.tokenizer",))
    rows, source = vocabulary_rows(config), config.model.actor.tokenizer
    if rows is None:
        return
    rollout = config.data.rollout
    sets = {"": rollout.sampling, **{f"validation.{n}.": p.sampling for n, p in rollout.validation.items()}}
    told: list[int] = []
    for name, sampling in sets.items():
        beyond = [token for token in (sampling.stop_token_ids if sampling else []) if token >= rows]
        if beyond and beyond != told:
            message = fault(
                f"tokens below {rows}, the rows of the model's vocabulary", beyond, "correct them"
            )
            yield Problem(f"data.rollout.{name}sampling.stop_token_ids", message, involves=("model.actor",))
        told = told or beyond
    if source is not None and (largest := _largest_token(Path(source))) is not None and largest[0] >= rows:
        yield Problem("model.actor.tokenizer", no_row(*largest, rows), involves=("model.actor",))


def no_row(token: int, name: str, rows: int) -> str:
    """What is wrong with a tokenizer of which the model lacks the row of a token."""
    change = "raise vocab_size or give the model's own tokenizer"
    return (
        f"wanted tokens below {rows}, the rows of the model's vocabulary, got {token} for {name!r}; {change}"
    )


def _largest_token(folder: Path) -> tuple[int, str] | None:
    """Id and name, as `tokenizer.json` has them; None where it cannot be read, which loading it tells of."""
    try:
        tokenizer = _read(folder / "tokenizer.json")
        vocabulary = tokenizer["model"]["vocab"]
        if isinstance(vocabulary, list):
            vocabulary = {name: token for token, (name, _) in enumerate(vocabulary)}
        found = [(token, name) for name, token in vocabulary.items()]
        found += [(added["id"], added["content"]) for added in tokenizer.get("added_tokens", [])]
        return max(found)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
