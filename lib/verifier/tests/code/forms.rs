//! Languages, forms of tests, and rows that ask for what cannot be.

use serde_json::json;

use super::{block, indented, missing_program, python, reward, score};

pub const TESTS: &[(&str, fn())] = &[
    ("programs_in_every_language_are_run_on_every_case", programs_in_every_language_are_run_on_every_case),
    ("code_that_does_not_compile_says_why", code_that_does_not_compile_says_why),
    ("rate_is_the_share_of_cases", rate_is_the_share_of_cases),
    ("crashes_and_limits_are_told", crashes_and_limits_are_told),
    ("assertions_call_the_solution", assertions_call_the_solution),
    ("mbpp_rows_are_taken_as_they_are", mbpp_rows_are_taken_as_they_are),
    ("objects_of_the_solution_stay_usable", objects_of_the_solution_stay_usable),
    ("values_keep_their_types", values_keep_their_types),
    ("arguments_changed_in_place_are_changed", arguments_changed_in_place_are_changed),
    ("what_tests_lend_can_be_called", what_tests_lend_can_be_called),
    ("errors_cross_with_their_class", errors_cross_with_their_class),
    ("wrong_rows_are_errors_and_named", wrong_rows_are_errors_and_named),
    ("zygotes_that_end_are_started_again_and_counted", zygotes_that_end_are_started_again_and_counted),
];

/// Asserts that tests in one text pass, or that they fail.
fn tests_pass(code: &str, tests: &str) {
    let (reward, reason) = reward(&python(code), &json!({ "tests": tests }));
    assert!(reward == 1.0, "{reason}\n{code}\n{tests}");
}

fn tests_fail(code: &str, tests: &str, why: &str) {
    let (reward, reason) = reward(&python(code), &json!({ "tests": tests }));
    assert!(reward == 0.0 && reason.contains(why), "{reward} {reason}\n{code}\n{tests}");
}

const DOUBLES: [(&str, &str); 6] = [
    ("python", "n = int(input())\nif __name__ == '__main__':\n    print(n * 2)"),
    (
        "c",
        "#include <stdio.h>\nint main(void) { int n; if (scanf(\"%d\", &n) != 1) return 1; printf(\"%d\\n\", n * 2); return 0; }",
    ),
    (
        "cpp",
        "#include <iostream>\n#include <vector>\nint main() { int n; std::cin >> n; std::cout << n * 2 << std::endl; }",
    ),
    (
        "rust",
        "use std::io::Read;\nfn main() { let mut s = String::new(); std::io::stdin().read_to_string(&mut s).unwrap();\n\
              let n: i64 = s.trim().parse().unwrap(); println!(\"{}\", n * 2); }",
    ),
    ("javascript", "const n = parseInt(require('fs').readFileSync(0, 'utf8'));\nconsole.log(n * 2);"),
    ("bash", "read n\necho $((n * 2))"),
];

fn programs_in_every_language_are_run_on_every_case() {
    for (language, code) in DOUBLES {
        let cases = json!([{ "stdin": "21\n", "stdout": "42\n" }, { "stdin": "-4\n", "stdout": "-8\n" }]);
        let metadata = json!({ "language": language, "cases": cases });
        match score("code", &block(language, code), &metadata) {
            Err(error) if missing_program(&error).is_some() => {
                eprintln!("SKIPPED: {language}: {error}");
                continue;
            }
            scored => {
                let scored = scored.unwrap_or_else(|error| panic!("{language}: {error}"));
                assert!(scored.reward == 1.0, "{language}: {}", scored.parts[0].reason);
            }
        }
        let (reward, reason) = reward(&block(language, &code.replace("* 2", "* 3")), &metadata);
        assert!(reward == 0.0 && reason.contains("expected \"42\", got \"63\""), "{language}: {reason}");
    }
}

fn code_that_does_not_compile_says_why() {
    let cases = json!([{ "stdout": "" }]);
    for (language, code, why) in [
        ("c", "int main(void) { return x; }", "does not compile"),
        ("rust", "fn main() { let x: u8 = \"\"; }", "does not compile: error[E0308]"),
        ("python", "def f(:", "SyntaxError"),
        ("c", "#include \"/etc/passwd\"\nint main(void) {}", "does not compile"),
    ] {
        match score("code", &block(language, code), &json!({ "language": language, "cases": cases })) {
            Err(error) if missing_program(&error).is_some() => {
                eprintln!("SKIPPED: {language}: {error}");
            }
            scored => {
                let scored = scored.unwrap();
                let reason = &scored.parts[0].reason;
                assert!(scored.reward == 0.0 && reason.contains(why), "{language}: {reason}");
            }
        }
    }
}

fn rate_is_the_share_of_cases() {
    let cases: Vec<_> =
        (0..4).map(|n| json!({ "stdin": n.to_string(), "stdout": (n * n).to_string() })).collect();
    let metadata = json!({ "cases": cases });
    let code = python("n = int(input())\nprint(n * n if n != 2 else 5)");
    let scored = score("code:rate", &code, &metadata).unwrap();
    assert!((scored.reward - 0.75).abs() < 1e-12, "{}", scored.parts[0].reason);
    assert_eq!(score("code:rate:2", &code, &metadata).unwrap().reward, 1.5);
    assert_eq!(score("code", &code, &metadata).unwrap().reward, 0.0);
    let tests =
        json!({ "tests": ["assert f(1) == 1", "assert f(2) == 4", "assert f(3) == 9", "assert f(4) == 8"] });
    let scored = score("code:rate", &python("def f(n): return n * n"), &tests).unwrap();
    assert!((scored.reward - 0.75).abs() < 1e-12, "{}", scored.parts[0].reason);
    assert!(
        scored.parts[0].reason.starts_with("3 of 4 passed: AssertionError"),
        "{}",
        scored.parts[0].reason
    );
}

fn crashes_and_limits_are_told() {
    let told = |code: &str, why: &str| {
        let metadata = json!({ "cases": [{ "stdout": "1" }], "time_limit_s": 1, "memory_limit_mb": 128 });
        let (reward, reason) = reward(&python(code), &metadata);
        assert!(reward == 0.0 && reason.contains(why), "{reason}");
        let tests = json!({ "tests": "assert f() == 1", "time_limit_s": 1, "memory_limit_mb": 128 });
        let body = indented(code);
        let (reward, reason) = super::reward(&python(&format!("def f():\n{body}")), &tests);
        assert!(reward == 0.0, "{reason}");
        reason
    };
    told("print(1 / 0)", "exit code 1: ZeroDivisionError");
    told("print(1); import sys; sys.exit(3)", "exit code 3");
    assert!(told("while True: pass", "out of").contains("out of"));
    assert!(told("import time; time.sleep(100)", "out of time").contains("out of time"));
    assert!(told("x = bytearray(1 << 30)", "MemoryError").contains("MemoryError"));
    told("while True: print('x' * 10000)", "too much output");
    // The tests of a function lose their solution, and say how.
    let said = told("import os; os.abort()", "signal");
    assert!(said.contains("passed: signal "), "{said}");
    let said = told("import os; os.write(2, b'no more\\n'); os._exit(3)", "exit code 3: no more");
    assert!(
        said.contains("exit code 3: no more (") && said.contains("the process of the solution ended"),
        "{said}"
    );
    told("def g(): g()\ng()", "RecursionError");
    assert_eq!(
        reward("no code at all, only\n```text\nwords\n```", &json!({ "tests": "assert f()" })).1,
        "no code block of python"
    );
}

fn assertions_call_the_solution() {
    let code = "def add(a, b=2, *rest, key=0):\n    return a + b + sum(rest) + key";
    tests_pass(
        code,
        "assert add(1) == 3\nassert add(1, 2, 3, 4, key=5) == 15\nassert add('a', 'b') == 'ab' if False else True",
    );
    tests_fail(code, "assert add(1) == 4", "0 of 1 passed: AssertionError");
    tests_pass(
        "from functools import lru_cache\n@lru_cache\ndef fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)",
        "import math\nfor n in range(10):\n    assert fib(n) == round(((1 + math.sqrt(5)) / 2) ** n / math.sqrt(5))",
    );
    tests_pass(
        "def f(x): return x / 3",
        "assert math.isclose(f(1), 1 / 3)\nassert abs(f(2) - 0.6667) < 1e-3",
    );
    tests_pass("def f(): return 1", "from solution import f\nassert f() == 1");
    tests_fail("def f(): return 1", "assert g() == 1", "NameError");
    tests_fail("def f(: return 1", "assert f() == 1", "the code does not load: SyntaxError");
    tests_fail(
        "def f(): return 1\nraise ValueError('at load')",
        "assert f() == 1",
        "does not load: ValueError: at load",
    );
    // A statement that is no assertion stops what comes after it.
    tests_fail(
        "def f(): return 1",
        "assert f() == 1\nx = f()[0]\nassert f() == 1",
        "1 of 2 passed: TypeError",
    );
    // What stands below the guard of a script is not run.
    tests_pass("def f(): return 1\nif __name__ == '__main__':\n    raise SystemExit(1)", "assert f() == 1");
}

fn mbpp_rows_are_taken_as_they_are() {
    // A function named as one of Python's own, a class that the set-up uses, set comparisons.
    let sum = json!({
        "task_id": 126, "text": "Write a python function to find the sum of common divisors.",
        "code": "def sum(a,b): \r\n    sum = 0\r\n    for i in range (1,min(a,b)): \r\n        if (a % i == b % i == 0): \r\n            sum += i \r\n    return sum",
        "test_list": ["assert sum(10,15) == 6", "assert sum(100,150) == 93", "assert sum(4,6) == 3"],
        "test_setup_code": "", "challenge_test_list": []
    });
    assert_eq!(reward(&python(sum["code"].as_str().unwrap()), &sum), (1.0, "3 of 3 passed".to_owned()));
    let node = json!({
        "code": "", "test_setup_code": "root = Node(1)\nroot.left = Node(2)\nroot.right = Node(3)\nroot.left.left = Node(4)",
        "test_list": ["assert (max_height(root)) == 3", "assert root.left.data == 2"]
    });
    let code = "class Node:\n    def __init__(self, data):\n        self.data, self.left, self.right = data, None, None\n\
                def max_height(node):\n    if node is None: return 0\n    return 1 + max(max_height(node.left), max_height(node.right))";
    assert_eq!(reward(&python(code), &node), (1.0, "2 of 2 passed".to_owned()));
    let similar = json!({ "test_list": ["assert set(similar((3, 4, 5, 6),(5, 7, 4, 10))) == set((4, 5))"] });
    assert_eq!(reward(&python("def similar(a, b): return tuple(set(a) & set(b))"), &similar).0, 1.0);
}

fn objects_of_the_solution_stay_usable() {
    let code = "class Stack:\n    limit = 3\n    def __init__(self, *items): self.items = list(items)\n    def push(self, x): \
                self.items.append(x); return self\n    def pop(self): return self.items.pop()\n    def __len__(self): return \
                len(self.items)\n    def __iter__(self): return iter(self.items)\n    def __getitem__(self, at): return self.items[at]\n    \
                def __eq__(self, other): return isinstance(other, Stack) and self.items == other.items\n    def __add__(self, other): \
                return Stack(*self.items, *(other.items if isinstance(other, Stack) else [other]))\n    def __repr__(self): return \
                f'Stack{self.items}'\n    def __contains__(self, x): return x in self.items\n    @classmethod\n    def of(cls, xs): \
                return cls(*xs)\n    @property\n    def top(self): return self.items[-1]\n    def __enter__(self): return self\n    def \
                __exit__(self, *a): self.items.clear()\ndef gen(n):\n    for i in range(n): yield i * i\ndef adder(n): return lambda x: x + n";
    tests_pass(
        code,
        "s = Stack(1, 2)\nassert s.push(3).pop() == 3\nassert len(s) == 2 and list(s) == [1, 2] and s[-1] == 2\nassert s == Stack(1, 2)\n\
         assert s != Stack(1)\nassert repr(s) == 'Stack[1, 2]' and str(s) == 'Stack[1, 2]'\nassert 2 in s and 5 not in s\n\
         assert s + Stack(7) == Stack(1, 2, 7) and s + 9 == Stack(1, 2, 9)\nassert Stack.of([4]).top == 4 and Stack.limit == 3\n\
         assert isinstance(s, Stack) and not isinstance(3, Stack) and not isinstance(s, list)\ns.items = [5]\nassert s.pop() == 5\n\
         with Stack(1) as t:\n    assert len(t) == 1\nassert len(t) == 0\nassert list(gen(4)) == [0, 1, 4, 9] and next(gen(1)) == 0\n\
         assert adder(2)(3) == 5 and [*map(adder(1), [1, 2])] == [2, 3]\nassert callable(adder)",
    );
}

fn values_keep_their_types() {
    tests_pass(
        "def same(x): return x",
        "import collections, datetime, decimal, fractions\nfor x in (None, True, 0, -1, 1 << 5000, 0.1, -0.0, float('inf'), 'é\\ud800\\0', b'\\xff', [], \
         [1, [2]], (1,), (), {1: 'a', (2,): [3]}, {1}, frozenset([1]), 1j, range(3), slice(1, None), bytearray(b'x'), decimal.Decimal('1.10'), \
         fractions.Fraction(1, 3), datetime.date(2020, 1, 2), datetime.timedelta(1), collections.deque([1]), collections.Counter('aa'), \
         collections.OrderedDict(a=1), int, Ellipsis):\n    y = same(x)\n    assert y == x and type(y) is type(x) and repr(y) == repr(x), \
         (x, y)\nassert str(same(float('nan'))) == 'nan'\nx = [1]\nx.append(x)\ny = same(x)\nassert y[1] is y",
    );
    tests_pass(
        "import collections, enum\nP = collections.namedtuple('P', 'x y')\nclass E(enum.IntEnum):\n    A = 1\nclass L(list): pass\nclass D(dict):\n    \
         def __missing__(self, k): return 7\ndef f(): return P(1, 2)\ndef g(): return [L([1]), D(a=1), collections.defaultdict(int, b=2)]\ndef h(): return True",
        "assert f() == (1, 2) and f().x == 1 and f().y == 2\nassert g() == [[1], {'a': 1}, {'b': 2}]\nassert type(g()[0]) is list\nassert h() is True\n\
         assert isinstance(f(), tuple)",
    );
}

fn arguments_changed_in_place_are_changed() {
    tests_pass(
        "def work(xs, d, s, b):\n    xs.sort(); xs[0].append(9); d['n'] = xs; s.add(3); b.extend(b'!'); del d['old']",
        "inner = [1]\nxs, d, s, b = [[2], inner], {'old': 1}, {1}, bytearray(b'a')\nassert work(xs, d, s, b) is None\nassert xs == [[1, 9], [2]] and \
         s == {1, 3} and b == b'a!'\nassert d == {'n': [[1, 9], [2]]} and inner == [1, 9]",
    );
    tests_pass(
        "def f(xs):\n    xs.append(1)\n    raise KeyError('k')",
        "xs = []\ntry: f(xs)\nexcept KeyError: pass\nassert xs == [1]",
    );
}

fn what_tests_lend_can_be_called() {
    tests_pass(
        "def apply(f, xs, **more): return [f(x, **more) for x in xs]\ndef total(it): return sum(it)\ndef visit(node): return 0 if node is None else \
         node.value + visit(node.next)\ndef rename(node): node.value = 8; return node\ndef twice(f): return lambda x: f(f(x))\ndef order(xs, key): \
         return sorted(xs, key=key)",
        "class Node:\n    def __init__(self, value, next=None): self.value, self.next = value, next\nassert apply(lambda x, k=1: x * k, [1, 2], k=3) == [3, 6]\n\
         assert apply(str, [1]) == ['1'] and apply(len, ['abc']) == [3]\nassert total(i for i in range(5)) == 10\nassert visit(Node(1, Node(2))) == 3\n\
         n = Node(1)\nassert rename(n) is n and n.value == 8\nassert twice(lambda x: x + 1)(1) == 3\nassert order(['bb', 'a'], key=len) == ['a', 'bb']",
    );
}

fn errors_cross_with_their_class() {
    tests_pass(
        "class Own(ValueError): pass\ndef f(x):\n    if x == 0: raise Own('own')\n    if x == 1: raise KeyError('k')\n    if x == 2: raise SystemExit(0)\n    \
         return x",
        "try:\n    f(0)\n    assert False\nexcept Own as error:\n    assert str(error) == 'own'\ntry:\n    f(0)\n    assert False\nexcept ValueError: pass\n\
         try:\n    f(1)\n    assert False\nexcept KeyError: pass\ntry:\n    f(2)\n    assert False\nexcept Exception as error:\n    assert type(error) is not \
         AssertionError\nassert f(3) == 3",
    );
}

fn wrong_rows_are_errors_and_named() {
    let good = json!({ "tests": "assert f() == 1" }).to_string();
    for (bad, code, why) in [
        (json!({}), 65, "the code reward: metadata: expected cases, tests"),
        (json!({ "cases": [] }), 65, "cases: expected at least one, got none"),
        (
            json!({ "tests": "assert f(", "entry_point": "f" }),
            65,
            "metadata: the tests are no python: SyntaxError",
        ),
        (json!({ "tests": "x", "language": "cobol" }), 65, "language: expected one of python"),
        (json!({ "tests": "x", "time_limit_s": -1 }), 65, "time_limit_s: expected 0.01 to 3600, got -1"),
    ] {
        let bad = bad.to_string();
        let row = |metadata| slime_verifier::Row {
            response: "def f(): return 1",
            metadata: Some(metadata),
            ..slime_verifier::Row::default()
        };
        let set = slime_verifier::RewardSet::parse(&["code"]).unwrap();
        let rows = [row(&good), row(&good), row(&bad), row(&good)];
        let error = set.score(&rows).unwrap_err();
        assert!(
            matches!(&error, slime_verifier::Error::Row { row: 2, .. }) && error.exit_code() == code,
            "{error}"
        );
        assert!(error.to_string().contains(why), "{error}");
        // The same set goes on.
        assert_eq!(set.score(&rows[..2]).unwrap()[1].reward, 1.0);
    }
}

/// The children of a process.
fn children(parent: u32) -> Vec<u32> {
    let parent_of = |pid: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit(") ").next()?.split(' ').nth(1)?.parse::<u32>().ok()
    };
    let pids = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_string_lossy().parse::<u32>().ok());
    pids.filter(|pid| parent_of(*pid) == Some(parent)).collect()
}

fn zygotes_that_end_are_started_again_and_counted() {
    let metadata = json!({ "tests": "assert f(3) == 9" });
    let code = python("def f(n): return n * n");
    assert_eq!(reward(&code, &metadata).0, 1.0);
    let before = slime_verifier::num_sandbox_restarts();
    let is_broker = |pid: &u32| {
        std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "slime-sandbox")
    };
    let brokers = children(std::process::id()).into_iter().filter(is_broker);
    let zygotes: Vec<u32> = brokers.flat_map(children).collect();
    assert!(zygotes.len() >= 2, "{zygotes:?}");
    for zygote in zygotes {
        // One of them may have been replaced meanwhile by another test's death.
        let _ = std::process::Command::new("kill").args(["-9", &zygote.to_string()]).status().unwrap();
    }
    assert_eq!(reward(&code, &metadata), (1.0, "1 of 1 passed".to_owned()));
    assert_eq!(reward(&python("def f(n): return n"), &metadata).0, 0.0);
    assert!(slime_verifier::num_sandbox_restarts() >= before + 2);
}
