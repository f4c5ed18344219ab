"""Contestants in processes of their own that take turns; one that fails or dies leaves the others."""

import os
import statistics
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection

import psutil

from gpufeed.core.errors import Skip, first_line

START_S, PASS_S, SLOW = 180, 30, 10  # to set up; for a pass, and as many times as long as asked for

Result = dict[str, float]
Pass = Callable[[float], Result]  # seconds, at least -> numbers by name


@dataclass
class Contestant:
    """What one process measures. make: of the module level, sets up and returns a pass; it gets an ExitStack
    for what is to be closed at the end, and the arguments.

    cores: those that the process and all its children are kept on; None: as this process.
    """

    about: dict
    make: Callable[..., Pass]
    arguments: tuple = ()
    cores: list[int] | None = None
    results: list[Result] = field(default_factory=list)
    sentence: str | None = None  # why it does not take part, or no longer

    def start(self) -> None:
        context = get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=serve, args=(other, self.make, self.arguments))
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, self.cores or before)  # a new process begins on its parent's cores
        try:
            self.process.start()
        finally:
            os.sched_setaffinity(0, before)
        other.close()

    def answer(self, seconds: float) -> Result | None:
        """What the process says within so many seconds; None, and the end of it, if it cannot go on."""
        if self.sentence is not None:
            return None
        try:
            found = self.pipe.recv() if self.pipe.poll(seconds) else f"said nothing for {seconds:g} s"
        except EOFError:
            self.process.join(5)
            found = f"ended with exit code {self.process.exitcode}"
        if isinstance(found, str):
            self.sentence = found
            self.end()
            return None
        return found

    def ask(self, seconds: float) -> Result | None:
        """One pass."""
        if self.sentence is None:
            self.pipe.send(seconds)
        return self.answer(PASS_S + SLOW * seconds)

    def end(self) -> None:
        self.pipe.close()  # it ends when it hears no more
        self.process.join(10)
        if self.process.is_alive():
            for process in [*psutil.Process(self.process.pid).children(recursive=True), self.process]:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            self.process.join()

    def summary(self) -> dict:
        """What it is, and each number as n, median, least and most; or why there is none."""
        if not self.results:
            return {**self.about, "skipped": self.sentence}
        columns = {name: [result[name] for result in self.results] for name in self.results[0]}
        numbers = {
            name: {"n": len(v), "median": statistics.median(v), "min": min(v), "max": max(v)}
            for name, v in columns.items()
        }
        return {**self.about, **numbers} | ({"ended": self.sentence} if self.sentence else {})


def serve(pipe: Connection, make: Callable[..., Pass], arguments: tuple) -> None:
    """Sets up, then makes a pass for each number of seconds that comes; tells what is wrong as a string."""
    try:
        with ExitStack() as stack:
            one = make(stack, *arguments)
            pipe.send({})
            while True:
                pipe.send(one(pipe.recv()))
    except EOFError:  # nobody asks any more
        pass
    except Exception as error:
        pipe.send(str(error) if isinstance(error, Skip) else f"{type(error).__name__}: {first_line(error)}")


def measured(contestants: list[Contestant], passes: int, seconds: float, tell: Callable = print) -> None:
    """Alternating passes of all, after a round that does not count; all processes are ended."""
    for one in contestants:
        if one.sentence is None:
            one.start()
    try:
        for one in contestants:
            one.answer(START_S)
        for number in range(passes + 1):
            for one in contestants:
                found = one.ask(seconds)
                if found is not None and number:
                    one.results.append(found)
            tell(f"round {number} of {passes}")
    finally:
        for one in contestants:
            if one.sentence is None:
                one.end()
    for one in contestants:
        tell(one.summary())


def best(rows: list[dict], number: str, of: Mapping) -> float | None:
    """The largest median of a number among rows that agree with `of`; None without any."""
    found = [row[number]["median"] for row in rows if number in row and of.items() <= row.items()]
    return max(found, default=None)
