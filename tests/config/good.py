"""A small configuration in which nothing is wrong, and files of YAML."""

import yaml

GOOD = {
    "trainer": {"max_steps": 4},
    "model": {"actor": {"hf_checkpoint": "some/model"}},
    "data": {"rollout": {"train": {"path": "x.jsonl"}, "batch_size": 4, "reward": "exact_match"}},
}


def write(path, tree):
    path.write_text(tree if isinstance(tree, str) else yaml.safe_dump(tree))
    return str(path)
