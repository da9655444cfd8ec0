// The replicas of the cluster: how each is, and what goes from one to another.

import { get } from "./api.js";
import * as format from "./format.js";
import { card, html, Polled } from "./html.js";

export class Replicas extends Polled {
  load() {
    return get("/api/replicas");
  }

  page({ replicas }) {
    return html`
      <div class="bar">
        <h2>Replicas</h2>
        <span class="hint">As ${replicas[0].name} sees them, which shows this page.</span>
      </div>
      <div class="cards">
        ${replicas.map((replica) => card({ ...replica, target: replica.url, pairs: factsOf(replica) }))}
      </div>`;
  }
}

const factsOf = (replica) => [
  ["Id", replica.id], ["Version", replica.version],
  ...(["silent", "gone"].includes(replica.state) ? [] : numbersOf(replica)),
];

const numbersOf = (replica) => [
  ["Since", format.moment(replica.since * 1000)],
  ["Others", format.count(replica.others)],
  ["Subscribes for all replicas at", format.count(replica.owned)],
  ["Legacy sessions", format.count(replica.sessions)],
  ["Taken over", format.count(replica.taken_over)],
  ["Handed over", format.count(replica.handed_over)],
  ["Handed in", format.count(replica.handed_in)],
  ["Store commands", format.count(replica.commands)],
  ["Store answers in", format.duration(replica.lag_ms) || "–"],
  ["Events waiting", format.count(replica.events_waiting)],
  ["Lease", format.duration(1000 * replica.lease_seconds)],
];
