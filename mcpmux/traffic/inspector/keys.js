// The keys of the page, shown with `?`.

import { html, Widget } from "./html.js";
import { createRef } from "./vendor/preact.js";

const KEYS = Object.entries({
  "/": "search and filter", "j k": "next, previous exchange; arrow keys in the list, too", Enter: "open the exchange",
  Esc: "close it; take the filter away", m: "mark the exchange", p: "pause, go on", t: "timeline of many exchanges",
  "+ − 0 ← →": "in the timeline: zoom, show all, move", "1 … 8": "pages", "← →": "on a tab: the one beside it",
  "Ctrl Enter": "on the page Client: send", "a r e": "on a held exchange: let it go, refuse, edit", "?": "these keys",
});

export class Keys extends Widget {
  box = createRef();

  show() {
    this.box.current.showModal();
  }

  render() {
    return html`
      <dialog ref=${this.box} id="keys" aria-label="Keys" onclick=${() => this.box.current.close()}>
        <dl>${KEYS.map(([key, what]) => html`<div><dt><kbd>${key}</kbd></dt><dd>${what}</dd></div>`)}</dl>
        <button class="button">Close</button>
      </dialog>`;
  }
}
