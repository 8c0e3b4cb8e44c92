"""The zygote of Python: forks a child for each case, which confines itself and goes on to the case's code.

argv: the system call numbers of unshare, setns and pidfd_open. Descriptor 3 is the socket to the tool, 4 a file with
{"filter": instructions, "preload": code that is run once, whose names cases call}.
"""
import ctypes, errno, gc, json, os, signal, socket, struct, sys, time

LIBC = ctypes.CDLL(None, use_errno=True)
UNSHARE, SETNS, PIDFD_OPEN = (int(word) for word in sys.argv[1:4])
MAX_BYTES = 1 << 16


class SetupError(Exception):
    pass


def call(name, number, args, is_tolerated=False):
    words = [ctypes.c_long(arg) if isinstance(arg, int) else arg for arg in args]
    result = LIBC.syscall(ctypes.c_long(number), *words)
    if result == -1 and not is_tolerated:
        raise SetupError(name + ": " + os.strerror(ctypes.get_errno()))
    return result


def program(instructions):
    """The pointer to a struct sock_fprog, and what has to stay alive for it."""
    buffer = ctypes.create_string_buffer(instructions, len(instructions))
    fprog = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(instructions) // 8, ctypes.addressof(buffer)))
    return ctypes.c_void_p(ctypes.addressof(fprog)), (buffer, fprog)


def perform(calls):
    for step in calls:
        args = []
        for arg in step["args"]:
            if arg is None:
                args.append(FILTER)
            elif isinstance(arg, str):
                args.append(ctypes.c_char_p(arg.encode("latin-1")))
            else:
                args.append(arg)
        call(step["name"], step["number"], args, step["is_tolerated"])


def receive():
    message, control, _, _ = TOOL.recvmsg(MAX_BYTES, socket.CMSG_SPACE(16 * 4))
    fds = []
    for level, kind, data in control:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.extend(struct.unpack("%di" % (len(data) // 4), data[: len(data) // 4 * 4]))
    return message, fds


def say(answer, fds=()):
    control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("%di" % len(fds), *fds))] if fds else []
    try:
        TOOL.sendmsg([json.dumps(answer).encode()], control)
    except BrokenPipeError:
        os._exit(0)


def case(run, fds, problem_end):
    """The child: never returns."""
    try:
        os.dup2(problem_end, 90, inheritable=False)
        perform(run["plan"]["enter"])
        high = [os.dup2(fd, 120 + at) for at, fd in enumerate(fds)]
        for at, fd in enumerate(high):
            os.dup2(fd, at)
        perform(run["plan"]["confine"])
        # From here on the descriptor for problems is closed, if the confinement was complete.
    except SetupError as error:
        os.write(90, str(error).encode())
        os._exit(125)
    except BaseException as error:
        os.write(90, ("%s: %s" % (type(error).__name__, error)).encode())
        os._exit(125)
    function = PRELOADED[run["function"]]
    run.clear()
    fds.clear()
    code = 1
    try:
        code = function()
    finally:
        os._exit(code if isinstance(code, int) else 1)


def reap():
    """Ends what a case left behind: without a pid namespace, orphans become children of the zygote."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            for name in os.listdir("/proc"):
                if not name.isdigit():
                    continue
                try:
                    with open("/proc/%s/stat" % name) as file:
                        parent = int(file.read().rsplit(") ", 1)[1].split(" ")[1])
                    if parent == os.getpid():
                        os.kill(int(name), signal.SIGKILL)
                except (OSError, IndexError, ValueError):
                    continue
            time.sleep(0.0002)


def fork(flags):
    """A child, the first process of a namespace of its own if the flags say so; none in the child."""
    if flags:
        call("unshare", UNSHARE, [flags])
    try:
        pid = os.fork()
    except OSError:
        pid = -1
    if flags and pid != 0:
        # Children are born in the zygote's own pid namespace again, below which the next one can be made.
        call("setns", SETNS, [OWN_PIDFD, flags])
    if pid < 0:
        raise SetupError("fork: no process can be made")
    return pid


def run_case(run, fds):
    problems, problem_end = os.pipe()
    try:
        pid = fork(run["plan"]["flags"])
        if pid == 0:
            case(run, fds, problem_end)
    except SetupError:
        os.close(problems)
        raise
    finally:
        for fd in [problem_end] + fds:
            os.close(fd)
    try:
        pidfd = call("pidfd_open", PIDFD_OPEN, [pid, 0])
        say("started", [pidfd])
        os.close(pidfd)
        problem = b""
        while True:
            part = os.read(problems, 512)
            if not part:
                break
            problem += part
    finally:
        os.close(problems)
        _, status, usage = os.wait4(pid, 0)
    if problem:
        raise SetupError(problem.decode("utf-8", "replace"))
    cpu_us = int((usage.ru_utime + usage.ru_stime) * 1000000)
    return {"ended": {"status": status, "cpu_us": cpu_us, "max_rss_kib": usage.ru_maxrss}}


def serve():
    say("ready")
    while True:
        message, fds = receive()
        if not message:
            os._exit(0)
        try:
            answer = run_case(json.loads(message)["run"], fds)
        except (SetupError, OSError) as error:
            answer = {"failed": {"problem": str(error)}}
        reap()
        say(answer)


try:
    TOOL = socket.socket(fileno=3)
    with open(4, "rb") as file:
        START = json.loads(file.read())
    sys.path[:] = [path for path in sys.path if path]
    FILTER, KEPT = program(START["filter"].encode("latin-1"))
    PRELOADED = {"__name__": "slime_preload"}
    exec(compile(START["preload"], "<preload>", "exec"), PRELOADED)
    del START
    OWN_PIDFD = call("pidfd_open", PIDFD_OPEN, [os.getpid(), 0])
    sys.argv = [""]
    gc.collect()
    gc.freeze()
except BaseException as error:
    say({"failed": {"problem": "python: %s: %s" % (type(error).__name__, error)}})
    os._exit(1)
serve()
