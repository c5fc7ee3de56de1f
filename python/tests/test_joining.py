"""What a join says while it waits, and how it ends then; how a job ends by Ctrl-C."""

from __future__ import annotations

import signal

import pytest
from programs import until
from test_edges_processes import ended, program


def test_a_join_that_waits_says_for_whom(start):
    """The log has the job, the server and how many are wanted; a trainer alone waits for nobody and says nothing."""
    _, server = start.ps()
    first = program(
        start,
        """
    import gradbus.joining
    gradbus.joining.LONG = 0.05
    logging.basicConfig(format="%(name)s %(levelname)s %(message)s", stream=open(1, "w", closefd=False))
    session = joined(sys.argv[1], 1)
    model, opt = make(session)
    step(model, opt)
    session.close()
    session = joined(sys.argv[1], 2, "pair")
    model, opt = make(session)
    try:
        step(model, opt)
    except KeyboardInterrupt:
        session.close()
    """,
        server,
    )
    first.wait_for("start the others")
    first.signal(signal.SIGINT)
    text = f"job 'pair': waiting for 2 trainers at {server}, of which this is one; start the others with the same model"
    ended(first, 0, out=f"gradbus WARNING {text}\n")


def test_a_join_that_waits_says_who_was_refused(start):
    """What the library warns of is in Python's log: here a trainer of another manifest, which ends by itself."""
    ps, server = start.ps()
    text = """
    logging.basicConfig(format="%(name)s %(levelname)s %(message)s", stream=open(1, "w", closefd=False))
    session = joined(sys.argv[1], int(sys.argv[2]), "pair")
    model, opt = make(session)
    try:
        step(model, opt)
    except (KeyboardInterrupt, gradbus.JobError) as err:
        print(type(err).__name__)
    session.close()
    """
    first = program(start, text, server, "2")
    until(lambda: "trainer t0 joined" in ps.err.read_text(), "the first trainer")
    ended(program(start, text, server, "3"), 0, out="JobError\n")
    first.wait_for("gradbus WARNING another trainer was refused: job=pair member=t0 reason=job_differs text=")
    first.signal(signal.SIGINT)


def test_abort_of_a_join_that_has_not_got_to_its_wait(start):
    _, server = start.ps()
    ended(
        program(
            start,
            """
    import contextlib
    import gradbus.session
    session = joined(sys.argv[1], 2)
    model, opt = make(session)
    about, on = threading.Event(), threading.Event()
    waiting = gradbus.session.waiting
    @contextlib.contextmanager
    def later(*arguments):
        about.set()
        on.wait()
        with waiting(*arguments):
            yield
    gradbus.session.waiting = later
    def wait():
        try:
            session.start()
        except gradbus.CanceledError:
            print("canceled", flush=True)
    thread = threading.Thread(target=wait)
    thread.start()
    about.wait()
    threading.Timer(0.2, on.set).start()
    session.abort("enough")
    thread.join()
    """,
            server,
        ),
        0,
        "canceled\n",
        "",
    )


def test_abort_of_a_session_that_another_thread_waits_in_is_a_failure(start):
    """The job fails, with the text of the abort, for the ps and for the trainer that was waited for."""
    ps, server = start.ps()
    aborts = program(
        start,
        """
    session = joined(sys.argv[1], 2)
    model, opt = make(session)
    def wait():
        try:
            step(model, opt)
            session.digest()
        except gradbus.CanceledError as error:
            print(error, flush=True)
    thread = threading.Thread(target=wait)
    session.start()
    thread.start()
    names = set()
    while thread.is_alive() and not (names >= {"digest", "wait"} or names >= {"step", "settle", "wait"}):
        time.sleep(0.01)
        names, frame = set(), sys._current_frames().get(thread.ident)
        while frame is not None:
            names.add(frame.f_code.co_name)
            frame = frame.f_back
    session.abort("the sample is broken")
    thread.join()
    """,
        server,
    )
    hears = program(
        start,
        """
    session = joined(sys.argv[1], 2)
    model, opt = make(session)
    session.start()
    try:
        while True:
            session.digest()
    except gradbus.JobError as error:
        print(error, flush=True)
    """,
        server,
    )
    ended(aborts, 0, err="")
    ended(hears, 0)
    for program_of in aborts, hears:
        assert "the sample is broken" in program_of.out.read_text(), program_of.said()
    until(lambda: "job failed" in ps.err.read_text(), "the end of the job in the server's log")
    assert "the sample is broken" in ps.err.read_text() and "job stopped" not in ps.err.read_text(), ps.said()


@pytest.mark.parametrize("meanwhile", ["step(model, opt)", "time.sleep(0.01)"])
def test_interrupt_of_a_job_that_does_not_recover_is_no_failure(start, meanwhile):
    """Neither where it comes in a wait of the library, nor in the script's own work."""
    ps, server = start.ps()
    one = program(
        start,
        f"""
    session = joined(sys.argv[1])
    model, opt = make(session)
    step(model, opt)
    print("trains", flush=True)
    while True:
        {meanwhile}
    """,
        server,
    )
    one.wait_for("trains")
    one.signal(signal.SIGINT)
    ended(one, -signal.SIGINT, err=r"KeyboardInterrupt\n?$")
    until(lambda: "job stopped: trainer t0" in ps.err.read_text(), "the end of the job in the server's log")
    assert "job failed" not in ps.err.read_text(), ps.said()
