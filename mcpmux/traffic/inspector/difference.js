// Where two exchanges differ, path by path, as mcpmux compares them.

import { get } from "./api.js";
import * as format from "./format.js";
import { head, html } from "./html.js";
import { Component } from "./vendor/preact.js";

const LENGTH = 400; // characters of a value
const WORDS = { added: " only on the right", removed: " only on the left", moved: " in another order" };

/** The differences of two rows, asked for once: `left`, `right`, and whether they are mcpmux's `own`. */
export class Difference extends Component {
  async componentDidMount() {
    const { left, right, own } = this.props;
    try {
      this.setState({ found: await get(`/api/exchanges/${left.row}/differences/${right.row}`, { own }) });
    } catch (problem) {
      this.setState({ problem });
    }
  }

  render({ left, right }, { found, problem }) {
    if (problem) return html`<p class="problem">${problem.message}</p>`;
    if (!found) return null;
    return html`
      ${found.differences.length ? html`
        <table>${head(["Path", nameOf(left), nameOf(right)])}<tbody>${found.differences.map(line)}</tbody></table>`
      : html`<p>They do not differ.</p>`}
      <p class="hint">
        Cursors, ids of tasks and the like differ each time, and are not compared.
        ${found.incomplete && " A message that was too large to be kept is not compared either."}
      </p>`;
  }
}

const nameOf = (row) => `${`${row.method ?? "message"} ${row.target ?? ""}`.trim()}, ${format.time(row.at)}`;

const line = ({ path, kind, captured, now }) => html`
  <tr>
    <th scope="row" translate="no">${path}<small>${WORDS[kind]}</small></th>
    <td translate="no">${cut(captured)}</td><td translate="no">${cut(now)}</td>
  </tr>`;

function cut(value) {
  const text = value === undefined ? "" : JSON.stringify(value);
  return text.length > LENGTH ? `${text.slice(0, LENGTH)}…` : text;
}
