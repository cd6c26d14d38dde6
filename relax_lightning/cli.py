"""The command `relax-lightning`. Imports no torch, Lightning or Ray until every check has passed."""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from relax_lightning import __version__
from relax_lightning.checkpoints.folders import committed_folder
from relax_lightning.checkpoints.manifest import MANIFEST
from relax_lightning.checkpoints.resuming import nothing_left, resumed_folder
from relax_lightning.config.faults import ConfigurationError, Problem, fault, is_finite_number
from relax_lightning.config.loader import read, resolve, to_yaml
from relax_lightning.config.tree import Config
from relax_lightning.config.yaml_text import parse_yaml
from relax_lightning.plan.files import looking_at_paths, shadowing_callbacks
from relax_lightning.run.errors import is_for_user, text_of
from relax_lightning.run.interrupted import INTERRUPTED, leaving_at_once
from relax_lightning.run.lock import run_lock, save_roots
from relax_lightning.run.quiet import quiet_third_parties

USAGE = """\
usage: relax-lightning COMMAND ...

PPO with a real critic for large language models, on Lightning's own Trainer.

commands:
  fit --config FILE [--key value ...]        train
  plan --config FILE [--key value ...]       check a configuration and print what it means; nothing runs
  validate --config FILE [--key value ...]   evaluate on the validation sets
  export CHECKPOINT DIR                      write a Hugging Face directory
  config --explain KEY | --schema            what a key means; a JSON Schema for editors
  migrate SCRIPT.sh [-o FILE]                translate a launch script of Relax or slime

options:
  --help      this text; `relax-lightning fit --help` lists every key
  --version   the version

A start: relax-lightning fit --config configs/digits-cpu.yaml
"""

RUN_USAGE = """\
usage: relax-lightning {command} --config FILE [--config MORE ...] [--key value ...]

  --config FILE          a YAML file; a later one is laid over those before it
  --ckpt_path auto|DIR   resume everything: `auto`: the newest checkpoint of the save root, if any
  --print_config         print the resolved configuration and stop
{more}  --KEY VALUE            any key below, dotted: --model.algorithm.gamma 0.99

${{oc.env:NAME}}, ${{oc.env:NAME,default}} and ${{other.key}} are replaced.
A start: configs/digits-cpu.yaml. More of one key: relax-lightning config --explain KEY
"""

PLAN_OPTIONS = """\
  --no-files             look at no path: neither model, data nor checkpoints need be here, nor variables be set
  --gpu_memory_gib N     plan for GPUs of this size; without it, for those of this machine
  --json                 print the plan as JSON; docs/plan.md describes it
"""

EXPORT_USAGE = """\
usage: relax-lightning export CHECKPOINT DIR [--trust]

  CHECKPOINT   an iter_ folder, or a checkpoint root, which means its newest checkpoint
  DIR          where the Hugging Face directory is written; must not hold anything yet
  --trust      run the code that the checkpoint names, as a tokenizer of yours; only for what you or yours wrote
"""

CONFIG_USAGE = """\
usage: relax-lightning config --explain KEY | --schema | --markdown

  --explain KEY   all about one key or section: model.algorithm.lambd; also by the names of others: gae_lambda
  --schema        a JSON Schema of configuration files, for editors
  --markdown      all keys as a page of Markdown, docs/configuration.md
"""

_START = "a complete example to start from: relax-lightning fit --config configs/digits-cpu.yaml"


class UsageError(ValueError):
    """A command line that cannot be read."""


@dataclass
class Arguments:
    """What follows `fit`, `validate` or `plan`."""

    config_files: list[str] = field(default_factory=list)
    overrides: list[str] = field(default_factory=list)
    ckpt_path: str | None = None
    print_config: bool = False
    no_files: bool = False
    json: bool = False
    gpu_memory: int | None = None
    """Bytes, of `--gpu_memory_gib`."""


def main(argv: list[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: the words after `relax-lightning`; None takes those of the process.

    Returns:
        The exit status: 0; 1 for a fault of the configuration or the run; 2 for an unreadable command line; 130 where
        Ctrl-C came before training began.
    """
    words = sys.argv[1:] if argv is None else argv
    try:
        return _dispatch(words)
    except UsageError as error:
        return _fail(f"{error}; see relax-lightning --help", status=2)
    except ConfigurationError as error:
        return _fail_with(error.problems, "the configuration")
    except KeyboardInterrupt:
        return _fail(INTERRUPTED, status=128 + signal.SIGINT)
    except BrokenPipeError:
        # Whoever read our output has seen enough, as in `fit --help | head`.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ValueError, RuntimeError, OSError) as error:
        if not is_for_user(error):
            raise
        return _fail(text_of(error))


def parse(words: list[str], flags: tuple[str, ...] = ("print_config",)) -> Arguments:
    """The words after `fit`, `validate` or `plan`, sorted.

    Args:
        words: as they were typed.
        flags: the options of the command that take no value.

    Raises:
        UsageError: A word is no option, or an option lacks its value.
    """
    arguments, rest = Arguments(), list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        flag = name.removeprefix("--").replace("-", "_")
        if flag in flags and name.startswith("--") and not equals:
            setattr(arguments, flag, True)
            continue
        if not name.startswith("--") or name == "--":
            raise UsageError(f"wanted --key value, got {word!r}; write keys with two dashes")
        if not equals:
            if not rest or rest[0].startswith("--"):
                got = " ".join(rest[0].split()) if rest else "nothing"
                raise UsageError(f"wanted a value after {name}, got {got}; add it")
            value = rest.pop(0)
        _take(arguments, name.removeprefix("--"), value)
    return arguments


def _dispatch(words: list[str]) -> int:
    commands: dict[str, Callable[[list[str]], int]] = {
        "fit": lambda rest: _run("fit", rest),
        "validate": lambda rest: _run("validate", rest),
        "plan": _plan,
        "export": _export,
        "config": _config,
        "migrate": _migrate,
    }
    if not words or words[0] in ("--help", "-h"):
        print(USAGE, end="")
        return 0 if words else 2
    if words[0] == "--version":
        print(f"relax-lightning {__version__}")
        return 0
    if words[0] not in commands:
        raise UsageError(f"wanted one of {', '.join(commands)}, got {words[0]!r}")
    return commands[words[0]](words[1:])


def _run(command: str, words: list[str]) -> int:
    if "--help" in words or "-h" in words:
        _print_key_help(command)
        return 0
    arguments = parse(words)
    try:
        config, problems = _checked(command, arguments)
    except ConfigurationError as error:
        return _fail_with(error.problems, ", ".join(arguments.config_files) or "the command line")
    for problem in problems:
        print(f"relax-lightning: warning: {problem}", file=sys.stderr)
    if arguments.print_config:
        print(to_yaml(config), end="")
        return 0
    _put_on_path(Path.cwd())
    # Of launched ranks the first; what the launcher of our own starts does not come by here.
    locks = command == "fit" and os.environ.get("RANK", "0") == "0"
    with run_lock(config.trainer.default_root_dir, save_roots(config)) if locks else nullcontext():
        return _start(command, config, arguments)


def _start(command: str, config: Config, arguments: Arguments) -> int:
    resumed = None if arguments.ckpt_path is None else resumed_folder(config, arguments.ckpt_path)
    ckpt_path = None if resumed is None else str(resumed)
    from relax_lightning.plan.topology import launched_ranks

    if config.cluster is not None and launched_ranks() is None:
        if command == "fit" and (over := nothing_left(config, ckpt_path)) is not None:
            print(over)
            return 0
        with leaving_at_once():
            from relax_lightning.distributed.launcher import launch
        return launch("relax_lightning.lightning_cli.run", command, config, ckpt_path)
    with leaving_at_once():
        from relax_lightning.lightning_cli import run
    return run(command, config, ckpt_path)


def _plan(words: list[str]) -> int:
    if "--help" in words or "-h" in words:
        _print_key_help("plan", PLAN_OPTIONS)
        return 0
    arguments = parse(words, ("print_config", "no_files", "json"))
    from relax_lightning.plan.command import print_unreadable, report

    try:
        config, problems = _found("plan", arguments)
    except ConfigurationError as error:
        if arguments.json:
            return print_unreadable(error.problems)
        return _fail_with(error.problems, ", ".join(arguments.config_files) or "the command line")
    if arguments.print_config:
        print(to_yaml(config), end="")
        return 0
    return report(
        config,
        problems,
        check_files=not arguments.no_files,
        resume=arguments.ckpt_path,
        gpu_memory=arguments.gpu_memory,
        as_json=arguments.json,
    )


def _checked(command: str, arguments: Arguments) -> tuple[Config, list[Problem]]:
    """The resolved configuration and the warnings.

    Raises:
        ConfigurationError: Any fault, of a field or of the whole.
    """
    config, found = _found(command, arguments)
    errors = [p for p in found if p.severity == "error"]
    if arguments.print_config:
        # Only what makes the tree itself faulty: what it points to may be elsewhere.
        errors = [p for p in errors if p.is_of_field]
    if errors:
        raise ConfigurationError([str(p) for p in errors])
    return config, [p for p in found if p.severity == "warning"]


def _found(command: str, arguments: Arguments) -> tuple[Config, list[Problem]]:
    """The resolved configuration as far as it is sound, and every problem."""
    from relax_lightning.plan import check

    config, faults = read(
        arguments.config_files, arguments.overrides, keep_missing_variables=arguments.no_files
    )
    with looking_at_paths():
        found = check(
            config,
            check_files=not arguments.no_files,
            resume=arguments.ckpt_path,
            subcommand=command,
            gpu_memory=arguments.gpu_memory,
        )
    shadowing = None if arguments.no_files else shadowing_callbacks(Path.cwd())
    found += [] if shadowing is None else [shadowing]
    # A finding that rests on a faulty key says nothing: the key has its default there.
    sound = [p for p in found if not any(faults.concern(key) for key in (p.key, *p.involves))]
    of_fields = [Problem(key, message, is_of_field=True) for key, message in faults.found]
    with warnings.catch_warnings():
        # The plan has found what resolving warns of, in words for the terminal.
        warnings.simplefilter("ignore")
        return resolve(config), [*of_fields, *sound]


def _take(arguments: Arguments, name: str, value: str) -> None:
    option = name.replace("-", "_")
    if option == "config":
        arguments.config_files.append(value)
    elif option == "ckpt_path":
        arguments.ckpt_path = value
    elif option == "gpu_memory_gib":
        arguments.gpu_memory = _bytes_of_gib(value)
    else:
        arguments.overrides.append(f"{name}={value}")


def _bytes_of_gib(text: str) -> int:
    try:
        size = parse_yaml(text)
    except yaml.YAMLError:
        size = float("nan")
    if not is_finite_number(size) or not 0 < size < 2**30:
        raise UsageError(f"wanted the memory of one GPU in GiB after --gpu_memory_gib, got {text!r}")
    return int(size * 2**30)


def _export(words: list[str]) -> int:
    if "--help" in words or "-h" in words:
        print(EXPORT_USAGE, end="")
        return 0
    places = [word for word in words if word != "--trust"]
    if len(places) != 2 or any(word.startswith("-") for word in places):
        raise UsageError(f"wanted export CHECKPOINT DIR, got {' '.join(words) or 'nothing after export'}")
    checkpoint, directory, trusted = Path(places[0]), Path(places[1]), "--trust" in words
    if checkpoint.is_dir() and not (checkpoint / MANIFEST).is_file():
        checkpoint = committed_folder(checkpoint) or checkpoint
    if not (checkpoint / MANIFEST).is_file():
        wanted = f"a complete checkpoint (with {MANIFEST})"
        raise ValueError(
            f"CHECKPOINT: {fault(wanted, places[0], 'give an iter_ folder or a checkpoint root')}"
        )
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ValueError(f"DIR: {fault('an empty or new folder', places[1], 'remove it or give another')}")
    quiet_third_parties()
    from relax_lightning.megatron.export import export_checkpoint

    if trusted:
        _put_on_path(Path.cwd())  # the tokenizer may be the user's own
    export_checkpoint(checkpoint, directory, trusted=trusted)
    print(f"wrote {directory}, from {checkpoint}")
    return 0


def _config(words: list[str]) -> int:
    if not words or words[0] in ("--help", "-h"):
        print(CONFIG_USAGE, end="")
        return 0 if words else 2
    if words == ["--schema"]:
        from relax_lightning.config.schema import json_schema

        print(json.dumps(json_schema(), indent=2))
    elif words == ["--markdown"]:
        from relax_lightning.config.markdown import markdown

        print(markdown(), end="")
    elif words[0] == "--explain" and len(words) == 2:
        from relax_lightning.config.explain import explain

        print(explain(words[1]))
    else:
        raise UsageError(f"wanted --explain KEY, --schema or --markdown, got {' '.join(words)}")
    return 0


def _migrate(words: list[str]) -> int:
    from relax_lightning.migrate.command import migrate

    return migrate(words)


def _put_on_path(folder: Path) -> None:
    # A console script does not have the working directory on its path, and a user's own classes live there.
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _print_key_help(command: str, more: str = "") -> None:
    from relax_lightning.config.help import key_groups

    bold, plain = ("\033[1m", "\033[0m") if sys.stdout.isatty() and "NO_COLOR" not in os.environ else ("", "")
    print(RUN_USAGE.format(command=command, more=more))
    for group in key_groups():
        print("\n".join((f"{bold}{group.title}{plain}", *group.lines, "")))


def _fail_with(problems: list[str], name: str) -> int:
    count = f"{len(problems)} problem" + ("" if len(problems) == 1 else "s")
    print(f"relax-lightning: {count} in {name}", file=sys.stderr)
    for problem in problems:
        # A key, unlike a value, is shown whole, and may be a page of text that was meant to be something else.
        print(f"  - {' '.join(problem.split()):.2000}", file=sys.stderr)
    if any("got nothing; add" in problem or "wanted a model" in problem for problem in problems):
        print(f"  {_START}", file=sys.stderr)
    return 1


def _fail(message: str, status: int = 1) -> int:
    print(f"relax-lightning: {message}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
