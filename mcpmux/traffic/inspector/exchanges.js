// The exchanges as they happen: a filter, the list, the one that is open.

import { get, openStream, Problem } from "./api.js";
import { chooser, heads, showWidths } from "./columns.js";
import { Detail } from "./detail.js";
import { Filter } from "./filter.js";
import * as format from "./format.js";
import { button, createRef, html, Widget } from "./html.js";
import { List } from "./list.js";
import { Rows } from "./rows.js";
import { Saving } from "./saving.js";
import { Waterfall } from "./waterfall.js";

const MOVED_MS = 60; // while somebody walks through the list nothing is fetched
const OTHER_RUN = "The link is to an exchange of another run of mcpmux, which is not remembered any more.";
const LOST = "Not connected. mcpmux may have been started anew: open the URL that it printed.";

/** Return whether the address leads to exchanges. */
const isPlace = () => /[#&](filter|exchange)=/.test(location.hash);

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
    showWidths();
    addEventListener("hashchange", () => isPlace() && this.follow()); // not for the link past the top
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

  async apply(text = this.filter.current.text, sort = this.rows.sort) {
    const own = this.own.current.checked;
    this.setState({ busy: true });
    try {
      if (this.rows.own !== own && this.isOpen) this.close();
      if (!(await this.rows.start(text, own, sort))) return;
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
    this.filter.current.put(place.get("filter") ?? "");
    this.own.current.checked = place.get("own") === "true";
    if (this.isOpen) this.close();
    if (isPlace()) this.props.onShow();
    await this.apply();
    const [run, number] = (place.get("exchange") ?? "").split("-");
    if (!number || !this.rows.run) return;
    if (run !== this.rows.run) {
      this.setState({ number: null, refusal: OTHER_RUN });
      return;
    }
    this.setState({ selected: Number(number) });
    this.open(Number(number), true);
  }

  /** Show the exchanges that fit a filter, in an order. */
  show(text, sort = "") {
    this.filter.current.put(text);
    this.own.current.checked = false;
    this.list.current.focus();
    return this.apply(text, sort);
  }

  async resume(start = () => this.rows.resume()) {
    await this.attempt(async () => {
      await start();
      this.list.current.scrollUp();
    });
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
    await this.attempt(async () => {
      const { row: now } = await this.props.admin.post(`/api/exchanges/${row.row}?own=${this.rows.own}`, change);
      this.rows.known.set(now.row, now);
      this.changed(0);
    });
  }

  escape() {
    if (!this.filter.current.escape() && this.isOpen) this.close();
  }

  /** Take a key that no element wants. */
  key(event) {
    const { number, selected, hasTimeline } = this.state;
    const isFree = event.target === document.body;
    if (event.key === "p") this.togglePause();
    if (event.key === "t") this.setState({ hasTimeline: !hasTimeline });
    if (event.key === "m") {
      const row = this.rows.known.get(number ?? selected ?? -1);
      if (row) this.mark(row, { marked: !row.marked });
    }
    if (/^[jk]$/.test(event.key) || (isFree && event.key === "Enter")) this.list.current.key(event);
    if (isFree && /^(Arrow|Page|Home|End)/.test(event.key)) this.toList(event);
  }

  toList(event) {
    this.list.current.focus();
    if (event) this.list.current.key(event);
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
            ${heads(rows.sort, (sort) => this.apply(rows.filter, sort))}
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
    return html`
      <div class="bar">
        <${Filter} ref=${this.filter} problem=${problem?.status === 400 ? problem.message : ""}
          rows=${() => rows.all()} onTyped=${() => this.setState({ busy: true })}
          onApply=${() => this.apply()} onLeave=${(event) => this.toList(event)} />
        <label class="own">
          <input ref=${this.own} id="own" type="checkbox" onchange=${() => this.apply()} />mcpmux's requests
        </label>
        <output id="count" class="count" for="filter">${this.countWords()}</output>
        ${button("Timeline", () => this.setState({ hasTimeline: !hasTimeline }),
          { id: "timeline", "aria-pressed": hasTimeline, "aria-controls": "waterfall", "aria-keyshortcuts": "t" })}
        ${chooser()}
        ${button("Save …", () => this.setState({ isSaving: !isSaving }),
          { id: "save", "aria-expanded": isSaving, "aria-controls": isSaving ? "saving" : null })}
        ${button(rows.paused ? "Resume" : "Pause", () => this.togglePause(),
          { id: "pause", "aria-pressed": rows.paused, "aria-keyshortcuts": "p" })}
        ${button("Clear", () => this.resume(() => rows.clear()),
          { id: "clear", title: "Show only what comes from now on" })}
      </div>`;
  }

  problems() {
    const { problem } = this.state;
    const { paused, flooded, fresh, cleared } = this.rows;
    const why = flooded ? "Paused itself: more comes in than can be read" : "Paused";
    return html`
      <pre class="problem" role="alert" hidden=${!problem || problem.status === 400}>
        ${problem?.status === 401 ? LOST : problem?.message}
      </pre>
      <div id="cleared" class="paused" hidden=${!cleared}>
        <span>Earlier exchanges are not shown</span>
        ${button("Show them", () => this.resume(() => this.rows.clear(0)))}
      </div>
      <div id="paused" class="paused" role="status" hidden=${!paused}>
        <span>${why} · ${format.count(fresh)} new</span>
        ${button("Resume", () => this.resume())}
      </div>`;
  }

  countWords() {
    const { rows } = this;
    const total = rows.last - rows.first + 1;
    if (!rows.isPart) return format.plural(total, "exchange");
    return `${format.count(rows.length)}${rows.complete ? "" : "+"} of ${format.count(total)}`;
  }

  emptyWords() {
    if (this.rows.cleared && !this.rows.filter) return "Nothing has passed since then.";
    if (!this.rows.filter) return "Nothing has passed yet. The page Upstreams says how to connect a client.";
    return this.rows.complete ? "Nothing that is remembered fits the filter." : "Looking …";
  }
}
