// Keeps conversations in this browser (IndexedDB) and settings in local storage. Knows no DOM and nothing of chats.
//
// Where the browser keeps nothing (private windows, a full disk) everything stays in memory, and onTrouble hears one
// sentence. Other tabs hear of changes through a channel.

const NAME = "qwen3-chat";
const [HEADS, BODIES] = ["heads", "bodies"]; // for the list {id, title, updated}; and whole conversations
const SETTINGS = "qwen3.settings";
const THEME = "qwen3.theme"; // theme.js reads it before the page is drawn

export class Store {
  /** onTrouble(sentence): something will not be kept. onChange(id): another tab has changed this conversation. */
  constructor(onTrouble, onChange) {
    this.onTrouble = onTrouble;
    this.memory = new Map(); // id -> conversation that the database did not take, or all where there is none
    this.database = null;
    this.channel = new BroadcastChannel(NAME);
    this.channel.onmessage = (event) => onChange(event.data);
  }

  async open() {
    try {
      this.database = await new Promise((resolve, reject) => {
        const opening = indexedDB.open(NAME, 1);
        opening.onupgradeneeded = () => {
          opening.result.createObjectStore(HEADS, { keyPath: "id" });
          opening.result.createObjectStore(BODIES, { keyPath: "id" });
        };
        opening.onsuccess = () => resolve(opening.result);
        opening.onerror = () => reject(opening.error);
        opening.onblocked = () => reject(new Error("blocked"));
      });
      this.database.onversionchange = () => this.database.close();
    } catch {
      this.onTrouble("This browser keeps nothing for this page; conversations last until the tab is closed.");
    }
  }

  /** [{id, title, updated}], the latest first. */
  async list() {
    const kept = this.database ? await this.read(HEADS, (store) => store.getAll()) : [];
    const heads = [...kept.filter(({ id }) => !this.memory.has(id)), ...[...this.memory.values()].map(head)];
    return heads.sort((a, b) => b.updated - a.updated);
  }

  async load(id) {
    const kept = this.memory.get(id) ?? (this.database && (await this.read(BODIES, (store) => store.get(id))));
    return kept ?? null;
  }

  async save(conversation) {
    const kept = await this.write(conversation.id, (heads, bodies) => {
      heads.put(head(conversation));
      bodies.put(conversation);
    });
    if (kept) this.memory.delete(conversation.id);
    else this.memory.set(conversation.id, conversation);
  }

  async remove(id) {
    this.memory.delete(id);
    await this.write(id, (heads, bodies) => {
      heads.delete(id);
      bodies.delete(id);
    });
  }

  read(name, ask) {
    return new Promise((resolve, reject) => {
      const asked = ask(this.database.transaction(name).objectStore(name));
      asked.onsuccess = () => resolve(asked.result);
      asked.onerror = () => reject(asked.error);
    });
  }

  /** Whether the database has taken it. */
  async write(id, change) {
    if (!this.database) return false;
    try {
      await new Promise((resolve, reject) => {
        const transaction = this.database.transaction([HEADS, BODIES], "readwrite");
        transaction.oncomplete = resolve;
        transaction.onabort = () => reject(transaction.error);
        change(transaction.objectStore(HEADS), transaction.objectStore(BODIES));
        transaction.commit(); // at once: without it, a page that is closed before it hears of the end loses it
      });
      this.channel.postMessage(id);
      return true;
    } catch (error) {
      const full = error?.name === "QuotaExceededError";
      const sentence = full
        ? "The browser's space for this page is full; export or delete conversations, or this one is lost with the tab."
        : `This conversation could not be kept (${error?.message ?? "the browser refused"}); export it before you close the tab.`;
      if (!this.memory.has(id)) this.onTrouble(sentence); // once for each
      return false;
    }
  }
}

function head({ id, title, updated }) {
  return { id, title, updated };
}

/** What new conversations begin with: `defaults` with what was chosen last. */
export function loadSettings(defaults) {
  try {
    const kept = JSON.parse(localStorage.getItem(SETTINGS) ?? "{}");
    return { ...defaults, ...Object.fromEntries(Object.entries(kept).filter(([name]) => name in defaults)) };
  } catch {
    return { ...defaults };
  }
}

export function saveSettings(settings) {
  keep(SETTINGS, JSON.stringify(settings));
}

export function loadTheme() {
  try {
    return localStorage.getItem(THEME) ?? "auto";
  } catch {
    return "auto";
  }
}

export function saveTheme(theme) {
  keep(THEME, theme);
}

function keep(name, value) {
  try {
    localStorage.setItem(name, value);
  } catch {
    // then it is forgotten with the tab
  }
}
