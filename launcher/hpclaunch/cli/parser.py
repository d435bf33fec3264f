"""Parses a command line: options, the script with its arguments, and PET_ variables."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn, TypeAlias

from hpclaunch.core.protocol.errors import UsageError

from . import other_launchers, values, write

Add: TypeAlias = Callable[..., None]
# Options of torchrun since torch 2.14. An abbreviation keeps the meaning that it had before.
NEWER = frozenset({"--log-line-prefix-template", "--print-completion"})
ALIKE = 0.7  # from 0 to 1: how similar a word must be to an option to suggest it
# The value of this option usually begins with -, which argparse would take for the next option.
TAKES_OPTIONS = "--resume-with"
# Options of torchrun without a PET_ variable, by dest. Our own options have none either.
NO_VARIABLE = frozenset({"logs_specs", "numa_binding", "use_env"})
SHELLS = ("bash", "zsh", "tcsh", "fish")  # for which shtab writes completions


class Parser(argparse.ArgumentParser):
    """A parser for any command. Mistakes raise UsageError, and descriptions are not wrapped."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **settings)

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str], namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        found, rest = self.parse_known_args(args, namespace)
        for word in rest:
            if word.startswith("-"):
                self.no_option(word.partition("=")[0], self.options)
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        return found

    @property
    def options(self) -> Mapping[str, argparse.Action]:
        """The options by spelling, with dashes: one that has several is there several times."""
        return self._option_string_actions

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")

    def _print_message(self, message: str, file: object = None) -> None:  # noqa: ARG002
        """Print help or a version. argparse ignores a closed standard output."""
        write(message)

    def no_option(
        self, name: str, known: Iterable[str], where: str = "", otherwise: str = ""
    ) -> NoReturn:
        """Raise UsageError: `name` is none of the `known` options. Suggest similar ones, or if
        there are none, say what is `otherwise` possible.
        """
        import difflib  # slow to import, and needed only here

        dashed = name.lstrip("-").replace("_", "-")
        names = [option[2:] for option in known if option.startswith("--")]
        alike = [f"--{match}" for match in difflib.get_close_matches(dashed, names, cutoff=ALIKE)]
        if "_" in name:  # torchrun also accepts this spelling
            alike = [f"--{match[2:].replace('-', '_')}" for match in alike]
        meant = f": did you mean {' or '.join(alike)}?" if alike else otherwise
        self.error(f"no option {name}{where}{meant}")


class LaunchParser(Parser):
    """The parser of a launch. It finds the options itself, and leaves values and help to argparse.

    Depending on the version of Python, argparse takes the two spellings of an option for two
    options ("ambiguous"), and the script's `--log` for an abbreviation of --log-dir. So argparse
    gets every option in one full spelling, and never the script's arguments.
    """

    def __init__(self, environ: Mapping[str, str], **settings: Any) -> None:
        super().__init__(add_help=False, allow_abbrev=False, **settings)
        self._environ = environ
        # Spellings that torchrun does not have. An abbreviation that fits both means torchrun's.
        self.ours: set[str] = set()

    def section(self, title: str, description: str | None = None) -> tuple[Add, Add]:
        """Make a new group of the help. Return two functions like `add_argument`: for options that
        torchrun has, of which `ours` are our own spellings, and for options that it does not have.
        """
        group = self.add_argument_group(title, description)

        def add(*spellings: str, ours: Iterable[str] = (), **settings: Any) -> None:
            group.add_argument(*spellings, **settings)
            self.ours.update(ours)

        def own(*spellings: str, **settings: Any) -> None:
            add(*spellings, ours=spellings, **settings)

        return add, own

    def parse_args(self, args: Sequence[str]) -> argparse.Namespace:  # type: ignore[override]
        words = [*args]
        namespace = self.read(self.take_options(words))
        if not words or not words[0]:  # an unset variable of the shell may be ""
            self.error(
                f"no training script: {self.prog} [options] SCRIPT [arguments of the script]"
            )
        # Remove a `--` directly after SCRIPT, as torchrun's argparse does.
        if words[1:2] == ["--"] and [*args[: -len(words)]][-1:] != ["--"]:
            del words[1]
        namespace.training_script, *namespace.training_script_args = words
        return namespace

    def read(self, options: Sequence[str]) -> argparse.Namespace:
        """Return the values of `options`, which are in full spellings, and all defaults."""
        unset = object()
        actions = [a for a in self.options.values() if a.default is not argparse.SUPPRESS]
        namespace = argparse.Namespace(**{action.dest: unset for action in actions})
        super().parse_args(options, namespace)
        for action in actions:
            if getattr(namespace, action.dest) is unset:
                setattr(namespace, action.dest, self._default(action))
        return namespace

    def no_option(
        self, name: str, known: Iterable[str], where: str = "", otherwise: str = ""
    ) -> NoReturn:
        if instead := other_launchers.OPTIONS.get(name.replace("_", "-")):
            self.error(f"no option {name}{where}: {instead}")
        super().no_option(name, known, where, otherwise)

    def take_options(self, words: list[str]) -> list[str]:
        """Remove all options before the script from `words`, and return them in full spellings."""
        taken: list[str] = []
        while words and words[0].startswith("-") and words[0] != "-":
            if words[0] == "--":
                words.pop(0)
                break
            taken += self.take(words)
        return taken

    def option(self, spelling: str) -> argparse.Action:
        """Return the option with this spelling, other than --help and the like."""
        known = {s: a for s, a in self.options.items() if a.default is not argparse.SUPPRESS}
        if spelling not in known:
            self.no_option(spelling, known)
        return known[spelling]

    def only_prints(self, word: str) -> bool:
        """Return whether a word is an option that prints something and exits, such as --help."""
        action = self.options.get(word.partition("=")[0])
        return action is not None and action.default is argparse.SUPPRESS

    def knows(self, word: str) -> bool:
        """Return whether a word is a short option, or an option of the launcher in full."""
        return not word.startswith("--") or word.partition("=")[0].replace("_", "-") in self.options

    def take(self, words: list[str]) -> list[str]:
        """Remove the first option and its value from `words`, and return them in full spelling."""
        word = words.pop(0)
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            name = self._full(name)
            word = name + equals + value
            wants_more = not equals and self.options[name].nargs is None
        else:
            wants_more = self._short_wants_more(word)
        if not wants_more or not words:
            return [word]
        value = words.pop(0)
        return [f"{word}={value}"] if word == TAKES_OPTIONS else [word, value]

    def _full(self, name: str) -> str:
        dashed = name.replace("_", "-")
        if dashed in self.options:
            return dashed
        begun = [known for known in self.options if known.startswith(dashed)]
        torchruns = [known for known in begun if known not in self.ours]
        matches = [known for known in torchruns if known not in NEWER] or torchruns or begun
        if not matches or dashed in other_launchers.OPTIONS:
            self.no_option(name, self.options)
        if len(matches) > 1:
            self.error(f"{name} is ambiguous: it could be {', '.join(matches)}")
        return matches[0]

    def _short_wants_more(self, word: str) -> bool:
        """Return whether the next word is a value, as after `-r` and `-mr`, but not after `-r3`."""
        for position, letter in enumerate(word[1:], start=1):
            action = self.options.get(f"-{letter}")
            if action is None:
                self.no_option(word.partition("=")[0], self.options)
            if action.nargs is None:
                return position == len(word) - 1
        return False

    def _default(self, action: argparse.Action) -> Any:
        none = action.dest in NO_VARIABLE or self.ours.issuperset(action.option_strings)
        variables = [] if none else [f"PET_{action.dest.upper()}"]
        if action.dest == "shutdown_timeout":
            variables.append("TORCH_ELASTIC_SHUTDOWN_TIMEOUT")
        for variable in variables:
            if variable in self._environ:
                return self._convert(variable, action)
        return action.default

    def _convert(self, variable: str, action: argparse.Action) -> Any:
        text = self._environ[variable]
        convert = values.flag if action.nargs == 0 else action.type
        try:
            value = convert(text) if callable(convert) else text
        except argparse.ArgumentTypeError as e:
            self.error(f"{variable}: {e}")
        if action.choices is not None and value not in action.choices:
            self.error(f"{variable}: {text!r} is none of {', '.join(action.choices)}")
        return value


class PrintCompletion(argparse.Action):
    """`--print-completion SHELL`: prints a completion script, and exits."""

    def __call__(
        self, parser: argparse.ArgumentParser, _space: Any, shell: Any, _spelling: Any = None
    ) -> None:
        from . import completion  # slow to import, and needed only here

        write(f"{completion.script(parser, shell)}\n")
        parser.exit()
