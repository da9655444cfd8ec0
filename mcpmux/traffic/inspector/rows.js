// The list as it is known here: parts of it, newest first. Without a filter any place in it can be looked at, for
// rows have consecutive numbers; with one it is what was found so far, and more is looked for at its end. When it is
// sorted it is the first CHUNK rows of all, and changes as they do.

/** @import { Row } from "./api.js" */
/** @typedef {{first: number, last: number, messages: number, rows: Row[]}} Part of the list */

const CHUNK = 200; // rows of one question
const AT_ONCE = 4; // questions; whoever scrolls past more has no time to read the answers
const KEPT = 20_000; // rows that are remembered here
const FLOOD_ROWS = 600; // within FLOOD_MS: more than anybody reads
const FLOOD_MS = 2000;
const MOST = 500_000; // rows that the list can be as long as
/** @type {Record<string, (row: Row) => any>} by which rows are sorted, as mcpmux sorts them */
const VALUES = {
  time: (row) => row.row, size: (row) => row.size, name: (row) => row.target || row.method,
  duration: (row) => (row.status === "open" ? Date.now() - row.at : row.ms),
};

export class Rows {
  /**
   * @param {(parameters: object, signal?: AbortSignal) => Promise<Part & {before: number | null, run: string}>} request
   * @param {(moved: number) => void} onChange is given how many rows came on top
   * @param {(problem: Error) => void} onProblem
   */
  constructor(request, onChange, onProblem) {
    this.request = request;
    this.onChange = onChange;
    this.onProblem = onProblem;
    this.filter = "";
    this.sort = ""; // see ORDERS of the admin API; empty: the newest first
    this.cleared = 0; // the last row that is not shown any more
    this.own = false; // what mcpmux has asked by itself, which has numbers of its own
    this.paused = false;
    this.flooded = false;
    /** @type {AbortController | null} */
    this.starting = null; // ends the question for the first rows
    this.run = ""; // of mcpmux
    this.round = 0;
    this.looked = [0, 0]; // places of the rows in sight
    this.hasViews = false; // of clients, so far
    /** @type {Map<number, Row>} */
    this.known = new Map();
    /** @type {Map<number, Row>} */
    this.seen = new Map(); // most rows that were known under one filter
    this.reset();
  }

  reset() {
    this.first = 1; // oldest row that mcpmux has
    this.last = 0; // newest row that mcpmux has
    this.top = 0; // newest row that the list shows
    this.messages = 0;
    /** @type {number} */
    this.fresh = 0; // rows that came while it was paused
    if (this.known.size > this.seen.size) this.seen = this.known;
    this.known = new Map();
    /** @type {number[]} */
    this.found = []; // with a filter or sorted: numbers of the rows, in their order
    /** @type {number | null} */
    this.before = null; // with a filter: where to go on looking
    /** @type {Set<number>} */
    this.asking = new Set();
    /** @type {[now: number, rows: number][]} */
    this.arrivals = [];
    this.round += 1;
  }

  /** Yield the known rows, and those of before: what is being typed has no results yet, or none at all. */
  * all() {
    yield* this.known.values();
    yield* this.seen.values();
  }

  /** Whether the rows are those that were found, and not all. */
  get isPart() {
    return Boolean(this.filter || this.sort);
  }

  get length() {
    return this.isPart ? this.found.length : Math.min(MOST, Math.max(0, this.top - this.first + 1));
  }

  get complete() {
    return !this.isPart || this.before === null;
  }

  /** @param {number} index */
  numberAt(index) {
    return this.isPart ? this.found[index] : this.top - index;
  }

  indexOf(number) {
    if (!this.isPart) return number >= this.first && number <= this.top ? this.top - number : -1;
    return this.found.indexOf(number);
  }

  at(index) {
    return this.known.get(this.numberAt(index));
  }

  /**
   * Start over with another filter or order. Returns false if another start came in between. Throws what is wrong
   * with the filter.
   */
  async start(filter, own = this.own, sort = this.sort) {
    this.starting?.abort();
    const starting = (this.starting = new AbortController());
    let part;
    try {
      if (own !== this.own) this.cleared = 0; // others have numbers of their own
      part = await this.request({ filter, own, sort, after: this.cleared, limit: CHUNK }, starting.signal);
    } catch (problem) {
      if (!starting.signal.aborted) throw problem;
    } finally {
      if (this.starting === starting) this.starting = null;
    }
    if (!part || starting.signal.aborted) return false;
    this.filter = filter;
    this.own = own;
    this.sort = sort;
    this.run = part.run;
    this.reset();
    this.first = part.first;
    this.last = this.top = part.last;
    this.messages = part.messages;
    this.add(part);
    this.onChange(0);
    return true;
  }

  /** Show nothing of what has passed so far; or all of it again. */
  clear(number = this.last) {
    this.cleared = number;
    return this.resume();
  }

  /** Put what was found into its order, and leave out what does not belong to it any more. */
  arrange() {
    const value = VALUES[this.sort.replace("-", "")];
    if (!value) {
      this.found.sort((a, b) => b - a);
      return;
    }
    const way = this.sort.startsWith("-") ? -1 : 1;
    const known = this.found.flatMap((number) => this.known.get(number) ?? []);
    const values = new Map(known.map((row) => [row.row, value(row)]));
    const compare = (a, b) => (a === b ? 0 : (a < b ? -1 : 1) * way);
    this.found = this.found.filter((number) => number >= this.first && values.get(number) !== undefined)
      .sort((a, b) => compare(values.get(a), values.get(b))).slice(0, CHUNK);
  }

  keep(rows) {
    for (const row of rows) this.known.set(row.row, row);
    this.hasViews ||= rows.some(({ view }) => view);
  }

  add(part) {
    this.keep(part.rows);
    if (!this.isPart) return;
    const have = new Set(this.found);
    this.found.push(...part.rows.map((row) => row.row).filter((number) => !have.has(number)));
    if (!this.sort) this.arrange(); // else it came in its order
    this.before = part.before;
  }

  /** Ask for what is not known of the rows from one place to another. */
  ensure(from, to) {
    if (this.isPart) {
      if (this.before !== null && to >= this.found.length - 1) this.ask(this.before);
      return;
    }
    for (let index = from; index <= to; index++) {
      const number = this.top - index;
      if (number < this.first || this.known.has(number)) continue;
      const chunk = Math.ceil((number + 1) / CHUNK) * CHUNK; // so that neighbours ask the same
      this.ask(chunk);
      index += number - (chunk - CHUNK);
    }
  }

  async ask(before) {
    if (this.asking.has(before) || this.asking.size >= AT_ONCE) return; // it is wanted again with each answer
    const round = this.round;
    this.asking.add(before);
    try {
      const part = await this.request(
        { filter: this.filter, own: this.own, before, after: this.cleared, limit: CHUNK });
      if (round !== this.round) return;
      this.first = part.first;
      this.add(part);
      this.asking.delete(before);
      this.onChange(0);
    } catch (problem) {
      if (round === this.round) setTimeout(() => this.asking.delete(before), 1000);
      this.onProblem(/** @type {Error} */ (problem));
    }
  }

  /**
   * Take an event of the stream.
   * @param {Part & {gone: number[], skipped?: boolean}} event
   */
  hear(event) {
    const arrived = event.last - this.last;
    if (arrived < 0) {
      this.cleared = 0; // another run
      this.reset();
    }
    this.first = Math.max(event.first, this.cleared + 1);
    this.last = event.last;
    this.messages = event.messages;
    if (event.skipped) this.doubtOpenOnes();
    const shownBefore = this.length;
    this.keep(event.rows);
    if (this.isPart) this.hearPart(event);
    const fresh = this.filter ? event.rows.filter((row) => row.row > this.top).length : Math.max(0, arrived);
    this.watchForFlood(fresh);
    if (this.paused) {
      this.fresh += fresh;
      this.onChange(0);
    } else {
      const moved = this.sort ? 0 : this.filter ? this.found.length - shownBefore : this.last - this.top;
      this.top = this.last;
      this.onChange(Math.max(0, moved));
    }
    this.forget();
  }

  hearPart(event) {
    const gone = new Set(event.gone);
    if (gone.size) this.found = this.found.filter((number) => !gone.has(number));
    if (this.paused) return;
    const have = new Set(this.found.slice(0, 2000));
    const oldest = this.sort ? 0 : this.found.at(-1) ?? 0;
    const fresh = event.rows.map((row) => row.row).filter((number) => !have.has(number) && number > oldest);
    this.found.push(...fresh);
    if (fresh.length || this.sort) this.arrange();
  }

  /** Forget rows that were not over: some have changed, unknown which. */
  doubtOpenOnes() {
    for (const [number, row] of this.known) if (row.status === "open") this.known.delete(number);
  }

  watchForFlood(arrived) {
    const now = performance.now();
    this.arrivals.push([now, arrived]);
    this.arrivals = this.arrivals.filter(([at]) => at >= now - FLOOD_MS);
    const total = this.arrivals.reduce((sum, [, number]) => sum + number, 0);
    if (!this.paused && total > FLOOD_ROWS) {
      this.paused = this.flooded = true;
      this.onChange(0);
    }
  }

  pause() {
    this.paused = true;
    this.onChange(0);
  }

  async resume() {
    this.paused = this.flooded = false;
    this.arrivals = [];
    if (!this.starting) await this.start(this.filter); // or else what is new comes anyway
  }

  forget() {
    if (this.known.size <= KEPT) return;
    const [from, to] = this.looked;
    const near = new Map();
    for (let index = Math.max(0, from - 2000); index < to + 2000 && index < this.length; index++) {
      const row = this.at(index);
      if (row) near.set(row.row, row);
    }
    this.known = near;
  }
}
