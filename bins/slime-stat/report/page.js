"use strict";
(() => {
  const $ = (selector, from = document) => from.querySelector(selector);
  const make = (name, className, text) => {
    const element = document.createElement(name);
    if (className) element.className = className;
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const short = (value) => {
    const size = Math.abs(value);
    if (size === 0) return "0";
    if (size >= 1e6 || size < 1e-3) return value.toExponential(2);
    return String(Number(value.toPrecision(4)));
  };
  const tip = $("#tip");
  const showTip = (event, lines) => {
    tip.replaceChildren(...lines.map((line) => make("div", "", line)));
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    tip.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - width - 8)) + "px";
    tip.style.top = Math.max(4, Math.min(event.clientY + 14, innerHeight - height - 8)) + "px";
  };
  const hideTip = () => { tip.hidden = true; };

  // Light or dark: as the system says until somebody chooses; a page that may store nothing forgets the choice.
  const root = document.documentElement;
  try { const kept = localStorage.getItem("slime-theme"); if (kept) root.dataset.theme = kept; } catch { /* not allowed */ }
  $("#theme").addEventListener("click", () => {
    const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = isDark ? "light" : "dark";
    try { localStorage.setItem("slime-theme", root.dataset.theme); } catch { /* not allowed */ }
  });

  // The values of a chart under the pointer.
  for (const figure of document.querySelectorAll(".chart")) {
    const data = JSON.parse($("script.numbers", figure).textContent);
    const svg = $("svg", figure), cursor = $(".cursor", figure);
    const nearest = (rows, x) => rows.reduce((best, row) => Math.abs(row[0] - x) < Math.abs(best[0] - x) ? row : best);
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const place = ((event.clientX - box.left) / box.width * data.width - data.left) / (data.right - data.left);
      if (place < -0.02 || place > 1.02) { cursor.style.visibility = "hidden"; hideTip(); return; }
      const wanted = data.x[0] + place * (data.x[1] - data.x[0]);
      const drawn = data.series.filter((series) => series.rows.length > 0);
      const at = nearest(drawn.map((series) => nearest(series.rows, wanted)), wanted)[0];
      const x = data.left + (at - data.x[0]) / ((data.x[1] - data.x[0]) || 1) * (data.right - data.left);
      cursor.setAttribute("x1", x); cursor.setAttribute("x2", x); cursor.style.visibility = "visible";
      showTip(event, [`${data.name} ${short(at)}`, ...drawn.map((series) => {
        const [, mean, low, high] = nearest(series.rows, at);
        const range = low === undefined ? "" : ` (${short(low)} to ${short(high)})`;
        return `${series.label}: ${short(mean)}${range}`;
      })]);
    });
    svg.addEventListener("pointerleave", () => { cursor.style.visibility = "hidden"; hideTip(); });
  }

  // The timeline: a dragged stretch fills the picture, a double click brings all back.
  const timeline = $("#timeline-svg");
  if (timeline) {
    const all = timeline.viewBox.baseVal, height = all.height, full = all.width, seconds = Number(timeline.dataset.seconds);
    const time = (value) => {
      if (value < 1) return Math.round(value * 1000) + " ms";
      if (value < 60) return value.toFixed(1) + " s";
      const whole = Math.round(value);
      if (value < 3600) return Math.floor(whole / 60) + " min " + String(whole % 60).padStart(2, "0") + " s";
      return Math.floor(whole / 3600) + " h " + String(Math.floor(whole / 60) % 60).padStart(2, "0") + " min";
    };
    const show = (from, width) => {
      timeline.setAttribute("viewBox", `${from} 0 ${width} ${height}`);
      [...$("#timeline-ticks").children].forEach((tick, i) => { tick.textContent = time((from + width * i / 5) / full * seconds); });
    };
    const place = (event) => {
      const box = timeline.getBoundingClientRect(), view = timeline.viewBox.baseVal;
      return view.x + (event.clientX - box.left) / box.width * view.width;
    };
    let start = null;
    timeline.addEventListener("pointerdown", (event) => { start = place(event); event.preventDefault(); });
    addEventListener("pointerup", (event) => {
      if (start === null) return;
      const [from, to] = [start, place(event)].sort((a, b) => a - b);
      start = null;
      if (to - from > timeline.viewBox.baseVal.width / 200) show(Math.max(0, from), Math.min(full, to) - Math.max(0, from));
    });
    timeline.addEventListener("dblclick", () => show(0, full));
    timeline.addEventListener("pointermove", (event) => {
      const title = event.target.querySelector && event.target.querySelector("title");
      if (title) showTip(event, [title.textContent]); else hideTip();
    });
    timeline.addEventListener("pointerleave", hideTip);
  }

  // The samples of the chosen step.
  const data = $("script.samples-data");
  if (data) {
    const steps = JSON.parse(data.textContent), browser = $("#browser");
    const anyDifferences = steps.some((s) => s.groups.some((g) => g.answers.some((a) => a.differences)));
    const anyTokens = steps.some((s) => s.groups.some((g) => g.answers.some((a) => a.tokens)));
    const modes = [];
    if (anyDifferences) modes.push(["differences", "difference of both log-probs", [1e-6, 1e-5, 1e-4, 1e-3, 1e-2], (b) => "≤ " + b.toExponential(0), "> 1e-2"]);
    if (anyTokens) modes.push(["generated", "surprise in generation (−log-prob)", [0.1, 0.5, 1, 2, 4], (b) => "≤ " + b, "> 4"]);
    let step = steps.length - 1, chosenMode = null;
    // What training did not measure of a group is seen by its surprise, until somebody chooses.
    const modeOf = (group) => {
      if (chosenMode !== null || modes.length < 2) return chosenMode || 0;
      return group.answers.some((answer) => answer.differences) ? 0 : 1;
    };
    const signed = (value) => (value > 0 ? "+" : value < 0 ? "−" : "") + Math.abs(value).toFixed(2);
    const answerView = (answer, mode) => {
      const row = make("div", "answer"), facts = make("div", "facts"), body = make("div", "body");
      const line = (...parts) => { const div = make("div"); div.append(...parts); facts.append(div); };
      if (answer.reward !== null) line("reward ", make("b", "", short(answer.reward)));
      if (answer.advantage !== null) line("advantage ", make("b", answer.advantage > 0 ? "plus" : answer.advantage < 0 ? "minus" : "", signed(answer.advantage)));
      const parts = Object.entries(answer.parts || {}).map(([name, value]) => `${name} ${typeof value === "number" ? short(value) : JSON.stringify(value)}`);
      if (parts.length > 1) line(parts.join(" · "));
      line(`${answer.len} tokens${answer.status === "completed" ? "" : ", " + answer.status}`);
      if (answer.tokens) {
        const values = mode < modes.length ? answer[modes[mode][0]] : undefined, bounds = mode < modes.length ? modes[mode][2] : [];
        answer.tokens.forEach((token, i) => {
          const span = make("span", "", token);
          if (values && typeof values[i] === "number") {
            const size = Math.abs(values[i]), bin = bounds.findIndex((bound) => size <= bound);
            span.className = "t" + (bin < 0 ? bounds.length : bin);
          } else if (bounds.length > 0) span.className = "unmeasured";
          const generated = answer.generated[i], difference = answer.differences && answer.differences[i];
          span.dataset.tip = [`token ${i}: ${JSON.stringify(token)}`,
            generated === undefined ? "" : `log-prob ${short(generated)} (probability ${short(Math.exp(generated))})`,
            typeof difference !== "number" ? (anyDifferences ? "training's log-prob was not measured" : "") : `training minus generation: ${difference}`].filter(Boolean).join("\n");
          body.append(span);
        });
        if (answer.cut > 0) body.append(make("span", "note", ` … (${answer.cut} more tokens)`));
      } else body.textContent = answer.text;
      row.append(facts, body);
      return row;
    };
    const groupView = (group) => {
      const card = make("div", "card group"), mode = modeOf(group);
      for (const [role, text] of group.prompt) {
        const line = make("p", "question");
        line.append(make("span", "role", role || "prompt"), text);
        card.append(line);
      }
      if (group.label !== null) card.append(make("p", "note", "expected: " + group.label));
      group.answers.forEach((answer) => card.append(answerView(answer, mode)));
      if (mode < modes.length && mixed) card.append(make("p", "note", "token colour: " + modes[mode][1]));
      if (group.all > group.answers.length) card.append(make("p", "note", `${group.all - group.answers.length} more answers are left out`));
      return card;
    };
    let mixed = false;
    const draw = () => {
      const used = [...new Set(steps[step].groups.map(modeOf))].filter((mode) => mode < modes.length);
      mixed = used.length > 1;
      const chooser = make("div", "chooser");
      chooser.append("step");
      steps.forEach((s, i) => {
        const button = make("button", i === step ? "on" : "", String(s.step));
        button.type = "button";
        button.addEventListener("click", () => { step = i; draw(); });
        chooser.append(button);
      });
      if (modes.length > 1) {
        chooser.append(make("span", "gap"), "colour by");
        modes.forEach(([, label], i) => {
          const button = make("button", used.includes(i) ? "on" : "", label);
          button.type = "button";
          button.addEventListener("click", () => { chosenMode = i; draw(); });
          chooser.append(button);
        });
      }
      const parts = [chooser];
      for (const mode of used) {
        const [, label, bounds, words, most] = modes[mode], scale = make("div", "scale");
        scale.append("token colour: " + label);
        [...bounds.map(words), most].forEach((text, bin) => scale.append(make("i", "t" + bin, text)));
        scale.append(make("i", "unmeasured", "not measured"));
        parts.push(scale);
      }
      browser.replaceChildren(...parts, ...steps[step].groups.map(groupView));
    };
    browser.addEventListener("pointermove", (event) => {
      const said = event.target.dataset && event.target.dataset.tip;
      if (said) showTip(event, said.split("\n")); else hideTip();
    });
    browser.addEventListener("pointerleave", hideTip);
    draw();
  }
})();
