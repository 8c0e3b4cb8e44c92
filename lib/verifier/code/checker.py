"""The process of the tests: runs them with the solution far away. No line of the solution ever runs here, and nothing
that it does decides what is reported: only the tests' own comparisons of plain values do.
"""
import ast, importlib, os, sys, types


class SolutionError(Exception):
    """An error of a class that only the solution knows."""


def named_operators(proxy):
    return object.__getattribute__(proxy, "_slime")[2]


class Proxy:
    """An object of the solution. Comparing it with a value of the tests says no, whatever it would say itself."""

    def __init__(self, client, number, is_known):
        object.__setattr__(self, "_slime", (client, number, is_known))

    def __call__(self, *args, **kwargs):
        return far(self, "call", args, kwargs)

    def __getattr__(self, name):
        if name.startswith("__") and name not in ("__name__", "__doc__", "__dict__", "__class__"):
            raise AttributeError(name)
        return far(self, "getattr", (name,))

    def __setattr__(self, name, value):
        far(self, "setattr", (name, value))

    def __delattr__(self, name):
        far(self, "delattr", (name,))

    def __eq__(self, other):
        return isinstance(other, Proxy) and (other is self or bool(far(self, "eq", (other,))))

    def __ne__(self, other):
        return not self == other

    def __hash__(self):
        return hash(far(self, "hash"))

    def __instancecheck__(self, value):
        return isinstance(value, Proxy) and bool(far(value, "isinstance", (self,)))

    def __bool__(self):
        return bool(far(self, "bool"))

    def __repr__(self):
        return str(far(self, "repr"))

    def __str__(self):
        return str(far(self, "str"))

    def __format__(self, spec):
        return str(far(self, "format", (spec,)))

    def __exit__(self, *_):
        return far(self, "exit")


def far(proxy, act, args=(), kwargs=None):
    client, number, _ = object.__getattribute__(proxy, "_slime")
    return client.ask(act, [proxy, *args], kwargs or {})


def forward(act, is_guarded):
    def method(self, *args):
        # An operand may be what the tests expect: an object of an unknown class would learn it and answer as it likes.
        if is_guarded and not named_operators(self) and not all(isinstance(arg, Proxy) for arg in args):
            return NotImplemented
        return far(self, act, args)

    return method


def mirrored(act):
    def method(self, other):
        if not named_operators(self):
            return NotImplemented
        client, _, _ = object.__getattribute__(self, "_slime")
        return client.ask(act, [other, self], {})

    return method


def ordered(act):
    def method(self, other):
        return far(self, act, (other,)) if isinstance(other, Proxy) else NotImplemented

    return method


def contains(self, item):
    return named_operators(self) and bool(far(self, "contains", (item,)))


for NAME in "len iter next getitem setitem delitem neg pos invert int float abs round reversed dir enter index".split():
    setattr(Proxy, "__%s__" % NAME, forward(NAME, False))
for NAME in "add sub mul truediv floordiv mod matmul lshift rshift and or xor pow divmod".split():
    ACT = NAME + "_" if NAME in ("and", "or") else NAME
    setattr(Proxy, "__%s__" % NAME, forward(ACT, True))
    setattr(Proxy, "__r%s__" % NAME, mirrored(ACT))
for NAME in "lt le gt ge".split():
    setattr(Proxy, "__%s__" % NAME, ordered(NAME))
Proxy.__contains__ = contains


class Client:
    def __init__(self, line):
        self.line, self.lent, self.classes, self.errors = line, [], {}, {}

    def refer(self, value):
        if isinstance(value, Proxy):
            return ["yours", object.__getattribute__(value, "_slime")[1]]
        for number, kind in self.errors.items():
            if kind is value:
                return ["yours", number]
        self.lent.append(value)
        return ["mine", len(self.lent) - 1]

    def resolve(self, tag, number, *rest):
        if tag == "yours":
            return self.lent[number]
        if tag != "mine" or type(number) is not int:
            raise ValueError(tag)
        kind, name, more = rest
        if kind == "module":
            return importlib.import_module(name)
        if kind == "class":
            if "BaseException" in more:
                return self.error_class(number, name, more)
            self.classes[number] = name
            return Proxy(self, number, False)
        return Proxy(self, number, any(known in self.classes for known in more))

    def error_class(self, number, name, bases):
        if number not in self.errors:
            self.errors[number] = type(str(name), (builtin_error(bases),), {})
        return self.errors[number]

    def ask(self, act, args, kwargs):
        writer = Writer(self.refer)
        args = [writer.encode(arg) for arg in args]
        kwargs = {name: writer.encode(arg) for name, arg in kwargs.items()}
        self.line.send({"act": act, "args": args, "kwargs": kwargs})
        while True:
            message = self.line.receive()
            if "back" not in message:
                break
            self.line.send(self.answer_back(message))
        reader = Reader(self.resolve)
        after = message.get("after", {})
        for number, value in after.items():
            restore(writer.kept[int(number)], reader.decode(value))
        if "error" in message:
            number, name, bases, text = message["error"]
            kind = self.errors[number] if number in self.errors else builtin_error(bases)
            raise kind(text if type(text) is str else "")
        return Reader(self.resolve).decode(message["ok"])

    def answer_back(self, message):
        """The solution calls what the tests lent it: functions, iterators, and objects of the tests' own classes."""
        reader = Reader(self.resolve)
        target = self.lent[message["back"]]
        args = [reader.decode(arg) for arg in message["args"]]
        kwargs = {name: reader.decode(arg) for name, arg in message["kwargs"].items()}
        act = message["act"]
        try:
            if act == "call":
                result = target(*args, **kwargs)
            elif act == "next":
                result = next(target)
            elif is_own(target) and type(args[0]) is str and not args[0].startswith("_"):
                result = getattr(target, args[0]) if act == "getattr" else setattr(target, *args)
            else:
                raise AttributeError(args[0])
            return {"ok": Writer(self.refer).encode(result)}
        except Broken:
            raise
        except BaseException as error:
            return {"error": [type(error).__name__, str(error)]}


def is_own(value):
    """Whether this is an object of a class that the tests define, through which nothing else can be reached."""
    return type(value).__module__ == "tests" and not isinstance(value, (type, types.FunctionType, types.ModuleType))


def builtin_error(bases):
    """The nearest error of Python's own; ends of the process become ordinary errors."""
    kinds = [getattr(builtins, name, None) for name in bases if type(name) is str]
    kinds = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Exception)]
    return kinds[0] if kinds else SolutionError


def names_of(code):
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= names_of(constant)
    return found


def looked_into(text):
    """Names in front of a dot that are never called themselves, such as modules."""
    nodes = list(ast.walk(ast.parse(text)))
    called = {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    return {node.value.id for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)} - called


# What tests use without saying where it comes from.
ALIASES = {"np": "numpy", "pd": "pandas"}
KNOWN_MODULES = set(getattr(sys, "stdlib_module_names", sys.builtin_module_names)) | set(ALIASES.values())


class Tests:
    def __init__(self, asked, client):
        self.asked, self.client = asked, client
        module = types.ModuleType("tests")
        sys.modules["tests"] = module
        self.names = module.__dict__
        # For tests that import what they test.
        solution = sys.modules["solution"] = types.ModuleType("solution")
        solution.__getattr__ = self.import_name

    def import_name(self, name):
        if name.startswith("__") or self.client.ask("has", [[name]], {}) != [True]:
            raise AttributeError(name)
        return self.client.ask("name", [name], {})

    def compiled(self):
        """The parts of the tests: code, and whether it counts."""
        try:
            trusted = [compile(text, "prompt.py", "exec") for text in self.asked["trusted"]]
        except SyntaxError:
            trusted = []
        parts = [(compile(text, "setup.py", "exec"), False) for text in self.asked["setup"]]
        for text in self.asked["tests"]:
            tree = ast.parse(text, "tests.py")
            asserts = [isinstance(node, ast.Assert) for node in tree.body]
            if self.asked["is_split"] and any(asserts):
                for node, counts in zip(tree.body, asserts):
                    parts.append((compile(ast.Module([node], []), "tests.py", "exec"), counts))
            else:
                parts.append((compile(tree, "tests.py", "exec"), True))
        return trusted, parts

    def bind(self, codes):
        """Names of the tests that the solution defines become proxies. It cannot replace what Python itself has, nor the
        modules that the tests look into.
        """
        wanted = set().union(*(names_of(code) for code in codes)) if codes else set()
        under_test = set(self.asked["under_test"])
        for name in looked_into("\n".join(self.asked["tests"])) - under_test:
            module = ALIASES.get(name, name)
            if module in KNOWN_MODULES and name not in self.names:
                try:
                    self.names[name] = importlib.import_module(module)
                except ImportError:
                    continue
        names = [n for n in wanted if n in under_test or not hasattr(builtins, n) and n not in self.names]
        names = sorted(set(names) | {n for n in under_test if n in wanted or self.asked["check"]})
        for name, is_there in zip(names, self.client.ask("has", [names], {})):
            if is_there is True:
                self.names[name] = self.client.ask("name", [name], {})

    def run(self):
        trusted, parts = self.compiled()
        for code in trusted:
            exec(code, self.names)
        self.bind([code for code, _ in parts])
        if self.asked["check"]:
            return self.run_check([code for code, _ in parts])
        num_passed, problems, is_stopped = 0, [], False
        for code, counts in parts:
            problem = "not reached" if is_stopped else self.attempt(lambda: exec(code, self.names))
            num_passed += counts and problem is None
            if problem is not None:
                # After a statement that is no assertion nothing is as the tests want it.
                is_stopped |= not counts
                problems.append(problem)
        return num_passed, sum(counts for _, counts in parts), problems

    def run_check(self, codes):
        """HumanEval: the tests define `check`, which is given the function."""
        for code in codes:
            exec(code, self.names)
        entry = self.asked["under_test"][0]
        if not isinstance(self.names.get(entry), Proxy):
            return 0, 1, ["the code does not define %s" % entry]
        problem = self.attempt(lambda: self.names["check"](self.names[entry]))
        return int(problem is None), 1, [] if problem is None else [problem]

    def attempt(self, act):
        try:
            act()
            return None
        except Broken:
            raise
        except BaseException as error:
            return ("%s: %s" % (type(error).__name__, error))[:300].rstrip(": ")


def report(value):
    with open(4, "w", closefd=False) as file:
        file.write(json.dumps(value))


def checker():
    """A case's entry: descriptors 3, the tests, 4, the report, and 5, the line to the solution."""
    asked = payload()
    line = Line(5)
    tests = Tests(asked, Client(line))
    try:
        tests.compiled()
    except (SyntaxError, ValueError) as error:
        report({"broken": "%s: %s" % (type(error).__name__, error)})
        return 0
    try:
        loaded = line.receive()
        if loaded.get("loaded") is not True:
            report({"passed": 0, "total": 1, "problems": ["the code does not load: %s" % str(loaded.get("error"))[:300]]})
            return 0
        passed, total, problems = tests.run()
    except Broken as error:
        report({"passed": 0, "total": 1, "problems": [str(error)[:300]]})
        return 0
    report({"passed": passed, "total": total, "problems": [str(problem) for problem in problems[:3]]})
    return 0
