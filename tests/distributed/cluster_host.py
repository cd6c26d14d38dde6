"""Keeps a Ray cluster of its own running until standard input closes, as `ray start --head` would without an end."""

import logging
import os
import sys


def main() -> None:
    """Start, print the address, wait."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_memory_monitor_refresh_ms"] = "0"  # noqa: SIM112 Ray's own name
    import ray

    ray.init(
        address="local",
        num_cpus=int(sys.argv[1]),
        include_dashboard=False,
        object_store_memory=256 * 2**20,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    print(ray.get_runtime_context().gcs_address, flush=True)
    sys.stdin.read()
    ray.shutdown()


if __name__ == "__main__":
    main()
