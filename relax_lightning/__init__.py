"""PPO with a real critic for large language models, on Lightning's own Trainer."""

__version__ = "0.1.0"
