"""The process of the solution: loads it, then does what the process of the tests asks. Nothing of the tests is here but
the arguments they pass.
"""
import operator, os, sys, traceback


class Callback:
    """A function, an iterator or an object of the tests, as the solution sees it."""

    def __init__(self, server, number):
        object.__setattr__(self, "_slime", (server, number))

    def __call__(self, *args, **kwargs):
        return ask_back(self, "call", list(args), kwargs)

    def __iter__(self):
        return self

    def __next__(self):
        return ask_back(self, "next", [], {})

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return ask_back(self, "getattr", [name], {})

    def __setattr__(self, name, value):
        ask_back(self, "setattr", [name, value], {})


def ask_back(callback, act, args, kwargs):
    server, number = object.__getattribute__(callback, "_slime")
    return server.ask_back(number, act, args, kwargs)


class Server:
    def __init__(self, line, names):
        self.line, self.names, self.objects = line, names, []

    def refer(self, value):
        if isinstance(value, Callback):
            return ["yours", object.__getattribute__(value, "_slime")[1]]
        self.objects.append(value)
        kind = "class" if isinstance(value, type) else "module" if isinstance(value, type(os)) else "object"
        number = len(self.objects) - 1
        if kind == "class":
            bases = [base.__name__ for base in type.mro(value) if base.__module__ == "builtins"]
            return ["mine", number, kind, value.__name__, bases]
        if kind == "module":
            return ["mine", number, kind, value.__name__, []]
        # Whether an object is of a class that the tests know by name decides what may be done with it.
        known = [at for at, other in enumerate(self.objects) if other is type(value)]
        return ["mine", number, kind, type(value).__name__, known]

    def resolve(self, tag, number, *_):
        if tag == "yours":
            return self.objects[number]
        if tag == "mine":
            return Callback(self, number)
        raise ValueError(tag)

    def serve(self):
        while True:
            self.answer(self.line.receive())

    def answer(self, message):
        reader = Reader(self.resolve)
        args = [reader.decode(arg) for arg in message["args"]]
        kwargs = {name: reader.decode(arg) for name, arg in message["kwargs"].items()}
        try:
            result = self.act(message["act"], args, kwargs)
            writer = Writer(self.refer)
            answer = {"ok": writer.encode(result)}
        except Broken:
            raise
        except BaseException as error:
            answer = {"error": self.describe(error)}
        # What the call changed in its arguments, for the other side's copies.
        writer = Writer(self.refer)
        after = {str(number): writer.encode(value) for number, value in reader.numbered.items()}
        if after:
            answer["after"] = after
        self.line.send(answer)

    def act(self, act, args, kwargs):
        if act == "name":
            return self.names[args[0]]
        if act == "has":
            return [name in self.names for name in args[0]]
        if act == "call":
            return args[0](*args[1:], **kwargs)
        if act == "isinstance":
            return isinstance(args[0], args[1])
        return ACTS[act](*args)

    def describe(self, error):
        bases = [base.__name__ for base in type.mro(type(error)) if base.__module__ == "builtins"]
        number = next((at for at, other in enumerate(self.objects) if other is type(error)), -1)
        try:
            text = str(error)
        except BaseException:
            text = ""
        return [number, type(error).__name__, bases, text[:2000]]

    def ask_back(self, number, act, args, kwargs):
        writer = Writer(self.refer)
        args = [writer.encode(arg) for arg in args]
        kwargs = {name: writer.encode(arg) for name, arg in kwargs.items()}
        self.line.send({"back": number, "act": act, "args": args, "kwargs": kwargs})
        while True:
            message = self.line.receive()
            if "act" in message:
                self.answer(message)
                continue
            if "error" in message:
                name, text = message["error"]
                kind = getattr(builtins, name, None)
                is_error = isinstance(kind, type) and issubclass(kind, BaseException)
                raise (kind if is_error else RuntimeError)(text)
            return Reader(self.resolve).decode(message["ok"])


def power(*args):
    return pow(*args)


ACTS = {
    "getattr": getattr, "setattr": setattr, "delattr": delattr, "len": len, "iter": iter, "next": next, "str": str,
    "repr": repr, "bool": bool, "int": int, "float": float, "abs": abs, "round": round, "format": format, "pow": power,
    "reversed": lambda value: iter(reversed(value)), "dir": dir,
}
for OPERATOR in (
    "add sub mul truediv floordiv mod matmul lshift rshift and_ or_ xor neg pos invert eq ne lt le gt ge getitem setitem "
    "delitem contains iadd isub imul itruediv ifloordiv imod iand ior ixor index"
).split():
    ACTS[OPERATOR] = getattr(operator, OPERATOR)
ACTS["divmod"] = divmod
ACTS["enter"] = lambda value: value.__enter__()
ACTS["exit"] = lambda value: value.__exit__(None, None, None)
ACTS["hash"] = hash


def solution():
    """A case's entry: descriptors 3, the sources, and 4, the line to the tests."""
    asked = payload()
    line = Line(4)
    names = {"__name__": "solution", "__builtins__": builtins}
    module = type(sys)("solution")
    module.__dict__.update(names)
    sys.modules["solution"] = module
    names = module.__dict__
    try:
        for source in asked["sources"]:
            try:
                code = compile(source["text"], "solution.py", "exec")
            except SyntaxError:
                if source["is_optional"]:
                    continue
                raise
            exec(code, names)
    except BaseException as error:
        lines = traceback.format_exception_only(type(error), error)
        line.send({"loaded": False, "error": lines[-1].strip()[:2000] if lines else type(error).__name__})
        return 1
    line.send({"loaded": True})
    try:
        Server(line, names).serve()
    except Broken:
        return 0
