// The two workers that answer: one for estimates, which are on screen at once; one for searches, which may be stopped.

/** A worker, and the questions that it was asked. */
class Lane {
  constructor(onStarted, onFailed) {
    this.mounts = [];
    this.told = { onStarted, onFailed };
    this.begin();
  }

  begin() {
    this.waiting = new Map();
    this.worker = new Worker(new URL("worker.js", import.meta.url), { type: "module" });
    this.worker.onerror = (event) => this.told.onFailed(event.message || "the worker cannot be started");
    this.worker.onmessage = ({ data }) => {
      if (data.started) this.told.onStarted();
      else if (data.failed) this.told.onFailed(data.failed);
      else {
        this.waiting.get(data.id)?.(data.answer);
        this.waiting.delete(data.id);
        if (data.answer.type === "Fault") this.stop(); // who knows what state Python is in
      }
    };
    for (const mount of this.mounts) this.worker.postMessage(mount);
  }

  mount(folder, files) {
    const mount = { mount: folder, files };
    this.mounts.push(mount);
    this.worker.postMessage(mount);
  }

  ask(kind, question) {
    return new Promise((answered) => {
      const id = (Lane.last = (Lane.last ?? 0) + 1);
      this.waiting.set(id, answered);
      this.worker.postMessage({ id, kind, question });
    });
  }

  /** Begin anew; what was asked is answered by null. */
  stop() {
    this.worker.terminate();
    const given = [...this.waiting.values()];
    this.begin();
    for (const answered of given) answered(null);
  }
}

/** Milliseconds that a search may go on once something else is asked; then it is ended, and Python starts anew. */
const OVERDUE = 1500;

export class Engine {
  constructor({ onStarted, onFailed, onIdle }) {
    this.quick = new Lane(() => {
      // the other one starts when this one needs the processor no more
      this.slow ??= this.startSlow(onFailed);
      onStarted();
    }, onFailed);
    this.onIdle = onIdle;
    this.mounted = 0;
    this.next = null;
    this.searching = false;
  }

  startSlow(onFailed) {
    const lane = new Lane(() => {}, onFailed);
    for (const { mount, files } of this.quick.mounts) lane.mount(mount, files);
    return lane;
  }

  /** Have files where Python finds them; the folder they are in. */
  mount(files) {
    const folder = `/models/${++this.mounted}`;
    this.quick.mount(folder, files);
    this.slow?.mount(folder, files);
    return folder;
  }

  ask(kind, question) {
    return this.quick.ask(kind, question);
  }

  /** Ask `jobs` one after the other, each announced and answered; a later call takes the place of what still waits. */
  async search(jobs, question, onKind, onAnswer) {
    this.next = { jobs: [...jobs], question };
    if (this.searching) {
      this.overdue ??= setTimeout(() => this.slow.stop(), OVERDUE - (performance.now() - this.since));
      return;
    }
    this.searching = true;
    for (let kind; (kind = this.next?.jobs.shift()); ) {
      const mine = this.next;
      onKind(kind);
      this.since = performance.now();
      const answer = await this.slow.ask(kind, mine.question);
      clearTimeout(this.overdue);
      this.overdue = undefined;
      if (this.next === mine && answer) onAnswer(kind, answer);
    }
    this.searching = false;
    this.onIdle();
  }

  /** Show nothing of the search that runs, and begin none of those that wait. */
  drop() {
    this.next = null;
  }

  /** The same, and end the search that runs. */
  stop() {
    this.drop();
    if (this.searching) this.slow.stop();
  }
}
