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

  /** End what is running; what was asked is answered by null. */
  stop() {
    this.worker.terminate();
    const given = [...this.waiting.values()];
    this.begin();
    for (const answered of given) answered(null);
  }
}

export class Engine {
  constructor({ onStarted, onFailed }) {
    this.quick = new Lane(() => {
      // the other one starts when this one needs the processor no more
      this.slow ??= this.startSlow(onFailed);
      onStarted();
    }, onFailed);
    this.mounted = 0;
    this.next = null;
    this.asking = false;
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

  /** The answers to `jobs`, each given to `onAnswer(kind, answer)`; a later call takes the place of what still waits. */
  async search(jobs, question, onAnswer, onKind) {
    this.next = { jobs: [...jobs], question, onAnswer, onKind };
    if (this.asking) {
      // what takes long is not waited for by who asks something else
      if (performance.now() - this.since > 1500) this.slow.stop();
      return;
    }
    this.asking = true;
    while (this.next) {
      const mine = this.next;
      const kind = mine.jobs.shift();
      if (!kind) {
        this.next = null;
        break;
      }
      mine.onKind(kind);
      this.since = performance.now();
      const answer = await this.slow.ask(kind, mine.question);
      if (this.next === mine) mine.onAnswer(kind, answer);
    }
    this.asking = false;
  }

  /** Stop the search that runs, and those that wait. */
  stop() {
    this.next = null;
    this.slow.stop();
  }
}
