"""Scripts to translate, and what came of them."""

import pytest

from relax_lightning.migrate.launch_script import read_launch_script
from relax_lightning.migrate.translation import translate


@pytest.fixture
def write_script(tmp_path):
    """Write a script of this text; give its path."""

    def write(text, name="run.sh"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return write


@pytest.fixture
def translated(write_script):
    """The translation of a launch with these flags."""

    def run(flags):
        return translate(read_launch_script(write_script(f"python3 train.py {flags}\n")))

    return run
