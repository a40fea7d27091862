// Search runs in a worker, which browsers refuse to pages that are read from a disk. There a hidden
// frame runs the worker's script in its stead. The theme knows such a thing by the name IFrameWorker.

class FrameWorker extends EventTarget {
  constructor(url) {
    super();
    this.frame = document.createElement("iframe");
    this.frame.hidden = true;
    document.body.append(this.frame);
    const inside = this.frame.contentWindow;
    // What the script says goes to whoever listens to the worker.
    inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
    this.loaded = new Promise((resolve, reject) => {
      const script = inside.document.createElement("script");
      script.onload = resolve;
      script.onerror = () => reject(new Error(`cannot load ${url}`));
      script.src = url;
      inside.document.body.append(script);
    });
  }

  async postMessage(data) {
    await this.loaded;
    const inside = this.frame.contentWindow;
    inside.dispatchEvent(new inside.MessageEvent("message", { data }));
  }

  terminate() {
    this.frame.remove();
  }
}

if (location.protocol === "file:") {
  window.IFrameWorker = FrameWorker;
  window.Worker = FrameWorker;
}
