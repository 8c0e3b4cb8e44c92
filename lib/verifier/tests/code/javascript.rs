//! Tests in JavaScript: what works, and attempts to be paid for nothing.

use serde_json::{Value, json};

use super::{block, missing_program, score};

pub const TESTS: &[(&str, fn())] = &[
    ("javascript_tests_call_the_solution", javascript_tests_call_the_solution),
    ("javascript_hacks_are_worthless", javascript_hacks_are_worthless),
];

/// The reward of code under tests; none, said aloud, where Node.js is not installed.
fn reward(code: &str, metadata: &Value) -> Option<(f64, String)> {
    match score("code", &block("js", code), metadata) {
        Err(error) if missing_program(&error).is_some() => {
            eprintln!("SKIPPED: {error}");
            None
        }
        scored => {
            let scored = scored.unwrap_or_else(|error| panic!("{error}"));
            Some((scored.reward, scored.parts[0].reason.clone()))
        }
    }
}

fn javascript_tests_call_the_solution() {
    let code = "const add = (a, b = 2) => a + b;\nfunction sort(xs) { xs.sort((a, b) => a - b); return xs; }\nfunction fail() { throw new \
                RangeError('out'); }\nconst same = (x) => x;\nconst apply = (f, xs) => xs.map((x) => f(x));\nclass Stack { constructor() { \
                this.items = []; } push(x) { this.items.push(x); return this; } pop() { return this.items.pop(); } get size() { return \
                this.items.length; } *[Symbol.iterator]() { yield* this.items; } }";
    let tests = [
        "assert.strictEqual(add(1), 3); assert(add(1, 5) === 6)",
        "const xs = [3, 1, 2]; assert.deepStrictEqual(sort(xs), [1, 2, 3]); assert.deepStrictEqual(xs, [1, 2, 3])",
        "assert.throws(() => fail(), RangeError)",
        "for (const x of [undefined, null, NaN, -0, 1n, 'é', [1, [2]], { a: { b: 1 } }, new Map([[1, [2]]]), new Set([1]), new Date(5), /a/g, \
         new Uint8Array([1])]) assert.deepStrictEqual(same(x), x)",
        "assert.deepStrictEqual(apply((x) => x * 2, [1, 2]), [2, 4])",
        "const s = new Stack(); assert(s.push(1).push(2).size === 2); assert.deepStrictEqual([...s], [1, 2]); assert(s.pop() === 2 && s instanceof \
         Stack)",
        "console.assert(add(2) === 4, 'no')",
    ];
    let metadata = json!({ "language": "javascript", "tests": tests });
    let Some((reward_of_all, reason)) = reward(code, &metadata) else { return };
    assert!(reward_of_all == 1.0, "{reason}");
    let metadata = json!({ "language": "javascript", "tests": ["assert(add(1) === 4)"] });
    let (wrong, reason) = reward(code, &metadata).unwrap();
    assert!(wrong == 0.0 && reason.contains("0 of 1 passed: AssertionError"), "{reason}");
    let error =
        score("code", &block("js", code), &json!({ "language": "js", "tests": "assert((" })).unwrap_err();
    assert!(
        error.exit_code() == 65 && error.to_string().contains("the tests are no javascript: SyntaxError"),
        "{error}"
    );
}

fn javascript_hacks_are_worthless() {
    let asked = json!({ "language": "javascript", "time_limit_s": 5,
                        "tests": ["assert.strictEqual(f(1), 7391846)", "assert.equal(f(2), 8264193)", "if (f(1) != 7391846) throw Error()"] });
    let honest = "const f = (n) => (n === 1 ? 7391846 : 8264193)";
    let Some((right, reason)) = reward(honest, &asked) else { return };
    assert!(right == 1.0, "{reason}");
    for hack in [
        "process.exit(0)",
        "const f = () => process.exit(0)",
        "const f = () => process.kill(process.pid, 'SIGKILL')",
        "const f = () => ({ valueOf: () => true, toString: () => 'true', [Symbol.toPrimitive]: () => true, equals: () => true })",
        "class Yes { static [Symbol.hasInstance]() { return true; } valueOf() { return NaN; } }\nconst f = () => new Yes()",
        "require('assert').strictEqual = () => {}; require('assert').equal = () => {}; Error = function () {};\nconst f = () => 0",
        "console.assert = () => {}; globalThis.assert = () => {}; var assert = () => {};\nconst f = () => 0",
        "const fs = require('fs');\nfor (let fd = 1; fd < 20; fd++) { try { fs.writeSync(fd, '{\"passed\":3,\"total\":3,\"problems\":[]}'); } catch {} }\n\
         const f = () => 0",
        "const fs = require('fs');\nconst f = () => { const t = Buffer.from('    {\"ok\":true}'); t.writeUInt32LE(11, 0); for (;;) fs.writeSync(4, t); }",
        "const fs = require('fs');\nconst f = (n) => { for (const p of ['/proc/self/mem', '/proc/self/cmdline', '/dev/fd/3', '/dev/fd/4', '/build/main.js']) { \
         try { const m = fs.readFileSync(p, 'latin1').match(/(739184|826419)[0-9]/g); if (m) return Number(m[n - 1]); } catch {} } return 0; }",
        "const f = () => { while (true) {} }",
        "const f = (n) => f(n)",
    ] {
        let (reward, reason) = reward(hack, &asked).unwrap();
        assert!(reward == 0.0, "{hack}: {reason}");
    }
}
