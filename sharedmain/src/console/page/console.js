// The script of the console. It asks the process for JSON once a second, and shows it. It sends nothing.

const INTERVAL = 1000;
const SAMPLES = 120;
const MIN_SAMPLES = 30;
const ROWS_AT_ONCE = 25;
const SVG = "http://www.w3.org/2000/svg";

const main = document.getElementById("main");
const statusText = document.getElementById("status");
const pauseButton = document.getElementById("pause");

// ---- Elements

/** Creates an element. Strings among the children become text, never markup. */
function element(name, attributes = {}, ...children) {
  const created = name === "svg" || name === "path"
    ? document.createElementNS(SVG, name)
    : document.createElement(name);
  for (const [attribute, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) created.setAttribute(attribute, value);
  }
  created.append(...children.filter((child) => child !== null && child !== undefined));
  return created;
}

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

const frame = () => new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));

// ---- Formats

const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"], [0.001, "ms"]];

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "";
  const [size, unit] = UNITS.find(([size]) => Math.abs(seconds) >= size) ?? [0.000001, "µs"];
  const value = seconds / size;
  return `${Math.abs(value) < 10 ? value.toFixed(1) : Math.round(value)} ${unit}`;
}

function number(value) {
  if (value === null || value === undefined) return "";
  return Math.abs(value) < 10 && !Number.isInteger(value) ? value.toFixed(1) : Math.round(value).toLocaleString("en");
}

function bytes(value) {
  if (value === null || value === undefined) return "";
  const power = Math.min(Math.floor(Math.log2(Math.max(value, 1)) / 10), 4);
  return `${number(value / 1024 ** power)} ${["B", "KiB", "MiB", "GiB", "TiB"][power]}`;
}

const clock = (time) => (time ? new Date(time).toLocaleTimeString("en-GB") : "");
const date = (time) => `${new Date(time).toLocaleDateString("sv")} ${clock(time)}`;
const plural = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;
const counts = (values) => Object.entries(values ?? {}).filter(([, value]) => value).map(([name, value]) => `${name}: ${number(value)}`).join(", ");
const keyLink = (controller, key) => `#/key/${encodeURIComponent(controller)}/${encodeURIComponent(key)}`;

const STATES = {
  success: "good", requeue_after: "again", skip: "muted", synced: "good", "led here": "good", True: "good",
  waiting: "warn", conflict: "warn", lost: "warn", draining: "warn", delayed: "muted", Unknown: "warn",
  error: "bad", panic: "bad", deadline: "bad", retrying: "bad", failed: "bad", unavailable: "bad", unknown: "bad", False: "bad",
};

// ---- Tables

const WIDTHS = { wide: 3.4, middle: 2 };

/**
 * A table whose rows are kept by their keys, so that an update changes only cells that differ. A column is
 * `[title, row => value, class]`, where a value is text, or `{ text, href, type, node }`.
 */
function table(caption, columns) {
  const head = element("tr", { role: "row" }, ...columns.map(([title, , type]) =>
    element("th", { scope: "col", role: "columnheader", class: type }, title)));
  const title = element("caption", {}, caption);
  const body = element("tbody", { role: "rowgroup" });
  const node = element("table", { role: "table" }, title, element("thead", { role: "rowgroup" }, head), body);
  node.style.setProperty("--columns", columns.map(([, , type]) => `minmax(0, ${WIDTHS[type] ?? 1}fr)`).join(" "));
  const rows = new Map();
  let turn = 0;

  function update(row, data) {
    columns.forEach(([, value, type], index) => {
      const raw = value(data);
      const cell = typeof raw === "object" && raw !== null ? raw : { text: raw ?? "" };
      const shown = cell.node ? cell.key : JSON.stringify(cell);
      if (row.shown[index] === shown) return;
      row.shown[index] = shown;
      const class_ = [type, cell.type].filter(Boolean).join(" ");
      row.cells[index].className = class_;
      row.cells[index].replaceChildren(...(cell.node ? [cell.node()]
        : cell.href ? [element("a", { href: cell.href, class: "key" }, cell.text)]
        : cell.text === "" ? [] : [element("span", { class: "clamp" }, String(cell.text))]));
    });
  }

  function create(key) {
    const cells = columns.map(([title]) => element("td", { role: "cell", "data-label": title }));
    const row = { node: element("tr", { role: "row" }, ...cells), cells, shown: [] };
    rows.set(key, row);
    return row;
  }

  /** Shows these rows in this order. Long tables take several frames, so that the page stays responsive. */
  async function show(list, keyOf, isCurrent) {
    const own = ++turn;
    node.classList.toggle("empty", !list.length);
    const wanted = new Set(list.map(keyOf));
    for (const [key, row] of rows) {
      if (!wanted.has(key)) { row.node.remove(); rows.delete(key); }
    }
    let next = body.firstChild;
    for (const [index, data] of list.entries()) {
      const key = keyOf(data);
      const row = rows.get(key) ?? create(key);
      update(row, data);
      if (row.node === next) next = next.nextSibling;
      else body.insertBefore(row.node, next);
      if (index % ROWS_AT_ONCE === ROWS_AT_ONCE - 1) {
        await frame();
        if (own !== turn || !isCurrent()) return;
      }
    }
  }

  return { node, show, setCaption: (text) => setText(title, text) };
}

// ---- Samples, from which the charts are drawn

const samples = new Map();

function sum(values) {
  return Object.values(values ?? {}).reduce((total, value) => total + value, 0);
}

/** The time within which this share of the passes between two answers ended. */
function quantile(share, from, to) {
  const total = to.count - from.count;
  if (total <= 0) return null;
  let below = 0, lower = 0;
  for (const [index, [bound, count]] of to.buckets.entries()) {
    const upTo = count - (from.buckets[index]?.[1] ?? 0);
    if (upTo >= share * total) return lower + (bound - lower) * ((share * total - below) / Math.max(upTo - below, 1));
    [below, lower] = [upTo, bound];
  }
  return lower;
}

function sample(controllers) {
  const time = performance.now() / 1000;
  for (const controller of controllers) {
    const passes = sum(controller.passes);
    const before = samples.get(controller.name) ?? [];
    const kept = passes < (before.at(-1)?.passes ?? 0) ? [] : before; // another process has begun at zero
    const last = kept.at(-1);
    const now = { time, passes, errors: controller.errors ?? 0, seconds: controller.pass_seconds };
    const elapsed = last ? time - last.time : 0;
    now.passRate = last ? (now.passes - last.passes) / elapsed : null;
    now.errorRate = last ? (now.errors - last.errors) / elapsed : null;
    now.queued = (controller.queued ?? 0) + (controller.queued_slow ?? 0);
    now.slowest = last ? quantile(0.95, kept.at(-Math.min(30, kept.length)).seconds, now.seconds) : null;
    kept.push(now);
    samples.set(controller.name, kept.slice(-SAMPLES));
  }
}

const CHARTS = [
  ["passes a second", (sample) => sample.passRate, number],
  ["errors a second", (sample) => sample.errorRate, number],
  ["queued keys", (sample) => sample.queued, number],
  ["time of passes, p95", (sample) => sample.slowest, duration],
];

function chart([title]) {
  const [line, area] = [element("path", { class: "line" }), element("path", { class: "area" })];
  const svg = element("svg", { class: "chart", role: "img", viewBox: `0 0 ${SAMPLES} 40`, preserveAspectRatio: "none" }, area, line);
  const value = element("strong");
  return { node: element("figure", {}, element("figcaption", {}, title, value), svg), svg, line, area, value };
}

function plot(chart, [title, get, format], kept) {
  const values = kept.map(get);
  const highest = Math.max(...values, 0);
  const width = Math.max(values.length, MIN_SAMPLES) - 1;
  const x = (index) => SAMPLES * (1 - (values.length - 1 - index) / width);
  const points = values.map((value, index) => `${x(index).toFixed(2)} ${37 - 33 * ((value ?? 0) / (highest || 1))}`);
  const path = `M${points.join("L")}`;
  chart.line.setAttribute("d", path);
  chart.area.setAttribute("d", `${path}V40H${x(0)}Z`);
  const now = (values.at(-1) ?? null) === null ? "–" : format(values.at(-1));
  setText(chart.value, now);
  chart.svg.setAttribute("aria-label", `${title}: now ${now}, at most ${format(highest)} in the last ${values.length} seconds`);
}

// ---- Views: each builds its elements once, and returns the function that shows an answer

function facts(list) {
  return element("dl", { class: "facts" }, ...list.filter(([, value]) => value !== "" && value !== null && value !== undefined)
    .map(([title, value, type]) => element("div", {}, element("dt", {}, title), element("dd", { class: type }, String(value)))));
}

function controllersView() {
  const cards = new Map();
  const grid = element("div", { class: "cards" });
  main.append(element("h1", {}, "Controllers"), grid);
  return ({ controllers }) => {
    for (const controller of controllers) {
      let card = cards.get(controller.name);
      if (!card) {
        card = { facts: element("dl"), charts: CHARTS.map(chart) };
        card.node = element("section", { class: "card", "aria-label": controller.name },
          element("h2", {}, controller.name), card.facts, element("div", { class: "charts" }, ...card.charts.map(({ node }) => node)));
        cards.set(controller.name, card);
        grid.append(card.node);
      }
      const bad = (value) => (value ? "bad" : "");
      const shown = facts([
        ["workers", `${number(controller.running)} of ${number(controller.workers)} busy`],
        ["queued", number((controller.queued ?? 0) + (controller.queued_slow ?? 0))],
        ["failing keys", number(controller.failing), bad(controller.failing)],
        ["paused", number(controller.paused)],
        ["slow passes", number(controller.slow), bad(controller.slow)],
        ["unprompted writes", number(controller.unprompted_writes)],
        ["passes in storms", number(controller.storm_passes), bad(controller.storm_passes)],
        ["writes in fights", number(controller.fight_writes), bad(controller.fight_writes)],
        ["passes", counts(controller.passes) || "none yet"],
      ]);
      if (!shown.isEqualNode(card.facts)) {
        card.facts.replaceWith(shown);
        card.facts = shown;
      }
      card.charts.forEach((drawn, index) => plot(drawn, CHARTS[index], samples.get(controller.name) ?? []));
    }
  };
}

function filters(states, changed) {
  const text = element("input", { type: "search", "aria-label": "Filter by text", placeholder: "Filter by controller, key, cause or error" });
  const state = element("select", { "aria-label": "Filter by state" }, element("option", { value: "" }, "all states"),
    ...states.map((name) => element("option", { value: name }, name)));
  [text, state].forEach((input) => input.addEventListener("input", changed));
  const admits = (...texts) => {
    const wanted = text.value.trim().toLowerCase();
    return texts.some((text) => (text ?? "").toLowerCase().includes(wanted));
  };
  return { node: element("div", { class: "filters" }, text, state), admits, hasState: (name) => !state.value || state.value === name };
}

function keysView(isCurrent) {
  let last = { keys: [] };
  const filter = filters(["running", "queued", "queued_slow", "held", "retrying", "failed", "delayed"], () => show(last));
  const list = table("", [
    ["State", ({ state }) => ({ text: state, type: STATES[state] })],
    ["Controller", ({ controller }) => controller, "middle"],
    ["Key", ({ controller, key }) => ({ text: key, href: keyLink(controller, key) }), "middle"],
    ["For", ({ age_seconds }) => duration(age_seconds), "number"],
    ["Next try in", ({ due_seconds }) => duration(due_seconds), "number"],
    ["Causes or error", ({ causes }) => causes, "wide"],
  ]);
  main.append(element("h1", {}, "Keys that run, wait or have failed"), filter.node, list.node);
  const show = (answer) => {
    last = answer;
    const keys = answer.keys.filter(({ state, controller, key, causes }) => filter.hasState(state) && filter.admits(controller, key, causes));
    list.setCaption(`${plural(keys.length, "key")}${answer.keys.length >= answer.limit ? `: the answer is limited to ${answer.limit}` : ""}`);
    return list.show(keys, ({ controller, key, state }) => `${state} ${controller} ${key}`, isCurrent);
  };
  return show;
}

/** The causes of a pass, and what it led to: its error, which a retry mostly repeats, its wait, and its fights. */
function why({ causes, error, after_seconds, fights }) {
  const again = after_seconds === null ? "" : `again after ${duration(after_seconds)}`;
  return [error ? causes.replace(error, "the same error") : causes, error, again, ...fights].filter(Boolean).join(" → ");
}

/** The newest pass for which `text` returns a text: that text, and when the pass began. */
function newest(passes, text) {
  const found = passes?.find((pass) => text(pass));
  return found && `${clock(found.began)}: ${text(found)}`;
}

const PASS_COLUMNS = [
  ["Began", ({ began }) => clock(began)],
  ["Result", ({ result }) => ({ text: result ?? "running", type: STATES[result] })],
  ["Took", ({ seconds }) => duration(seconds), "number"],
  ["Requests", ({ requests_total }) => number(requests_total), "number"],
  ["Causes, and the error", why, "wide"],
];

function passesView(isCurrent) {
  let last = { running: [], finished: [] };
  const filter = filters(["running", "success", "requeue_after", "skip", "waiting", "conflict", "lost", "error", "panic", "deadline"], () => show(last));
  const svg = element("svg", { class: "timeline", role: "img" });
  const [from, to] = [element("span"), element("span")];
  const legend = element("p", { class: "legend" });
  const list = table("", [
    PASS_COLUMNS[0],
    ["Controller", ({ controller }) => controller, "middle"],
    ["Key", ({ controller, key }) => ({ text: key, href: keyLink(controller, key) }), "middle"],
    ...PASS_COLUMNS.slice(1),
  ]);
  main.append(element("h1", {}, "The last passes"), filter.node, svg, element("div", { class: "axis" }, from, to), legend, list.node);
  let drawn = [], passes = [];
  const draw = () => { drawn = timeline(svg, legend, from, to, passes); };
  // The bars are clicked by their places, also after the window has got another width.
  new ResizeObserver(() => requestAnimationFrame(draw)).observe(svg);
  svg.addEventListener("click", (event) => {
    const box = svg.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const hit = drawn.find((bar) => x >= bar.x - 2 && x <= bar.x + bar.width + 2 && y >= bar.y && y <= bar.y + LANE);
    if (hit) location.hash = keyLink(hit.pass.controller, hit.pass.key);
  });
  const show = (answer) => {
    last = answer;
    const wanted = ({ result, controller, key, causes, error }) =>
      filter.hasState(result ?? "running") && filter.admits(controller, key, causes, error);
    passes = [...answer.running, ...answer.finished].filter(wanted);
    draw();
    list.setCaption(passes.length === 1 ? "1 pass" : `${number(passes.length)} passes, the newest first`);
    return list.show(passes, ({ number }) => number, isCurrent);
  };
  return show;
}

const LANE = 12;
const MAX_LANES = 12;

/** Draws a bar for each pass, in the first lane that is free. Returns the bars. */
function timeline(svg, legend, from, to, passes) {
  const width = svg.clientWidth || 600;
  const spans = passes.map((pass) => ({ pass, start: Date.parse(pass.began) / 1000 })).sort((a, b) => a.start - b.start);
  const first = spans[0]?.start ?? 0;
  const end = Math.max(first + 0.001, ...spans.map(({ pass, start }) => start + pass.seconds));
  const free = [], paths = {}, tally = {};
  for (const bar of spans) {
    bar.x = (bar.start - first) / (end - first) * (width - 4) + 1;
    bar.width = Math.max(2, bar.pass.seconds / (end - first) * (width - 4));
    let lane = free.findIndex((until) => until <= bar.x);
    if (lane < 0) lane = free.length < MAX_LANES ? free.length : MAX_LANES - 1;
    free[lane] = bar.x + bar.width;
    bar.y = 4 + lane * LANE;
    const name = bar.pass.result ?? "running";
    const type = bar.pass.result ? STATES[name] ?? "good" : "running";
    paths[type] = `${paths[type] ?? ""}M${bar.x.toFixed(1)} ${bar.y}h${bar.width.toFixed(1)}v${LANE - 3}h-${bar.width.toFixed(1)}z`;
    tally[name] = (tally[name] ?? 0) + 1;
  }
  const height = 8 + Math.max(free.length, 1) * LANE;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("height", height);
  svg.setAttribute("aria-label", `Timeline of ${passes.length} passes: ${counts(tally)}. The table below lists them.`);
  svg.replaceChildren(...Object.entries(paths).map(([type, d]) => element("path", { class: type, d })));
  setText(from, spans.length ? clock(first * 1000) : "");
  setText(to, spans.length ? `${clock(end * 1000)}, ${duration(end - first)} later` : "");
  const entries = Object.entries(tally).map(([name, count]) => element("span", {},
    element("i", { class: `swatch ${name === "running" ? "running" : STATES[name] ?? "good"}`, "aria-hidden": "true" }), `${name} ${count}`));
  if (legend.textContent !== entries.map((entry) => entry.textContent).join("")) legend.replaceChildren(...entries);
  return spans;
}

function command(title, text) {
  const code = element("code", {}, text);
  const copy = element("button", { type: "button", "aria-label": `Copy the command: ${title}` }, "Copy");
  copy.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      setText(copy, "Copied");
    } catch {
      getSelection().selectAllChildren(code); // at an IP address without TLS, browsers have no clipboard
      setText(copy, "Selected");
    }
  });
  return element("div", { class: "command" }, element("span", {}, title), code, copy);
}

function requests({ number, requests }) {
  if (!requests?.length) return "";
  const line = ({ verb, resource, object, seconds, state, status }) => `${verb} ${resource} ${object}: ${status ?? state}, ${duration(seconds)}`;
  return {
    key: `${number} ${requests.map(line).join()}`,
    node: () => element("details", {}, element("summary", {}, plural(requests.length, "request")),
      element("ul", {}, ...requests.map((request) => element("li", {}, line(request))))),
  };
}

function keyView(isCurrent, controller, key) {
  const state = element("div");
  const waits = element("div");
  const commands = element("div");
  const conditions = table("Conditions", [
    ["Type", ({ type }) => type, "middle"],
    ["Status", ({ status }) => ({ text: status ?? "", type: STATES[status] })],
    ["Reason", ({ reason }) => reason, "middle"],
    ["Since", ({ lastTransitionTime }) => (lastTransitionTime ? date(lastTransitionTime) : ""), "middle"],
    ["Message", ({ message }) => message, "wide"],
  ]);
  const passes = table("The last passes, the newest first", [...PASS_COLUMNS, ["Its requests", requests, "wide"]]);
  const related = table("Objects that its passes read, and that it owns", [
    ["Relation", ({ relation }) => relation],
    ["Resource", ({ resource }) => resource, "wide"],
    ["Object", ({ target }) => ({ text: target }), "wide"],
    ["In the cache", ({ exists }) => (exists === false ? { text: "absent", type: "bad" } : exists ? "yes" : "by labels")],
  ]);
  main.append(element("h1", {}, element("span", { class: "key" }, key)), state, waits, element("h2", {}, "kubectl"), commands,
    element("h2", {}, "Object"), conditions.node, element("h2", {}, "Passes"), passes.node, element("h2", {}, "Related objects"), related.node);
  return async (answer) => {
    const waiting = answer.states.map(({ state, due_seconds }) => (due_seconds === null ? state : `${state}, next in ${duration(due_seconds)}`));
    const failed = answer.states.find(({ state }) => state === "retrying" || state === "failed");
    state.replaceChildren(facts([
      ["controller", controller],
      ["led by this process", answer.led ? "yes" : "no"],
      ["state", waiting.join("; ") || "idle", failed ? "bad" : ""],
      ["resourceVersion", answer.object?.resource_version ?? "not in the cache"],
      ["generation", answer.object?.generation],
      ["paused", answer.object?.paused ? "yes" : ""],
      ["last pass in a storm", newest(answer.passes, ({ storm }) => storm), "bad"],
      ["last write in a fight", newest(answer.passes, ({ fights }) => fights.join("; ")), "bad"],
      ["last recorded pass", answer.recorded],
    ]), failed ? element("p", { class: "bad" }, failed.causes) : "");
    if (waits.textContent !== answer.waits.join("")) {
      waits.replaceChildren(...answer.waits.map((line) => element("div", { class: line.startsWith(" ") ? "frame" : "" }, element("code", {}, line))));
    }
    const { pause, resume, run_again } = answer.commands ?? {};
    const known = [answer.object?.paused ? ["Resume", resume] : ["Pause", pause], ["Run again", run_again]];
    const shown = known.filter(([, text]) => text);
    if (commands.dataset.shown !== JSON.stringify(shown)) {
      commands.dataset.shown = JSON.stringify(shown);
      commands.replaceChildren(...shown.map(([title, text]) => command(title, text)));
      if (!shown.length) commands.replaceChildren("There is no object to annotate.");
    }
    await conditions.show(answer.object?.conditions ?? [], ({ type }) => type, isCurrent);
    await passes.show([...answer.running, ...(answer.passes ?? [])], ({ number }) => number, isCurrent);
    await related.show(answer.related, ({ relation, resource, target }) => `${relation} ${resource} ${target}`, isCurrent);
  };
}

/** The reason why an informer waits, or else the objects that cannot be decoded. */
function informerReason({ reason, undecodable_keys }) {
  return reason ?? undecodable_keys.map(({ key, error }) => `${key}: ${error}`).join("; ");
}

function informersView(isCurrent) {
  const list = table("", [
    ["Informer", ({ name }) => name, "wide"],
    ["State", ({ state }) => ({ text: state, type: STATES[state] })],
    ["Objects", ({ objects }) => number(objects), "number"],
    ["Not decoded", ({ undecodable }) => ({ text: number(undecodable), type: undecodable ? "bad" : "" }), "number"],
    ["Size", ({ bytes: size }) => bytes(size), "number"],
    ["Events", ({ events }) => number(events), "number"],
    ["Lists", ({ lists }) => number(lists), "number"],
    ["Failures", ({ failures }) => ({ text: number(failures), type: failures ? "warn" : "" }), "number"],
    ["Last change", ({ last_change }) => (last_change ? date(last_change) : ""), "middle"],
    ["Silent for", ({ last_response_seconds }) => duration(last_response_seconds), "number"],
    ["Reason", (informer) => ({ text: informerReason(informer), type: "bad" }), "middle"],
  ]);
  main.append(element("h1", {}, "Informers"), list.node);
  return ({ informers }) => {
    list.setCaption(plural(informers.length, "informer"));
    return list.show(informers, ({ name }) => name, isCurrent);
  };
}

/** The holder of a bucket's Lease, or what the state says of it. */
function leader({ holder, state }) {
  return holder ?? { "led here": "this process", draining: "this process", "led elsewhere": "another process" }[state] ?? "not known";
}

function leadershipView(isCurrent) {
  const note = element("p", { class: "muted" });
  const buckets = table("Buckets and their leaders", [
    ["Bucket", ({ bucket }) => bucket, "wide"],
    ["State", ({ state }) => ({ text: state, type: STATES[state] })],
    ["Leader", leader, "wide"],
    ["Renewed", ({ renewed }) => clock(renewed)],
    ["Transitions", ({ transitions }) => number(transitions), "number"],
  ]);
  const handovers = table("Handovers from and to this process, the newest first", [
    ["Time", ({ time }) => date(time), "middle"],
    ["Controller", ({ controller }) => controller, "middle"],
    ["Gained", ({ gained }) => gained.join(", "), "wide"],
    ["Lost", ({ lost }) => lost.join(", "), "wide"],
  ]);
  main.append(element("h1", {}, "Leadership"), note, buckets.node, element("h2", {}, "Handovers"), handovers.node);
  return async (answer) => {
    setText(note, answer.buckets.length ? answer.unknown_because ?? "" : "There is no leader election: this process leads every key.");
    await buckets.show(answer.buckets, ({ bucket }) => bucket, isCurrent);
    await handovers.show(answer.handovers, ({ time, controller }) => time + controller, isCurrent);
  };
}

function webhookView(isCurrent) {
  const summary = element("div");
  const list = table("", [
    ["Path", ({ path }) => path, "wide"],
    ["Requests by code", ({ requests }) => counts(requests), "middle"],
    ["Allowed", ({ answers }) => number(answers.true ?? 0), "number"],
    ["Refused", ({ answers }) => ({ text: number(answers.false ?? 0), type: answers.false ? "warn" : "" }), "number"],
    ["In flight", ({ in_flight }) => number(in_flight), "number"],
    ["Mean time", ({ seconds: { sum, count } }) => (count ? duration(sum / count) : ""), "number"],
  ]);
  main.append(element("h1", {}, "Webhook"), summary, list.node);
  return (answer) => {
    const expiry = answer.certificate_expires_in_seconds;
    const bad = (value) => (value ? "bad" : "");
    summary.replaceChildren(facts([
      ["certificate", expiry === null ? "none" : expiry > 0 ? `expires in ${duration(expiry)}` : "expired", expiry > 0 ? "good" : "bad"],
      ["certificate read errors", answer.certificate_read_errors, bad(answer.certificate_read_errors)],
      ["failed handshakes", answer.handshake_failures, bad(answer.handshake_failures)],
      ["failed conversions", answer.conversion_failures, bad(answer.conversion_failures)],
      ["panics", answer.panics, bad(answer.panics)],
    ].slice(0, answer.paths.length ? 5 : 0)));
    list.setCaption(answer.paths.length ? plural(answer.paths.length, "path") : "This process serves no webhook.");
    return list.show(answer.paths, ({ path }) => path, isCurrent);
  };
}

const VIEWS = {
  controllers: controllersView, keys: keysView, passes: passesView, key: keyView,
  informers: informersView, leadership: leadershipView, webhook: webhookView,
};

// ---- The loop

let current = { name: "", show: null, query: "" };
let paused = false;

async function get(path) {
  const response = await fetch(`v1/${path}`, { signal: AbortSignal.timeout(10000) });
  if (!response.ok) throw new Error(await response.text());
  return response.json();
}

/** Shows the view that the part of the address after `#` names. */
function open() {
  const [name, ...parameters] = location.hash.slice(2).split("/").map(decodeURIComponent);
  if (!VIEWS[name]) return void location.replace("#/controllers");
  main.replaceChildren();
  for (const link of document.querySelectorAll("nav a")) {
    const isCurrent = link.hash === `#/${name === "key" ? "keys" : name}`;
    if (isCurrent) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const [controller, key] = parameters;
  const opened = { name };
  const isCurrent = () => current === opened;
  opened.query = name === "key" ? `key?${new URLSearchParams({ controller, key })}` : name;
  opened.show = VIEWS[name](isCurrent, controller, key);
  if (current.name) main.focus({ preventScroll: true });
  current = opened;
  document.title = `${name === "key" ? key : name} – reknit console`;
  scrollTo(0, 0);
  refresh();
}

async function showProcess() {
  const { component, version, pod } = await get("process");
  setText(document.getElementById("component"), component);
  setText(document.getElementById("version"), [version, pod].filter(Boolean).join(", "));
}

async function refresh() {
  const opened = current;
  try {
    if (statusText.textContent !== "live") await showProcess(); // another process may answer than before
    const controllers = await get("controllers");
    sample(controllers.controllers);
    const answer = opened.name === "controllers" ? controllers : await get(opened.query);
    if (current !== opened) return;
    await opened.show(answer);
    setText(statusText, "live");
  } catch (error) {
    if (current === opened) setText(statusText, `no answer: ${error.message.trim()}`);
  }
}

async function loop() {
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, INTERVAL));
    if (!document.hidden && !paused) await refresh();
  }
}

pauseButton.addEventListener("click", () => {
  paused = !paused;
  pauseButton.setAttribute("aria-pressed", String(paused));
  setText(pauseButton, paused ? "Resume updates" : "Pause updates");
  setText(statusText, paused ? "paused" : "connecting");
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address names the view
  main.focus();
});
addEventListener("hashchange", open);
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && !paused) refresh();
});

open();
loop();
