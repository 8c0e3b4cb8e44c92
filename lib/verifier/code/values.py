"""Values between the process of the solution and that of the tests: plain data is copied as what it is (a subclass as
its plain base, so nothing overridden travels), everything else stays where it is and travels as a number.

Text only (JSON with a tag in front of what JSON lacks): reading it runs no code.
"""
import builtins, collections, datetime, decimal, fractions, json, random, struct

MAX_BYTES = 1 << 26
PLAIN = (type(None), bool, int, float, str)
DATES = {
    datetime.datetime: lambda d: [d.year, d.month, d.day, d.hour, d.minute, d.second, d.microsecond],
    datetime.date: lambda d: [d.year, d.month, d.day],
    datetime.time: lambda d: [d.hour, d.minute, d.second, d.microsecond],
    datetime.timedelta: lambda d: [d.days, d.seconds, d.microseconds],
}
DATE_OF = {kind.__name__: kind for kind in DATES}


class Broken(BaseException):
    """The other side said something that is no message, or is gone."""


class Writer:
    """Encodes values of one message; containers that can change get a number, so that aliases stay aliases."""

    def __init__(self, refer):
        self.refer, self.numbers, self.kept = refer, {}, []

    def encode(self, value):
        kind = type(value)
        if kind in PLAIN:
            # Python refuses to read long numbers in decimal.
            return ["int", hex(value)] if kind is int and value.bit_length() > 1024 else value
        if id(value) in self.numbers:
            return ["same", self.numbers[id(value)]]
        if kind in DATES:
            if getattr(value, "tzinfo", None) is None:
                return ["date", kind.__name__, DATES[kind](value)]
            return self.refer(value)
        if isinstance(value, list):
            return self.numbered("list", value, list.__iter__(value))
        if isinstance(value, collections.deque):
            return self.numbered("deque", value, collections.deque.__iter__(value))
        if isinstance(value, dict):
            name = "ordered" if kind is collections.OrderedDict else "counter" if kind is collections.Counter else "dict"
            number = self.number(value)
            return [name, number, [[self.encode(key), self.encode(item)] for key, item in dict.items(value)]]
        if isinstance(value, (set, frozenset)):
            base = set if isinstance(value, set) else frozenset
            if base is set:
                return self.numbered("set", value, base.__iter__(value))
            return ["frozenset", [self.encode(item) for item in base.__iter__(value)]]
        if isinstance(value, tuple):
            fields = getattr(kind, "_fields", None)
            items = [self.encode(item) for item in tuple.__iter__(value)]
            if isinstance(fields, tuple) and len(fields) == len(items) and all(type(name) is str for name in fields):
                return ["named", kind.__name__, list(fields), items]
            return ["tuple", items]
        if isinstance(value, bytearray):
            return ["bytearray", self.number(value), bytes(value).decode("latin-1")]
        return self.encode_scalar(value, kind)

    def encode_scalar(self, value, kind):
        # An enumeration's members are objects, even those that are numbers too.
        if isinstance(value, int) and not hasattr(kind, "__members__"):
            return int.__int__(value)
        if isinstance(value, float):
            return float.__float__(value)
        if isinstance(value, str) and not hasattr(kind, "__members__"):
            return str.__str__(value)
        if isinstance(value, bytes):
            return ["bytes", bytes.decode(value, "latin-1")]
        if isinstance(value, complex):
            return ["complex", value.real, value.imag]
        if kind is range:
            return ["range", value.start, value.stop, value.step]
        if kind is slice:
            return ["slice", self.encode(value.start), self.encode(value.stop), self.encode(value.step)]
        if kind is decimal.Decimal:
            return ["decimal", str(value)]
        if kind is fractions.Fraction:
            return ["fraction", value.numerator, value.denominator]
        if kind.__module__ == "numpy" and getattr(value, "ndim", 1) == 0:
            return self.encode(value.item())
        if value is Ellipsis or value is NotImplemented:
            return ["builtin", "Ellipsis" if value is Ellipsis else "NotImplemented"]
        if isinstance(value, type) and getattr(builtins, value.__name__, None) is value:
            return ["builtin", value.__name__]
        return self.refer(value)

    def number(self, value):
        self.numbers[id(value)] = len(self.kept)
        self.kept.append(value)
        return len(self.kept) - 1

    def numbered(self, name, value, items):
        number = self.number(value)
        return [name, number, [self.encode(item) for item in items]]


class Reader:
    """Decodes values of one message; `resolve` knows the references."""

    def __init__(self, resolve):
        self.resolve, self.numbered = resolve, {}

    def decode(self, value):
        if type(value) in PLAIN:
            return value
        if type(value) is not list or not value or type(value[0]) is not str:
            raise Broken("not a value: %.80r" % (value,))
        try:
            return self.decode_tagged(*value)
        except (TypeError, ValueError, KeyError, ArithmeticError) as error:
            raise Broken("not a value: %.80r (%s)" % (value, error)) from None

    def decode_tagged(self, tag, *rest):
        all_of = lambda items: [self.decode(item) for item in items]
        if tag in ("list", "set", "deque"):
            number, items = rest
            made = {"list": list, "set": set, "deque": collections.deque}[tag]()
            self.numbered[number] = made
            add = made.add if tag == "set" else made.append
            for item in items:
                add(self.decode(item))
            return made
        if tag in ("dict", "ordered", "counter"):
            number, items = rest
            made = {"dict": dict, "ordered": collections.OrderedDict, "counter": collections.Counter}[tag]()
            self.numbered[number] = made
            for key, item in items:
                made[self.decode(key)] = self.decode(item)
            return made
        if tag == "same":
            return self.numbered[rest[0]]
        if tag == "tuple":
            return tuple(all_of(rest[0]))
        if tag == "named":
            name, fields, items = rest
            return collections.namedtuple(name, fields, rename=True)(*all_of(items))
        if tag == "frozenset":
            return frozenset(all_of(rest[0]))
        if tag == "bytes":
            return rest[0].encode("latin-1")
        if tag == "bytearray":
            made = self.numbered[rest[0]] = bytearray(rest[1].encode("latin-1"))
            return made
        if tag == "int":
            return int(rest[0], 16)
        if tag == "complex":
            return complex(float(rest[0]), float(rest[1]))
        if tag == "range":
            return range(*rest)
        if tag == "slice":
            return slice(*all_of(rest))
        if tag == "decimal":
            return decimal.Decimal(rest[0])
        if tag == "fraction":
            return fractions.Fraction(int(rest[0]), int(rest[1]))
        if tag == "date":
            return DATE_OF[rest[0]](*rest[1])
        if tag == "builtin":
            found = getattr(builtins, rest[0])
            if isinstance(found, type) or rest[0] in ("Ellipsis", "NotImplemented"):
                return found
            raise ValueError(rest[0])
        return self.resolve(tag, *rest)


def restore(old, new):
    """Gives a container the content of another of its kind."""
    if isinstance(old, (list, bytearray)) and type(old) is type(new):
        old[:] = new
    elif isinstance(old, collections.deque) and isinstance(new, collections.deque):
        old.clear()
        old.extend(new)
    elif isinstance(old, (set, dict)) and isinstance(new, (set, dict)):
        old.clear()
        old.update(new)


class Line:
    """Messages over a socket: four bytes of length, then JSON."""

    def __init__(self, fd):
        self.file_in = open(fd, "rb", closefd=False)
        self.file_out = open(fd, "wb", closefd=False)

    def send(self, message):
        data = json.dumps(message).encode()
        try:
            self.file_out.write(struct.pack("<I", len(data)) + data)
            self.file_out.flush()
        except OSError as error:
            raise Broken("the other side is gone: %s" % error) from None

    def receive(self):
        try:
            head = self.file_in.read(4)
            size = struct.unpack("<I", head)[0] if len(head) == 4 else MAX_BYTES + 1
            data = self.file_in.read(size) if size <= MAX_BYTES else b""
        except OSError as error:
            raise Broken("the other side is gone: %s" % error) from None
        if len(head) < 4 or len(data) < size:
            raise Broken("the process of the solution ended" if not head else "a message that is too long or cut off")
        try:
            message = json.loads(data)
        except ValueError:
            raise Broken("a message that is no JSON") from None
        if type(message) is not dict:
            raise Broken("a message that is no object")
        return message


def payload():
    """What a case is given; its random numbers are the same every time, as its verdict has to be."""
    random.seed(0)
    return json.loads(open(3, "rb", closefd=False).read())
