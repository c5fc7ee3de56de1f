"""Signals, forked and spawned processes, servers that end, and how interpreters end with sessions open."""

from __future__ import annotations

import re
import signal

import pytest
from programs import until

HEAD = """
import logging, os, signal, sys, threading, time
import torch
import gradbus

logging.getLogger("gradbus").addHandler(logging.NullHandler())  # of joins that take long here

def make(session, **more):
    torch.manual_seed(5)
    model = torch.nn.Sequential(gradbus.EmbeddingBag(100, 4, name="users"), torch.nn.Linear(4, 1))
    return model, gradbus.Optimizer(model, session, embeddings=gradbus.SGD(0.1), dense=gradbus.SGD(0.1), **more)

def step(model, opt, ids=None):
    loss = model(torch.randint(0, 100, (4, 3)) if ids is None else ids).square().mean()
    loss.backward()
    opt.step()
    opt.zero_grad()
    return float(loss.detach())

def joined(server, trainers=1, name="edges"):
    return gradbus.join(server, name, trainers=trainers, manifest={"policy": "fail"})
"""


def program(start, body, *arguments, **env):
    return start.python(HEAD + "\n" + re.sub(r"(?m)^    ", "", body), *arguments, **env)


def interpreter(start, body, *arguments):
    return start.interpreter(HEAD + "\n" + re.sub(r"(?m)^    ", "", body), *arguments)


def ended(program, status, out=None, err=None):
    assert program.end() == status, program.said()
    if out is not None:
        assert program.out.read_text() == out, program.said()
    if err is not None:
        text = program.err.read_text()
        assert text == "" if err == "" else re.search(err, text), program.said()


# Ctrl-C.


def test_interrupt_in_a_wait_for_another_trainer(start):
    """The first trainer steps and waits for the second, which computes for ever; Ctrl-C reaches the first, and the
    second hears why."""
    _, server = start.ps()
    first = program(
        start,
        """
    session = joined(sys.argv[1], 2)
    model, opt = make(session)
    def usr1(_, frame):  # "usr1" says that the main thread is in the wait for a whole batch
        while frame is not None and frame.f_code.co_name != "settle":
            frame = frame.f_back
        if frame is not None:
            print("usr1", flush=True)
    signal.signal(signal.SIGUSR1, usr1)
    step(model, opt)
    try:
        print("waits", flush=True)
        step(model, opt)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    try:
        step(model, opt)
    except gradbus.Error as error:
        print(type(error).__name__, flush=True)
    session.close()
    print("closed", flush=True)
    """,
        server,
    )
    second = program(
        start,
        """
    session = joined(sys.argv[1], 2)
    model, opt = make(session)
    step(model, opt)
    print("stepped", flush=True)
    end = time.monotonic() + 60
    while not os.path.exists(sys.argv[2]):
        assert time.monotonic() < end
        time.sleep(0.01)
    try:
        step(model, opt)
    except gradbus.JobError as error:
        print(error, flush=True)
    """,
        server,
        start.folder / "go on",
    )
    first.wait_for("waits")
    second.wait_for("stepped")

    def handled():  # Python's other handlers run within the wait, and it goes on
        first.signal(signal.SIGUSR1)
        return "usr1" in first.out.read_text()

    until(handled, "a signal is handled within the wait")
    first.signal(signal.SIGINT)
    first.wait_for("interrupted")
    ended(first, 0, err="")
    assert re.search(r"\n(CanceledError|ClosedError)\nclosed\n$", first.out.read_text()), first.said()
    (start.folder / "go on").touch()
    ended(second, 0)
    assert "cancel" in second.out.read_text(), second.said()


def test_interrupt_in_a_join_that_waits_for_trainers(start):
    _, server = start.ps()
    lonely = program(
        start,
        """
    session = joined(sys.argv[1], 2)
    model, opt = make(session)
    signal.signal(signal.SIGUSR1, lambda *_: print("usr1", flush=True))
    try:
        print("joins", flush=True)
        session.start()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    session.close()
    """,
        server,
    )
    lonely.wait_for("joins")
    lonely.signal(signal.SIGUSR1)
    lonely.wait_for("usr1")
    lonely.signal(signal.SIGINT)
    ended(lonely, 0, "joins\nusr1\ninterrupted\n", "")


def test_interrupt_that_nobody_catches_ends_the_script_as_python_does(start):
    _, server = start.ps()
    one = program(
        start,
        """
    session = joined(sys.argv[1])
    model, opt = make(session)
    print("trains", flush=True)
    while True:
        step(model, opt)
    """,
        server,
    )
    one.wait_for("trains")
    one.signal(signal.SIGINT)
    ended(one, -signal.SIGINT, err=r"KeyboardInterrupt\n?$")


def test_terminate_ends_the_process_by_the_signal(start):
    one = program(
        start,
        """
    session = gradbus.local("edges")
    model, opt = make(session)
    step(model, opt)
    print("trains", flush=True)
    while True:
        step(model, opt)
    """,
    )
    one.wait_for("trains")
    one.signal(signal.SIGTERM)
    ended(one, -signal.SIGTERM, err="")


# Servers and trainers that end.


def test_a_ps_that_is_killed_in_mid_epoch_is_named_in_all_trainers(start):
    ps, server = start.ps()
    source = """
    session = gradbus.join(sys.argv[1], "edges", trainers=2, reconnect_timeout=2.0)
    model, opt = make(session)
    step(model, opt)
    print("trains", flush=True)
    try:
        while True:
            step(model, opt)
    except gradbus.ServerError as error:
        print("error:", error, flush=True)
    """
    trainers = [program(start, source, server) for _ in range(2)]
    for trainer in trainers:
        trainer.wait_for("trains")
    ps.kill()
    for trainer in trainers:
        ended(trainer, 0, err="")
        assert re.search(rf"error: .*{re.escape(server.split('://')[1])}", trainer.out.read_text()), trainer.said()


def test_a_trainer_that_ends_by_an_exception_is_named_to_the_other(start):
    _, server = start.ps()
    faulty = program(
        start,
        """
    session = joined(sys.argv[1], 2)
    model, opt = make(session)
    step(model, opt)
    raise ValueError("row 7 of ratings.csv")
    """,
        server,
    )
    other = program(
        start,
        """
    session = joined(sys.argv[1], 2)
    model, opt = make(session)
    try:
        while True:
            step(model, opt)
    except gradbus.JobError as error:
        print(error)
    """,
        server,
    )
    ended(faulty, 1, err="row 7 of ratings.csv")
    ended(other, 0, err="")
    assert re.search(r"ended at batch \d+: ValueError: row 7 of ratings.csv", other.out.read_text()), other.said()


def test_no_server_is_an_error_that_names_the_address(start):
    ended(
        program(
            start,
            """
    session = joined("nats://127.0.0.1:1")
    model, opt = make(session)
    try:
        step(model, opt)
    except gradbus.ServerError as error:
        assert "127.0.0.1:1" in str(error), error
        print("named")
    """,
        ),
        0,
        "named\n",
        "",
    )


# How an interpreter ends.


@pytest.mark.parametrize("state", ["made", "joined", "forward", "backward", "stepped", "read", "failed"])
def test_the_interpreter_ends_with_a_session_open(start, state):
    ended(
        program(
            start,
            """
    session = gradbus.local("edges")
    model, opt = make(session)
    state, ids = sys.argv[1], torch.tensor([[1, 2, 3]])
    if state == "joined":
        session.start()
    if state in ("forward", "backward"):
        loss = model(ids).sum()
        if state == "backward":
            loss.backward()
    if state in ("stepped", "read"):
        step(model, opt)
    if state == "read":
        session.lookup("users", ids)
    if state == "failed":
        try:
            model(torch.tensor([[100]]))
        except IndexError as error:
            pass
    print("end")
    """,
            state,
        ),
        0,
        "end\n",
        "",
    )


def test_the_interpreter_ends_while_another_thread_waits(start):
    """A thread that waits for a second trainer is freed by the end, which does not wait until it has said so."""
    _, server = start.ps()
    waiting = program(
        start,
        """
    session = joined(sys.argv[1], 2)
    model, opt = make(session)
    def wait():
        try:
            session.start()
        except gradbus.CanceledError:
            print("canceled", flush=True)
    threading.Thread(target=wait, daemon=True).start()
    while not session._joining:
        time.sleep(0.001)
    print("end", flush=True)
    """,
        server,
    )
    ended(waiting, 0)
    # the end of the interpreter may come in the middle of what the thread prints
    assert "end\ncanceled\n".startswith(waiting.out.read_text()), waiting.said()
    assert waiting.out.read_text().startswith("end\n"), waiting.said()


def test_exit_codes_and_system_exit(start):
    ended(
        program(
            start,
            """
    session = gradbus.local("edges")
    model, opt = make(session)
    step(model, opt)
    sys.exit(7)
    """,
        ),
        7,
        "",
        "",
    )


def test_sessions_without_references_are_gone(start):
    ended(
        program(
            start,
            """
    import gc, weakref
    for i in range(3):
        session = gradbus.local(f"edges{i}")
        model, opt = make(session)
        step(model, opt)
        session.close()
        gone = [weakref.ref(x) for x in (session, model, opt)]
        del session, model, opt
        gc.collect()
        assert [ref() for ref in gone] == [None, None, None], gone
    print("gone")
    """,
        ),
        0,
        "gone\n",
        "",
    )


def test_a_session_that_nobody_refers_to_leaves_its_job(start):
    """The name is free again, for a session that is made in a loop and never closed."""
    _, server = start.ps()
    ended(
        program(
            start,
            """
    import gc, warnings
    digests = set()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for i in range(3):
            end = time.monotonic() + 60
            while True:
                session = joined(sys.argv[1])
                model, opt = make(session)
                try:
                    step(model, opt, torch.tensor([[1, 2]]))
                    break
                except gradbus.JobError as error:  # the one before has not left yet
                    assert time.monotonic() < end, error
                    session.close()
                    time.sleep(0.01)
            digests.add(session.digest())
            del session, model, opt
            gc.collect()
    assert len(digests) == 1, digests
    said = [str(warning.message) for warning in warned if warning.category is ResourceWarning]
    assert "session 'edges' was never closed" in said[0], said
    print("free")
    """,
            server,
        ),
        0,
        "free\n",
        "",
    )


# Processes of this one.


def test_a_forked_child_is_told_what_would_be_right_and_ends_cleanly(start):
    ended(
        program(
            start,
            """
    session = gradbus.local("edges")
    model, opt = make(session)
    step(model, opt)
    sys.stdout.flush()
    for what in ("lookup", "step", "another", "digest", "close", "exit"):
        child = os.fork()
        if child == 0:
            try:
                if what == "lookup":
                    session.lookup("users", torch.tensor([1]))
                elif what == "step":
                    step(model, opt)
                elif what == "another":
                    gradbus.local("other")
                elif what == "digest":
                    session.digest()
                elif what == "close":
                    session.close()  # the parent's to close: nothing happens
                    sys.exit(0)
                else:
                    sys.exit(0)  # atexit runs
            except gradbus.ForkedError as error:
                assert "spawn" in str(error), error
                sys.exit(0)
            os._exit(9)
        pid, status = os.waitpid(child, 0)
        assert status == 0, (what, status)
    before = session.digest()
    step(model, opt)  # the parent goes on
    assert session.digest() != before
    print("parent")
    """,
        ),
        0,
        "parent\n",
        "",
    )


def test_workers_of_a_data_loader_beside_a_session(start):
    """Forked workers load batches and never touch the session; spawned ones do not even have it. A data set that looks
    rows up in a forked worker gets the exception in the trainer."""
    ended(
        interpreter(
            start,
            """
    import warnings
    from torch.utils.data import DataLoader, Dataset

    class Ids(Dataset):
        def __init__(self, session=None):
            self.session = session
        def __len__(self):
            return 16
        def __getitem__(self, i):
            if self.session is not None:
                self.session.lookup("users", torch.tensor([i]))
            return torch.tensor([i, i + 1, i + 2])

    def main():
        session = gradbus.local("edges")
        model, opt = make(session)
        step(model, opt)
        digests = []
        for method in ("fork", "spawn"):
            loader = DataLoader(Ids(), batch_size=4, num_workers=1, multiprocessing_context=method)
            seen = [ids[0, 0].item() for ids in gradbus.prefetch(loader) if step(model, opt, ids) >= 0]
            assert seen == [0, 4, 8, 12], seen
        try:
            list(DataLoader(Ids(session), batch_size=4, num_workers=1, multiprocessing_context="fork"))
        except gradbus.ForkedError as error:
            assert "spawn" in str(error), error
            print("forked")
        warnings.filterwarnings("ignore", message="Got pickle error")  # what PyTorch 2.14 says before it raises it
        try:
            list(DataLoader(Ids(session), batch_size=4, num_workers=1, multiprocessing_context="spawn"))
        except TypeError as error:
            assert "cannot be pickled" in str(error), error
            print("pickled")
        step(model, opt)
        session.close()

    if __name__ == "__main__":
        main()
    """,
        ),
        0,
        "forked\npickled\n",
        "",
    )
