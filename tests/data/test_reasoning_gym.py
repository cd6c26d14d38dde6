from __future__ import annotations

import pickle

import pytest

from relax_lightning.data.reasoning_gym import ReasoningGymPrompts
from relax_lightning.rewards.reasoning_gym import ReasoningGymReward

OPTIONS = {
    "chain_sum": {"min_terms": 2, "max_terms": 2},
    "countdown": {},
    "simple_equations": {},
    "decimal_arithmetic": {"precision": 9},  # its scorer reads the options
}


@pytest.mark.parametrize("task", OPTIONS)
def test_right_answers_score_one_and_the_set_is_seeded(task: str) -> None:
    prompts = ReasoningGymPrompts(task, size=3, seed=5, system_prompt="Be brief.", **OPTIONS[task])
    reward = ReasoningGymReward()
    assert len(prompts) == 3
    for i in range(3):
        row = prompts[i]
        system, user = row["prompt"]
        assert system == {"role": "system", "content": "Be brief."} and user["role"] == "user"
        metadata = pickle.loads(pickle.dumps(row["metadata"]))  # as it reaches a worker
        assert reward(user["content"], f"<answer>{row['label']}</answer>", row["label"], metadata) == 1.0
        assert reward(user["content"], "none", row["label"], metadata) < 0.5
    assert ReasoningGymPrompts(task, size=3, seed=5, **OPTIONS[task])[2]["prompt"] == [user]
    assert ReasoningGymPrompts(task, size=3, seed=6, **OPTIONS[task])[2]["prompt"] != [user]


def test_an_unknown_task_or_option_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"task 'chain_sums' with options \{\}: Dataset 'chain_sums' not registered"
    ):
        ReasoningGymPrompts("chain_sums", size=3, seed=0)
    with pytest.raises(
        ValueError, match=r"task 'chain_sum' with options \{'terms': 3\}: .*unexpected keyword"
    ):
        ReasoningGymPrompts("chain_sum", size=3, seed=0, terms=3)
