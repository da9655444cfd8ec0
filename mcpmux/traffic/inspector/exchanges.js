// The exchanges as they happen: a filter, the list, the one that is open.

import { get, openStream, Problem } from "./api.js";
import { Detail } from "./detail.js";
import * as format from "./format.js";
import { html, Widget } from "./html.js";
import { List } from "./list.js";
import { Rows } from "./rows.js";
import { Saving } from "./saving.js";
import { createRef } from "./vendor/preact.js";
import { Waterfall } from "./waterfall.js";

const TYPED_MS = 250; // after the last key the filter is applied
const MOVED_MS = 60; // while somebody walks through the list nothing is fetched
const COLUMNS = ["Time", "Status", "Method", "About", "Upstream", "View", "Client", "Duration", "Size"];
const COLUMN_CLASSES = { View: "in-view", Duration: "number", Size: "number" };
const EXAMPLE = "Filter, for example  method=tools/call upstream=docs status!=ok duration>200ms";
const OTHER_RUN = "The link is to an exchange of another run of mcpmux, which is not remembered any more.";
const LOST = "Not connected. mcpmux may have been started anew: open the URL that it printed.";

/**
 * `hidden`: another page is shown; `visible`: somebody sees the window. `onShow()`: show this page. `onState(state)`:
 * of the connection: `link`, and how many `messages` have passed. `onResend(request)`: see `Toolbar`. `admin`: see
 * api.js.
 */
export class Exchanges extends Widget {
  filter = createRef();
  own = createRef();
  list = createRef();
  detail = createRef();
  rows = new Rows(
    (parameters, signal) => get("/api/exchanges", parameters, signal),
    (moved) => this.changed(moved), (problem) => this.setState({ problem }));
  /** @type {any} */
  state = {
    selected: null, number: null, refusal: null, problem: null, link: "connecting", busy: false,
    hasTimeline: false, isSaving: false,
  };

  componentDidMount() {
    // Not for the link past the top.
    addEventListener("hashchange", () => /[#&](filter|exchange)=/.test(location.hash) && this.follow());
    this.follow();
  }

  componentDidUpdate(before) {
    if (this.props.visible === before.visible) return;
    if (!this.props.visible) this.stream?.close();
    else if (!this.state.busy) this.apply(this.rows.filter);
  }

  /** Whether an exchange is beside the list, or the reason why it is not there. */
  get isOpen() {
    return this.state.number !== null || this.state.refusal !== null;
  }

  changed(moved) {
    this.list.current.moved(moved);
    this.props.onState({ messages: this.rows.messages });
    this.setState({});
  }

  async apply(text) {
    const own = this.own.current.checked;
    this.setState({ busy: true });
    try {
      if (this.rows.own !== own && this.isOpen) this.close();
      if (!(await this.rows.start(text, own))) return;
    } catch (problem) {
      this.setState({ busy: false, problem });
      return;
    }
    this.setState({ busy: false, problem: null });
    this.remember();
    this.list.current.scrollUp();
    this.stream?.close();
    const { filter, messages } = this.rows;
    this.stream = openStream(filter, own, messages, (event) => this.rows.hear(event), (link) => this.linked(link));
  }

  applyTyped(wait = 0) {
    clearTimeout(this.typed);
    if (!wait) return this.apply(this.filter.current.value.trim());
    this.setState({ busy: true });
    this.typed = setTimeout(() => this.applyTyped(), wait);
  }

  linked(link) {
    if (link === "live" && this.state.link === "lost") this.resume();
    this.setState({ link, ...(link === "closed" ? { problem: new Problem(401, LOST) } : {}) });
    this.props.onState({ link });
  }

  /** Let the address lead back here: to the filter, and to the exchange that is open, in this run of mcpmux. */
  remember(number = this.state.number) {
    const { filter, own, run } = this.rows;
    const place = { filter, own: own || "", exchange: number === null ? "" : `${run}-${number}` };
    const there = Object.entries(place).filter(([, value]) => value);
    const hash = there.map(([name, value]) => `${name}=${encodeURIComponent(value)}`).join("&");
    history.replaceState(null, "", hash ? `#${hash}` : location.pathname);
  }

  async follow() {
    const place = new URLSearchParams(location.hash.slice(1));
    this.filter.current.value = place.get("filter") ?? "";
    this.own.current.checked = place.get("own") === "true";
    if (this.isOpen) this.close();
    this.props.onShow();
    await this.apply(this.filter.current.value);
    const [run, number] = (place.get("exchange") ?? "").split("-");
    if (!number || !this.rows.run) return;
    if (run !== this.rows.run) {
      this.setState({ number: null, refusal: OTHER_RUN });
      return;
    }
    this.setState({ selected: Number(number) });
    this.open(Number(number), true);
  }

  /** Show the exchanges that fit a filter. */
  show(text) {
    this.filter.current.value = text;
    this.own.current.checked = false;
    this.list.current.focus();
    return this.applyTyped();
  }

  async resume() {
    try {
      await this.rows.resume();
      this.list.current.scrollUp();
    } catch (problem) {
      this.setState({ problem });
    }
  }

  togglePause() {
    if (this.rows.paused) this.resume();
    else this.rows.pause();
  }

  select(number) {
    clearTimeout(this.moving);
    this.setState({ selected: number });
    if (this.isOpen) this.moving = setTimeout(() => this.open(number, false), MOVED_MS);
  }

  open(number, hasFocus) {
    clearTimeout(this.moving);
    this.setState({ number, refusal: null }, () => {
      if (hasFocus) this.detail.current.focus();
      this.list.current.reveal();
    });
    this.remember(number);
  }

  close() {
    clearTimeout(this.moving);
    this.setState({ number: null, refusal: null }, () => this.list.current.focus());
    this.remember(null);
  }

  /** Set `marked` or `note` on a row. */
  async mark(row, change) {
    try {
      const { row: now } = await this.props.admin.post(`/api/exchanges/${row.row}?own=${this.rows.own}`, change);
      this.rows.known.set(now.row, now);
      this.changed(0);
    } catch (problem) {
      this.setState({ problem });
    }
  }

  escape(event) {
    const filter = this.filter.current;
    if (event.target === filter && filter.value) {
      event.preventDefault();
      filter.value = "";
      this.applyTyped();
    } else if (event.target === filter) {
      this.list.current.focus();
    } else if (this.isOpen) {
      this.close();
    }
  }

  /** Take a key that no element wants. */
  key(event) {
    const { number, selected, hasTimeline } = this.state;
    if (event.key === "p") this.togglePause();
    if (event.key === "t") this.setState({ hasTimeline: !hasTimeline });
    if (event.key === "m") {
      const row = this.rows.known.get(number ?? selected ?? -1);
      if (row) this.mark(row, { marked: !row.marked });
    }
    if (event.target === document.body && /^(Arrow|Page|Home|End)/.test(event.key)) this.toList(event);
  }

  toList(event) {
    this.list.current.focus();
    this.list.current.key(event);
  }

  focusFilter() {
    this.filter.current.focus();
    this.filter.current.select();
  }

  render({ hidden, admin, onResend }, { selected, number, refusal, busy, hasTimeline, isSaving }) {
    const { rows } = this;
    const pick = (picked) => this.list.current.pick(picked);
    return html`
      <section id="view-exchanges" role="tabpanel" aria-labelledby="tab-exchanges" hidden=${hidden}
        data-detail=${this.isOpen ? "open" : "closed"}>
        ${this.bar()}
        ${this.problems()}
        ${isSaving && html`<${Saving} filter=${rows.filter} own=${rows.own} admin=${admin} />`}
        <div class="split">
          <div class="listing" data-views=${rows.hasViews ? "some" : null}>
            <${Waterfall} hidden=${!hasTimeline} rows=${rows} selected=${selected} onPick=${pick} />
            <div class="columns" aria-hidden="true">
              ${COLUMNS.map((name) => html`<span class=${COLUMN_CLASSES[name]}>${name}</span>`)}
            </div>
            <${List} ref=${this.list} rows=${rows} selected=${selected} busy=${busy}
              onSelect=${(row) => this.select(row)} onOpen=${(row, hasFocus) => this.open(row, hasFocus)} />
            <p id="empty" class="empty" hidden=${rows.length > 0}>${this.emptyWords()}</p>
          </div>
          <${Detail} ref=${this.detail} number=${number} row=${rows.known.get(number)} own=${rows.own}
            refusal=${refusal} admin=${admin} onClose=${() => this.close()} onResend=${onResend}
            onMark=${(row, change) => this.mark(row, change)} />
        </div>
      </section>`;
  }

  bar() {
    const { hasTimeline, isSaving, problem } = this.state;
    const { rows } = this;
    const down = (event) => {
      if (event.key === "Enter") this.applyTyped();
      else if (event.key === "ArrowDown") this.toList(event);
    };
    return html`
      <div class="bar">
        <label class="filter">
          <svg viewBox="0 0 16 16" width="14" height="14" aria-hidden="true">
            <circle cx="7" cy="7" r="4.5" /><path d="M10.5 10.5 14 14" />
          </svg>
          <span class="unseen">Filter</span>
          <input ref=${this.filter} id="filter" type="search" spellcheck=${false} autocomplete="off"
            autocapitalize="off" placeholder=${EXAMPLE} aria-describedby="filter-problem" aria-keyshortcuts="/"
            aria-invalid=${problem?.status === 400} oninput=${() => this.applyTyped(TYPED_MS)} onkeydown=${down} />
          <kbd aria-hidden="true">/</kbd>
        </label>
        <label class="own">
          <input ref=${this.own} id="own" type="checkbox" onchange=${() => this.applyTyped()} />mcpmux's own
        </label>
        <output id="count" class="count" for="filter">${this.countWords()}</output>
        <button id="timeline" class="button" aria-pressed=${hasTimeline} aria-controls="waterfall" aria-keyshortcuts="t"
          onclick=${() => this.setState({ hasTimeline: !hasTimeline })}>Timeline</button>
        <button id="save" class="button" aria-expanded=${isSaving} aria-controls=${isSaving ? "saving" : null}
          onclick=${() => this.setState({ isSaving: !isSaving })}>Save …</button>
        <button id="pause" class="button" aria-pressed=${rows.paused} aria-keyshortcuts="p"
          onclick=${() => this.togglePause()}>${rows.paused ? "Resume" : "Pause"}</button>
      </div>`;
  }

  problems() {
    const { problem } = this.state;
    const { paused, flooded, fresh } = this.rows;
    const why = flooded ? "Paused itself: more comes in than can be read" : "Paused";
    return html`
      <pre id="filter-problem" class="problem" role="alert" hidden=${!problem}>
        ${problem?.status === 401 ? LOST : problem?.message}
      </pre>
      <div id="paused" class="paused" role="status" hidden=${!paused}>
        <span>${why} · ${format.count(fresh)} new</span>
        <button class="button" onclick=${() => this.resume()}>Resume</button>
      </div>`;
  }

  countWords() {
    const { rows } = this;
    const total = rows.last - rows.first + 1;
    if (!rows.filter) return format.plural(total, "exchange");
    return `${format.count(rows.length)}${rows.complete ? "" : "+"} of ${format.count(total)}`;
  }

  emptyWords() {
    if (!this.rows.filter) return "Nothing has passed yet. Whatever clients and upstreams say appears here.";
    return this.rows.complete ? "Nothing that is remembered fits the filter." : "Looking …";
  }
}
