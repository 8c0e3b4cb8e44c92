// Tests in JavaScript, in two processes: `solution` loads the code and does what it is asked; `checker` runs the tests, and
// no line of the solution. Plain data is copied as what it is, everything else stays where it is and travels as a number.
// Descriptors: 3 is what is asked; then, for the checker, the report; last the line to the other process.
(() => {
  "use strict";
  const fs = require("fs");
  const vm = require("vm");
  const role = process.argv[process.argv.length - 1];
  const LINE = role === "checker" ? 5 : 4;
  const MAX_BYTES = 1 << 26;
  const ERRORS = { Error, TypeError, RangeError, SyntaxError, ReferenceError, EvalError, URIError };
  const TYPED = { Int8Array, Uint8Array, Uint8ClampedArray, Int16Array, Uint16Array, Int32Array, Uint32Array,
                  Float32Array, Float64Array };

  // The other side said something that is no message, or is gone.
  class Broken extends Error {}

  function readBytes(size) {
    const bytes = Buffer.alloc(size);
    for (let at = 0; at < size; ) {
      const got = fs.readSync(LINE, bytes, at, size - at, null);
      if (got === 0) throw new Broken("the process of the solution ended");
      at += got;
    }
    return bytes;
  }

  function receive() {
    const size = readBytes(4).readUInt32LE(0);
    if (size > MAX_BYTES) throw new Broken("a message that is too long");
    try {
      return JSON.parse(readBytes(size).toString("utf8"));
    } catch (error) {
      throw error instanceof Broken ? error : new Broken("a message that is no JSON");
    }
  }

  function send(message) {
    const text = Buffer.from(JSON.stringify(message));
    const bytes = Buffer.alloc(4 + text.length);
    bytes.writeUInt32LE(text.length, 0);
    text.copy(bytes, 4);
    for (let at = 0; at < bytes.length; ) at += fs.writeSync(LINE, bytes, at);
  }

  // Encodes the values of one message; containers get a number, so that aliases stay aliases.
  class Writer {
    constructor(refer) {
      this.refer = refer;
      this.numbers = new Map();
      this.kept = [];
    }

    encode(value) {
      if (value === null || typeof value === "boolean" || typeof value === "string") return value;
      if (value === undefined) return ["undefined"];
      if (typeof value === "number") {
        return Number.isFinite(value) && !Object.is(value, -0) ? value : ["number", Object.is(value, -0) ? "-0" : String(value)];
      }
      if (typeof value === "bigint") return ["bigint", String(value)];
      if (typeof value === "object") return this.encodeObject(value);
      return this.refer(value);
    }

    encodeObject(value) {
      if (this.numbers.has(value)) return ["same", this.numbers.get(value)];
      const numbered = (name, items) => {
        const number = this.kept.length;
        this.numbers.set(value, number);
        this.kept.push(value);
        return [name, number, items().map((item) => this.encode(item))];
      };
      const proto = Object.getPrototypeOf(value);
      if (Array.isArray(value)) return numbered("array", () => Array.from(value));
      if (proto === Set.prototype) return numbered("set", () => [...Set.prototype.values.call(value)]);
      if (proto === Map.prototype) return numbered("map", () => [...Map.prototype.entries.call(value)].flat());
      if (proto === Object.prototype || proto === null) return numbered("object", () => Object.entries(value).flat());
      if (proto === Date.prototype) return ["date", Date.prototype.getTime.call(value)];
      if (proto === RegExp.prototype) return ["regexp", value.source, value.flags];
      for (const [name, kind] of Object.entries(TYPED)) {
        if (proto === kind.prototype) return ["typed", name, Array.from(value, (item) => this.encode(item))];
      }
      return this.refer(value);
    }
  }

  // Decodes the values of one message; `resolve` knows the references.
  class Reader {
    constructor(resolve) {
      this.resolve = resolve;
      this.numbered = new Map();
    }

    decode(value) {
      if (!Array.isArray(value)) {
        if (value !== null && typeof value === "object") throw new Broken("not a value");
        return value;
      }
      const [tag, first, second] = value;
      const made = (empty, fill) => {
        this.numbered.set(first, empty);
        fill(second.map((item) => () => this.decode(item)));
        return empty;
      };
      const pairs = (items, add) => {
        for (let at = 0; at + 1 < items.length; at += 2) add(items[at](), items[at + 1]());
      };
      switch (tag) {
        case "undefined": return undefined;
        case "number": return Number(first);
        case "bigint": return BigInt(first);
        case "same": return this.numbered.get(first);
        case "date": return new Date(first);
        case "regexp": return new RegExp(first, second);
        case "typed": return TYPED[first].from(second, (item) => this.decode(item));
        case "array": { const list = []; return made(list, (items) => items.forEach((item) => list.push(item()))); }
        case "set": { const set = new Set(); return made(set, (items) => items.forEach((item) => set.add(item()))); }
        case "map": { const map = new Map(); return made(map, (items) => pairs(items, (key, item) => map.set(key, item))); }
        case "object": {
          const object = {};
          const define = (key, item) => Object.defineProperty(object, key, { value: item, writable: true, enumerable: true, configurable: true });
          return made(object, (items) => pairs(items, define));
        }
        default: return this.resolve(tag, first, second);
      }
    }
  }

  // Gives a container the content of another of its kind.
  function restore(old, now) {
    if (Array.isArray(old) && Array.isArray(now)) old.splice(0, old.length, ...now);
    else if (old instanceof Set && now instanceof Set) { old.clear(); now.forEach((item) => old.add(item)); }
    else if (old instanceof Map && now instanceof Map) { old.clear(); now.forEach((item, key) => old.set(key, item)); }
    else {
      Object.keys(old).forEach((key) => delete old[key]);
      Object.defineProperties(old, Object.getOwnPropertyDescriptors(now));
    }
  }

  const told = (error) => {
    try {
      return [String(error.name), String(error.message).slice(0, 2000)];
    } catch {
      return ["Error", String(typeof error)];
    }
  };

  // The solution's side.
  function solution() {
    const asked = JSON.parse(fs.readFileSync(3, "utf8"));
    const objects = [];
    const lent = new Map();

    const refer = (value) => {
      if (lent.has(value)) return ["yours", lent.get(value)];
      return ["mine", objects.push(value) - 1];
    };
    const resolve = (tag, number) => {
      if (tag === "yours") return objects[number];
      if (tag !== "mine") throw new Broken("not a value");
      const callback = (...args) => askBack(number, args);
      lent.set(callback, number);
      return callback;
    };
    const acts = {
      has: (names) => names.map((name) => vm.runInThisContext(`typeof ${name} !== "undefined"`)),
      name: (name) => vm.runInThisContext(name),
      call: (target, self, ...args) => Reflect.apply(target, self, args),
      construct: (target, ...args) => Reflect.construct(target, args),
      get: (target, key) => Reflect.get(target, key),
      set: (target, key, value) => Reflect.set(target, key, value),
      contains: (target, key) => Reflect.has(target, key),
      remove: (target, key) => Reflect.deleteProperty(target, key),
      keys: (target) => Object.keys(target),
      instanceof: (value, target) => value instanceof target,
      iter: (target) => target[Symbol.iterator](),
      next: (target) => { const { value, done } = target.next(); return [Boolean(done), value]; },
    };
    const answer = (message) => {
      const reader = new Reader(resolve);
      const args = message.args.map((arg) => reader.decode(arg));
      const reply = {};
      try {
        reply.ok = new Writer(refer).encode(acts[message.act](...args));
      } catch (error) {
        if (error instanceof Broken) throw error;
        reply.error = told(error);
      }
      const writer = new Writer(refer);
      reply.after = [...reader.numbered].map(([number, value]) => [number, writer.encode(value)]);
      send(reply);
    };
    const askBack = (number, args) => {
      const writer = new Writer(refer);
      send({ back: number, args: args.map((arg) => writer.encode(arg)) });
      for (;;) {
        const message = receive();
        if ("act" in message) { answer(message); continue; }
        if (message.error) throw new (ERRORS[message.error[0]] || Error)(message.error[1]);
        return new Reader(resolve).decode(message.ok);
      }
    };

    globalThis.require = require;
    globalThis.module = { exports: {} };
    globalThis.exports = globalThis.module.exports;
    try {
      for (const source of asked.sources) vm.runInThisContext(source.text, "solution.js");
    } catch (error) {
      send({ loaded: false, error: told(error).join(": ") });
      process.exit(1);
    }
    send({ loaded: true });
    for (;;) answer(receive());
  }

  // The tests' side.
  function checker() {
    const asked = JSON.parse(fs.readFileSync(3, "utf8"));
    const report = (value) => fs.writeSync(4, JSON.stringify(value));
    const assert = require("assert");
    const lent = [];
    const numbers = new Map();

    const refer = (value) => {
      if (numbers.has(value)) return ["yours", numbers.get(value)];
      if (typeof value !== "function") throw new TypeError("only plain data, functions and the solution's own objects reach the solution");
      return ["mine", lent.push(value) - 1];
    };
    const resolve = (tag, number) => {
      if (tag === "yours") return lent[number];
      if (tag !== "mine" || !Number.isInteger(number)) throw new Broken("not a value");
      const proxy = new Proxy(function () {}, {
        apply: (_, self, args) => ask("call", [proxy, self, ...args]),
        construct: (_, args) => ask("construct", [proxy, ...args]),
        get: (_, key) => {
          if (key === Symbol.hasInstance) return (value) => numbers.has(value) && ask("instanceof", [value, proxy]) === true;
          if (key === Symbol.iterator) return function* () {
            for (const iterator = ask("iter", [proxy]); ; ) {
              const [isDone, value] = ask("next", [iterator]);
              if (isDone) return;
              yield value;
            }
          };
          return typeof key === "symbol" ? undefined : ask("get", [proxy, key]);
        },
        set: (_, key, value) => ask("set", [proxy, key, value]) === true,
        has: (_, key) => typeof key === "string" && ask("contains", [proxy, key]) === true,
        deleteProperty: (_, key) => ask("remove", [proxy, key]) === true,
      });
      numbers.set(proxy, number);
      return proxy;
    };
    const ask = (act, args) => {
      const writer = new Writer(refer);
      send({ act, args: args.map((arg) => writer.encode(arg)) });
      let message = receive();
      for (; "back" in message; message = receive()) {
        const reply = {};
        try {
          const reader = new Reader(resolve);
          const args = message.args.map((arg) => reader.decode(arg));
          reply.ok = new Writer(refer).encode(lent[message.back](...args));
        } catch (error) {
          if (error instanceof Broken) throw error;
          reply.error = told(error);
        }
        send(reply);
      }
      const reader = new Reader(resolve);
      for (const [number, value] of message.after || []) restore(writer.kept[number], reader.decode(value));
      if (message.error) {
        const [name, text] = message.error.map(String);
        throw Object.assign(new (ERRORS[name] || Error)(text), { name });
      }
      return new Reader(resolve).decode(message.ok);
    };

    globalThis.assert = assert;
    globalThis.require = require;
    console.assert = (condition, ...words) => { if (!condition) throw new assert.AssertionError({ message: words.join(" ") || "console.assert" }); };
    // Names of the tests that the solution defines. It cannot replace what the language itself has.
    const bind = () => {
      const texts = [...asked.setup, ...asked.tests].join("\n");
      const words = new Set(texts.match(/[A-Za-z_$][\w$]*/g) || []);
      const isName = (word) => { try { new vm.Script(`typeof ${word}`); return true; } catch { return false; } };
      const names = [...words].filter((word) => (asked.under_test.includes(word) || !(word in globalThis)) && isName(word));
      ask("has", [names]).forEach((isThere, at) => {
        if (isThere !== true) return;
        const value = ask("name", [names[at]]);
        Object.defineProperty(globalThis, names[at], { value, writable: true, configurable: true });
      });
    };
    const run = () => {
      const loaded = receive();
      if (loaded.loaded !== true) return { passed: 0, total: 1, problems: [`the code does not load: ${loaded.error}`.slice(0, 300)] };
      bind();
      let passed = 0;
      const problems = [];
      try {
        asked.setup.forEach((text) => vm.runInThisContext(text, "setup.js"));
      } catch (error) {
        if (error instanceof Broken) throw error;
        return { passed, total: asked.tests.length, problems: [told(error).join(": ").slice(0, 300)] };
      }
      for (const text of asked.tests) {
        try {
          vm.runInThisContext(text, "tests.js");
          passed += 1;
        } catch (error) {
          if (error instanceof Broken) throw error;
          problems.push(told(error).join(": ").slice(0, 300));
        }
      }
      return { passed, total: asked.tests.length, problems: problems.slice(0, 3) };
    };
    try {
      [...asked.setup, ...asked.tests].forEach((text) => new vm.Script(text));
    } catch (error) {
      report({ broken: told(error).join(": ") });
      process.exit(0);
    }
    try {
      report(run());
    } catch (error) {
      report({ passed: 0, total: 1, problems: [String(error.message).slice(0, 300)] });
    }
    process.exit(0);
  }

  try {
    (role === "checker" ? checker : solution)();
  } catch (error) {
    process.exit(1);
  }
})();
