"""Reporters: a bar on a terminal, lines in a log, JSON, nothing."""

import io
import json
import os
import pty
import re
import select
import subprocess
import sys
from time import perf_counter

import pytest

from momentex.train import progress
from momentex.train.progress import Bar, JsonLines, Lines, Pace, Quiet, reporter

ROW = {"epoch": 1, "loss": 0.75, "lr": 0.1, "split": "test", "error": 12.5, "nll": 0.5, "seconds": 1.0}


class Terminal(io.StringIO):
    def isatty(self):
        return True


def run(told, epochs=2, steps=3, first_epoch=0):
    told.start(steps, epochs, first_epoch)
    for epoch in range(first_epoch, epochs):
        for step in range(1, steps + 1):
            told.step(epoch, step, 0.25, 10)
        told.epoch({**ROW, "epoch": epoch + 1})
    told.close()


@pytest.fixture
def time(monkeypatch):
    """A clock that goes on by one second at every look."""
    seconds = iter(range(10_000))
    monkeypatch.setattr(progress, "monotonic", lambda: float(next(seconds)))


# --- who is chosen ---------------------------------------------------------------------------------------------------


def test_a_terminal_gets_a_bar_and_everything_else_lines(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    assert type(reporter(stream=Terminal())) is Bar
    assert type(reporter(stream=io.StringIO())) is Lines
    monkeypatch.setenv("TERM", "dumb")
    assert type(reporter(stream=Terminal())) is Lines


def test_quiet_and_json_are_asked_for():
    assert type(reporter(quiet=True, stream=Terminal())) is Quiet
    assert type(reporter(json=True, stream=Terminal())) is JsonLines


def test_json_goes_to_stdout_and_lines_to_stderr(capsys):
    for told in (reporter(json=True), reporter()):
        run(told, epochs=1)
    out, err = capsys.readouterr()
    assert json.loads(out)["error"] == 12.5
    assert err.startswith("epoch 1/1: ")


# --- lines -----------------------------------------------------------------------------------------------------------


def test_a_log_has_a_line_for_each_epoch_with_speed_and_time_left(time):
    stream = io.StringIO()
    run(Lines(stream))
    first, second = stream.getvalue().splitlines()
    # steps are over at 1, 2, 3 seconds and the epoch at 4: two steps of 10 images in 2 seconds, and 3 steps to go
    assert first == "epoch 1/2: loss 0.75, lr 0.1, error 12.50 %, nll 0.5, 10 images/s, 0:04 left"
    assert second == "epoch 2/2: loss 0.75, lr 0.1, error 12.50 %, nll 0.5, 10 images/s"


def test_a_long_epoch_has_a_line_now_and_then(time):
    stream = io.StringIO()
    run(Lines(stream), epochs=1, steps=95)
    lines = stream.getvalue().splitlines()
    assert [
        re.match(r"epoch 1/1, step (\d+)/95: loss 0.25, 10 images/s, \d:\d\d left$", line)[1] for line in lines[:-1]
    ] == [
        "30",
        "60",
        "90",
    ]
    assert lines[-1].startswith("epoch 1/1: ")


def test_time_left_is_of_the_whole_run_and_of_this_process_alone():
    pace = Pace(steps=10, epochs=10, first_epoch=9)  # nine epochs were another process's
    assert pace.left(0.0) is None
    pace.add(9, 5, None, 1, now=100.0)
    assert pace.left(101.0) is None  # nothing to go by: the first step is not timed
    pace.add(9, 6, None, 1, now=102.0)
    assert pace.left(102.0) == 2.0 * 4


def test_what_lies_between_epochs_does_not_slow_the_images_down_and_does_count_for_the_time_left():
    pace = Pace(steps=2, epochs=3, first_epoch=0)
    pace.add(0, 1, 1.0, 50, now=0.0)
    pace.add(0, 2, None, 50, now=1.0)
    pace.end_epoch()
    pace.add(1, 1, None, 50, now=101.0)  # a hundred seconds of evaluation
    pace.add(1, 2, None, 50, now=102.0)
    assert pace.images_per_second == 50.0
    assert pace.left(102.0) == 102.0 / 3 * 2
    assert pace.loss == 1.0


def test_lines_go_through_a_pipe_as_they_come():
    code = (
        "from momentex.train.progress import reporter\nimport sys\n"
        "r = reporter(); r.say('hello'); r.start(1, 1, 0); r.step(0, 1, 1.0, 5); r.epoch({'error': 3.0}); r.close()\n"
        "assert not {'torch', 'numpy', 'tqdm'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "hello\nepoch 1/1: error 3.00 %\n")


# --- the bar ---------------------------------------------------------------------------------------------------------


def shown(text):
    return [part.strip() for part in re.split(r"[\r\n]", text) if part.strip()]


def test_the_bar_shows_epoch_loss_last_error_speed_and_time_left(time):
    stream = Terminal()
    run(Bar(stream))
    looks = shown(stream.getvalue())
    assert looks[-1].startswith("100%")
    assert looks[-1].endswith("epoch 2/2, loss 0.25, error 12.50 %, 10 images/s")
    under_way = r"^83% .* epoch 2/2, loss 0\.25, error 12\.50 %, 10 images/s, \d:\d\d left$"
    assert any(re.search(under_way, look) for look in looks)


def test_the_bar_of_a_run_that_goes_on_begins_where_it_stopped(time):
    stream = Terminal()
    told = Bar(stream)
    told.say("going on after epoch 3")
    told.start(4, 5, 3)
    told.step(3, 1, None, 10)
    told.close()
    notice, *looks = shown(stream.getvalue())
    assert notice == "going on after epoch 3"
    assert looks[0].startswith("60%")
    assert looks[-1].startswith("65%")


def test_a_notice_stands_above_the_bar():
    stream = Terminal()
    told = Bar(stream)
    told.start(4, 5, 0)
    told.say("a checkpoint is damaged")
    told.close()
    assert "a checkpoint is damaged" in shown(stream.getvalue())


@pytest.mark.parametrize("columns", [0, 60, 100])
def test_the_bar_fits_into_a_real_terminal_of_any_width(columns):
    import fcntl
    import struct
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24 if columns else 0, columns, 0, 0))
    with os.fdopen(theirs, "w") as stream:
        told = reporter(stream=stream) if os.environ.get("TERM", "dumb") != "dumb" else Bar(stream)
        told.start(2, 1, 0)
        told.step(0, 1, 0.5, 10)
        told.close()
        said = b""
        while select.select([ours], [], [], 0.3)[0]:  # a terminal hands on what it got in pieces
            said += os.read(ours, 10_000)
    os.close(ours)
    text = said.decode()
    assert "epoch 1/1, loss 0.5" in text
    assert max(map(len, shown(text))) <= (columns or 80)


# --- JSON and nothing ------------------------------------------------------------------------------------------------


def test_every_epoch_is_one_object_and_what_is_not_finite_is_null(capsys):
    stream = io.StringIO()
    told = JsonLines(stream)
    told.say("going on")
    told.epoch({**ROW, "loss": float("nan")})
    told.epoch(ROW)
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert first == {**ROW, "loss": None}
    assert second == ROW
    assert capsys.readouterr().err == "going on\n"


def test_quiet_says_nothing(capfd):
    told = Quiet()
    told.say("hello")
    run(told)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "kind", [lambda: Bar(Terminal()), lambda: Lines(io.StringIO()), lambda: JsonLines(io.StringIO())]
)
def test_a_step_costs_less_than_20_microseconds(kind):
    told, steps = kind(), 20_000
    told.start(steps, 1, 0)
    start = perf_counter()
    for step in range(1, steps + 1):
        told.step(0, step, 0.5, 128)
    assert (perf_counter() - start) / steps < 20e-6
    told.close()
