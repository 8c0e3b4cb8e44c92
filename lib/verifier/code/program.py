"""A whole program on stdin and stdout, as `python3 main.py` would run it."""
import atexit, io, os, sys, threading, traceback


def program():
    """A case's entry: descriptor 3, the source."""
    source = payload()["source"]
    module = type(sys)("__main__")
    sys.modules["__main__"] = module
    module.__dict__["__builtins__"] = builtins
    module.__dict__["__file__"] = "main.py"
    sys.argv = ["main.py"]
    code = 0
    try:
        exec(compile(source, "main.py", "exec"), module.__dict__)
    except SystemExit as end:
        code = end.code
        if code is not None and not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    except BaseException as error:
        # Without the lines of this file.
        inner = error.__traceback__.tb_next if error.__traceback__ else None
        traceback.print_exception(type(error), error, inner)
        code = 1
    try:
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        code = code or 120
    return (code or 0) & 0xFF
