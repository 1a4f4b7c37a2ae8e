# SPDX-License-Identifier: Apache-2.0
"""A command that is started stopped, so that sampling can be set up before its first instruction."""

from __future__ import annotations

import errno
import os
import pwd
import signal
import struct
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from rubyunwind.errors import RubyUnwindError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Command", "CommandError"]

# What shells return for a command that was not found, or cannot be executed.
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126


class CommandError(RubyUnwindError):
    """The command could not be executed; `exit_status` is what a shell would return."""

    def __init__(self, command: str, code: int) -> None:
        advice = ""
        if code == errno.ENOENT and "/" not in command:
            advice = "; it is in no directory of PATH (sudo sets its own: name the whole path then)"
        super().__init__(f"cannot run {command}: {os.strerror(code)}{advice}")
        self.exit_status = _NOT_FOUND if code == errno.ENOENT else _NOT_EXECUTABLE


class Command:
    """A child process that waits until `start`, then executes `arguments`.

    Under sudo it runs as the user who called sudo. It shares our terminal, so that Ctrl-C reaches it as
    it would without us. Reap it with `poll` or `wait`; `exit_status` is None until then.

    With `output`, a descriptor (borrowed), it is kept off the terminal: what it would write there goes to
    `output`, and it has nothing to read there. Streams that are no terminal stay what they are.
    """

    def __init__(self, arguments: Sequence[str], *, output: int | None = None) -> None:
        if not arguments:
            raise ValueError("a command needs at least one word")
        self.arguments = list(arguments)
        self._output = output
        self.exit_status: int | None = None
        with ExitStack() as ours, ExitStack() as childs:
            # Both pipes close on exec: end of file means success.
            go_read, self._go = os.pipe()
            childs.callback(os.close, go_read)
            ours.callback(os.close, self._go)
            self._failure, failure_write = os.pipe()
            childs.callback(os.close, failure_write)
            ours.callback(os.close, self._failure)
            self.pid = os.fork()
            if self.pid == 0:
                self._child(go_read, failure_write)
            ours.pop_all()

    def _child(self, go: int, failure: int) -> None:
        """Wait for `start`, then become the command. Never returns."""
        code = errno.EIO
        try:
            # Handlers would end with exec; until then a signal has to end this copy of us, not to run in it.
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    signal.signal(number, signal.SIG_DFL)
            os.close(self._go)
            os.close(self._failure)
            if os.read(go, 1):
                # What Python ignores for itself; handlers of ours end with exec by themselves.
                for number in (signal.SIGPIPE, signal.SIGXFSZ):
                    signal.signal(number, signal.SIG_DFL)
                if self._output is not None:
                    _keep_off_terminal(self._output)
                _drop_sudo()
                os.execvp(self.arguments[0], self.arguments)
        except OSError as error:
            code = error.errno or errno.EIO
        except ValueError:  # a zero byte in a word
            code = errno.EINVAL
        finally:
            # Whatever happens, this copy of our process must not go on where the parent does.
            try:
                os.write(failure, struct.pack("i", code))
            finally:
                os._exit(_NOT_FOUND)

    def start(self) -> None:
        """Let the command run, once. Raises CommandError if it cannot be executed."""
        if self._go < 0:
            raise RuntimeError(f"{self.arguments[0]} was started or given up before")
        try:
            with suppress(BrokenPipeError):  # killed while it waited: its exit status says so
                os.write(self._go, b"!")
            answer = os.read(self._failure, 4)
        finally:
            self._close_pipes()
        if answer:
            self.wait()
            raise CommandError(self.arguments[0], struct.unpack("i", answer)[0])

    def poll(self) -> int | None:
        """Return the exit status if the command has ended: its own, or 128 + n if signal n killed it."""
        return self._reap(os.WNOHANG)

    def wait(self) -> int:
        """Wait until the command ends and return its exit status."""
        status = self._reap(0)
        assert status is not None
        return status

    def _reap(self, options: int) -> int | None:
        if self.exit_status is None:
            pid, status = os.waitpid(self.pid, options)
            if pid:
                code = os.waitstatus_to_exitcode(status)
                self.exit_status = 128 - code if code < 0 else code
        return self.exit_status

    def close(self) -> None:
        """Give up a command that was not started: it ends without having run. Twice is harmless."""
        if self._go >= 0:
            self._close_pipes()
            # Another child of ours may hold a copy of the pipe, which then never ends: not only close it.
            os.kill(self.pid, signal.SIGKILL)
            self.wait()

    def _close_pipes(self) -> None:
        os.close(self._go)
        os.close(self._failure)
        self._go = self._failure = -1


def _keep_off_terminal(output: int) -> None:
    """Put something else in the place of each standard stream that is a terminal."""
    for stream in (0, 1, 2):
        if os.isatty(stream):
            other = os.open(os.devnull, os.O_RDONLY) if stream == 0 else output
            os.dup2(other, stream)
            if stream == 0:
                os.close(other)


def _drop_sudo() -> None:
    """Become the user who called sudo, if there is one: ids, groups, and the environment's names for them."""
    uid, gid, user = (os.environ.get(f"SUDO_{name}") for name in ("UID", "GID", "USER"))
    if os.getuid() != 0 or not uid or not gid or uid == "0":
        return
    home = ""
    with suppress(KeyError):  # a user may be in no database
        home = pwd.getpwuid(int(uid)).pw_dir
    if user:
        os.initgroups(user, int(gid))
    else:
        os.setgroups([int(gid)])
    os.setgid(int(gid))
    os.setuid(int(uid))
    if user and home and os.environ.get("USER") == "root":
        os.environ.update(USER=user, LOGNAME=user, HOME=home)
