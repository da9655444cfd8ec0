// The inspector put together: pages, keys, the live stream.

import { get, post, Problem, Stream } from "./api.js";
import { Client } from "./client.js";
import { Detail } from "./detail.js";
import { byId, setText } from "./dom.js";
import * as format from "./format.js";
import { html } from "./html.js";
import { Latency } from "./latency.js";
import { List } from "./list.js";
import { Replicas } from "./replicas.js";
import { Rows } from "./rows.js";
import { Saving } from "./saving.js";
import { Subscriptions } from "./subscriptions.js";
import { Toolbar } from "./toolbar.js";
import { Upstreams } from "./upstreams.js";
import { render } from "./vendor/preact.js";
import { Views } from "./views.js";
import { Waterfall } from "./waterfall.js";

const TYPED_MS = 250; // after the last key the filter is applied
const MOVED_MS = 60; // while somebody walks through the list nothing is fetched
const PAGES = ["exchanges", "upstreams", "views", "latency", "client", "subscriptions", "replicas"]; // the last one only where there is a cluster
const OTHER_RUN = "The link is to an exchange of another run of mcpmux, which is not remembered any more.";
const LOST = "Not connected. mcpmux may have been started anew: open the URL that it printed.";

const filter = byId("filter");
const own = byId("own");
const view = byId("view-exchanges");
const rows = new Rows((parameters, signal) => get("/api/exchanges", parameters, signal), changed, report);
const list = new List(byId("list"), rows, selected, (number, focus) => openDetail(number, focus));
const waterfall = new Waterfall(byId("waterfall"), rows, list);
const detail = new Detail(byId("detail"), closed, new Toolbar(mark, openClient));
const saving = new Saving(byId("save"), byId("saving"), () => rows);
const others = {
  upstreams: polled(Upstreams, "upstreams"), views: polled(Views, "views"), latency: polled(Latency, "latency"),
  client: new Client(byId("view-client"), showExchange), subscriptions: polled(Subscriptions, "subscriptions"),
  replicas: polled(Replicas, "replicas"),
};
let stream = null;
let typed = 0;
let moved = 0;

function polled(Page, name) {
  const draw = (active) => render(
    html`<${Page} active=${active} onFilter=${showExchanges} />`, byId(`view-${name}`));
  return { start: () => draw(true), stop: () => draw(false) };
}

function changed(count) {
  list.changed(count);
  waterfall.refresh();
  const total = rows.last - rows.first + 1;
  setText(byId("count"), rows.filter ? `${format.count(rows.length)}${rows.complete ? "" : "+"} of ${format.count(total)}` : format.plural(total, "exchange"));
  setText(byId("summary"), rows.messages ? format.plural(rows.messages, "message") : "");
  byId("paused").hidden = !rows.paused;
  setText(byId("paused").firstElementChild, `${rows.flooded ? "Paused itself: more comes in than can be read" : "Paused"} · ${format.count(rows.fresh)} new`);
  setText(byId("pause"), rows.paused ? "Resume" : "Pause");
  byId("pause").setAttribute("aria-pressed", String(rows.paused));
  byId("empty").hidden = rows.length > 0;
  setText(byId("empty"), rows.filter ? (rows.complete ? "Nothing that is remembered fits the filter." : "Looking …") : "Nothing has passed yet. Whatever clients and upstreams say appears here.");
  const open = detail.number === null ? undefined : rows.known.get(detail.number);
  if (open) detail.update(open);
}

function report(problem) {
  const isFilter = problem instanceof Problem && problem.status === 400;
  byId("filter-problem").hidden = false;
  setText(byId("filter-problem"), problem.status === 401 ? LOST : problem.message);
  filter.setAttribute("aria-invalid", String(isFilter));
}

async function apply(text) {
  list.busy = true;
  try {
    if (rows.own !== own.checked && detail.isOpen) detail.close();
    if (!(await rows.start(text, own.checked))) return;
  } catch (problem) {
    list.busy = false;
    report(problem);
    return;
  }
  list.busy = false;
  byId("filter-problem").hidden = true;
  filter.removeAttribute("aria-invalid");
  remember();
  saving.draw();
  byId("list").scrollTop = 0;
  connect();
}

/** The address leads back here: to the filter, and to the exchange that is open, in this run of mcpmux. */
function remember() {
  const place = { filter: rows.filter, own: rows.own || "", exchange: detail.number === null ? "" : `${rows.run}-${detail.number}` };
  const there = Object.entries(place).filter(([, value]) => value).map(([name, value]) => `${name}=${encodeURIComponent(value)}`);
  history.replaceState(null, "", there.length ? `#${there.join("&")}` : location.pathname);
}

async function follow() {
  const place = new URLSearchParams(location.hash.slice(1));
  filter.value = place.get("filter") ?? "";
  own.checked = place.get("own") === "true";
  if (detail.isOpen) detail.close();
  show("exchanges");
  await apply(filter.value);
  const [run, number] = (place.get("exchange") ?? "").split("-");
  if (!number || !rows.run) return;
  if (run === rows.run) {
    list.select(Number(number));
    openDetail(Number(number), true);
  } else {
    view.dataset.detail = "open";
    detail.refuse(OTHER_RUN);
  }
}

/** Sets `marked` or `note` on a row. */
async function mark(row, change) {
  try {
    const { row: now } = await post(`/api/exchanges/${row.row}?own=${rows.own}`, change);
    rows.known.set(now.row, now);
    changed(0);
  } catch (problem) {
    report(problem);
  }
}

function connect() {
  stream?.close();
  stream = new Stream(rows.filter, rows.own, rows.messages, (event) => rows.hear(event), state);
}

function state(word) {
  const link = byId("link");
  if (word === "live" && link.dataset.state === "lost") resume();
  link.dataset.state = word;
  setText(link, { live: "Live", lost: "Reconnecting", closed: "Not connected" }[word]);
  if (word === "closed") report(new Problem(401, LOST));
}

async function resume() {
  try {
    await rows.resume();
    byId("list").scrollTop = 0;
  } catch (problem) {
    report(problem);
  }
}

function togglePause() {
  if (rows.paused) resume();
  else rows.pause();
}

function selected(number) {
  clearTimeout(moved);
  waterfall.refresh();
  if (detail.isOpen) moved = setTimeout(() => openDetail(number, false), MOVED_MS);
}

function openDetail(number, focus) {
  view.dataset.detail = "open";
  detail.open(number, focus, rows.own);
  requestAnimationFrame(() => list.reveal());
  remember();
}

function closed() {
  view.dataset.detail = "closed";
  byId("list").focus({ preventScroll: true });
  remember();
}

function show(name) {
  for (const each of PAGES) {
    byId(`view-${each}`).hidden = each !== name;
    const tab = byId(`tab-${each}`);
    tab.setAttribute("aria-selected", String(each === name));
    tab.tabIndex = each === name ? 0 : -1;
    if (each === name) tab.scrollIntoView({ block: "nearest", inline: "nearest" });
    if (each in others) others[each][each === name && !document.hidden ? "start" : "stop"]();
  }
  list.refresh();
  waterfall.refresh();
}

function showExchanges(text) {
  clearTimeout(typed);
  filter.value = text;
  own.checked = false;
  show("exchanges");
  apply(text);
  byId("list").focus();
}

/** Shows one exchange of clients. */
function showExchange(number) {
  showExchanges("");
  openDetail(number, true);
}

/** Fills the page of the client with a request, to be changed and sent. */
export function openClient(request) {
  show("client");
  others.client.open(request);
}

const there = () => PAGES.filter((name) => !byId(`tab-${name}`).hidden);
const shown = () => PAGES.find((name) => !byId(`view-${name}`).hidden);

PAGES.forEach((name) => {
  const tab = byId(`tab-${name}`);
  tab.addEventListener("click", () => show(name));
  tab.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const pages = there();
    const next = pages[(pages.indexOf(name) + step + pages.length) % pages.length];
    show(next);
    byId(`tab-${next}`).focus();
  });
});

filter.addEventListener("input", () => {
  clearTimeout(typed);
  list.busy = true;
  typed = setTimeout(() => apply(filter.value.trim()), TYPED_MS);
});
filter.addEventListener("keydown", (event) => {
  if (event.key === "Enter") {
    clearTimeout(typed);
    apply(filter.value.trim());
  } else if (event.key === "ArrowDown") {
    byId("list").focus();
    list.key(event);
  }
});
own.addEventListener("change", () => apply(filter.value.trim()));
byId("pause").addEventListener("click", togglePause);
byId("timeline").addEventListener("click", () => byId("timeline").setAttribute("aria-pressed", String(waterfall.toggle())));
byId("paused").lastElementChild.addEventListener("click", resume);

document.addEventListener("keydown", (event) => {
  if (event.altKey || event.ctrlKey || event.metaKey) return;
  const typing = event.target.closest?.("input, select, textarea");
  if (event.key === "Escape") {
    if (typing === filter && filter.value) {
      filter.value = "";
      clearTimeout(typed);
      apply("");
      event.preventDefault();
    } else if (typing === filter) {
      byId("list").focus();
    } else if (detail.isOpen) {
      detail.close();
    }
  } else if (typing) {
    return;
  } else if (event.key === "/") {
    event.preventDefault();
    show("exchanges");
    filter.focus();
    filter.select();
  } else if (event.key === "p" && shown() === "exchanges") {
    togglePause();
  } else if (event.key === "t" && shown() === "exchanges") {
    byId("timeline").click();
  } else if (event.key === "m" && shown() === "exchanges") {
    const row = rows.known.get(detail.number ?? list.selected);
    if (row) mark(row, { marked: !row.marked });
  } else if (event.target === document.body && shown() === "exchanges" && /^(Arrow|Page|Home|End)/.test(event.key)) {
    byId("list").focus({ preventScroll: true });
    list.key(event);
  } else if (/^[1-9]$/.test(event.key) && there()[event.key - 1]) {
    show(there()[event.key - 1]);
  }
});

// A page that nobody sees asks for nothing.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    stream?.close();
    Object.values(others).forEach((each) => each.stop());
  } else {
    if (!list.busy) apply(rows.filter);
    show(shown());
  }
});

addEventListener("hashchange", () => /[#&](filter|exchange)=/.test(location.hash) && follow()); // not for the link past the top
follow();
get("/api/replicas").then(({ replicas }) => { byId("tab-replicas").hidden = !replicas.length; }, report);
