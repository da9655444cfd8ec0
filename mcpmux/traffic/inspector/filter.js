// The field of the filter: what it may become is shown below it, and so is what is wrong with it once it is typed.

import { get } from "./api.js";
import { createRef, html, Widget } from "./html.js";
import { suggest } from "./suggest.js";

const TYPED_MS = 250; // after the last key the filter is applied
const WRONG_MS = 1500; // after the last key it is said what is wrong with it
const KEPT = "mcpmux filters"; // in the storage of the browser
const RECENT = 8;
const EXAMPLE = "Search, or filter: failed upstream=docs duration>200ms";

/**
 * `problem`: what is wrong with the filter, in words. `rows()`: the rows that are known. `onTyped()`: it will be
 * another one; `onApply()`: it is. `onLeave(event)`: go on to the list, which may take the key.
 */
export class Filter extends Widget {
  input = createRef();
  /** @type {any} */
  state = { keys: [], found: [], picked: -1, isTyping: false };

  async componentDidMount() {
    const known = await get("/api/filter").catch(() => ({}));
    const isAwaited = () => this.text && document.activeElement === this.input.current; // somebody typed meanwhile
    this.setState(known, () => isAwaited() && this.look());
  }

  get text() {
    return this.input.current.value.trim();
  }

  /** Show another filter, which is applied elsewhere. */
  put(text) {
    this.input.current.value = text;
    this.setState({ found: [], isTyping: false });
  }

  focus() {
    this.input.current.focus();
    this.input.current.select();
  }

  recent() {
    return JSON.parse(localStorage.getItem(KEPT) ?? "[]");
  }

  look() {
    const found = suggest(this.input.current.value, this.state.keys, this.props.rows(), this.recent());
    this.setState({ found, picked: -1 });
  }

  typed() {
    clearTimeout(this.applying);
    clearTimeout(this.judging);
    this.look();
    this.setState({ isTyping: true });
    this.props.onTyped();
    this.applying = setTimeout(() => this.props.onApply(), TYPED_MS);
    this.judging = setTimeout(() => this.setState({ isTyping: false }), WRONG_MS);
  }

  /** Apply what is there, and remember it. */
  finish() {
    const { text } = this;
    this.setState({ found: [], isTyping: false });
    clearTimeout(this.applying);
    this.props.onApply();
    if (!text) return;
    const recent = [text, ...this.recent().filter((each) => each !== text)].slice(0, RECENT);
    localStorage.setItem(KEPT, JSON.stringify(recent));
  }

  take(text) {
    this.input.current.value = text;
    this.input.current.focus();
    if (/[=~<>]$/.test(text)) this.typed(); // its value is still missing
    else this.finish();
  }

  /** Return whether Escape was for this field. */
  escape() {
    const { found } = this.state;
    if (document.activeElement !== this.input.current) return false;
    if (found.length) this.setState({ found: [] });
    else if (this.text) this.take("");
    else this.props.onLeave();
    return true;
  }

  key(event) {
    const { found, picked } = this.state;
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (event.key === "Enter") {
      if (picked < 0) this.finish();
      else this.take(found[picked].text);
    } else if (step && found.length) {
      event.preventDefault();
      this.setState({ picked: Math.max(-1, Math.min(found.length - 1, picked + step)) });
    } else if (event.key === "ArrowDown") {
      this.props.onLeave(event);
    }
  }

  render({ problem }, { found, picked, isTyping }) {
    const isWrong = Boolean(problem) && !isTyping;
    const leave = () => this.setState({ found: [], isTyping: false });
    return html`
      <div class="filter">
        <svg viewBox="0 0 16 16" width="14" height="14" aria-hidden="true">
          <circle cx="7" cy="7" r="4.5" /><path d="M10.5 10.5 14 14" />
        </svg>
        <input ref=${this.input} id="filter" type="search" role="combobox" spellcheck=${false} autocomplete="off"
          autocapitalize="off" placeholder=${EXAMPLE} aria-label="Filter" aria-keyshortcuts="/" aria-invalid=${isWrong}
          aria-expanded=${found.length > 0} aria-controls="suggestions" aria-autocomplete="list"
          aria-activedescendant=${picked < 0 ? null : `suggestion-${picked}`} aria-describedby="filter-problem"
          oninput=${() => this.typed()} onkeydown=${(event) => this.key(event)} onfocus=${() => this.look()}
          onblur=${leave} />
        <kbd aria-hidden="true">/</kbd>
        <pre id="filter-problem" class="problem below" role="alert" hidden=${!isWrong}>${problem}</pre>
        <ul id="suggestions" class="below" role="listbox" aria-label="Suggestions" hidden=${isWrong || !found.length}>
          ${found.map(({ text, about }, place) => html`
            <li id="suggestion-${place}" role="option" aria-selected=${place === picked}
              onmousedown=${(event) => event.preventDefault()} onclick=${() => this.take(text)}>
              <code>${text}</code><span>${about}</span>
            </li>`)}
        </ul>
      </div>`;
  }
}
