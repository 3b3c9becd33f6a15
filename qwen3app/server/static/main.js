// Puts the page together: what a person does -> the conversation -> an answer -> the screen and the store.
//
// Owns which conversation is shown and which answers are being made; answers go on when another conversation is opened.

import { onKeyNeeded } from "./api.js";
import { Answer } from "./answer.js";
import { Composer } from "./composer.js";
import { DEFAULT_SETTINGS, exportConversation, importConversation, newConversation, updateTitle } from "./conversation.js";
import { Gauge } from "./gauge.js";
import { announce, askForKey, notify } from "./notices.js";
import { Settings } from "./settings.js";
import { Sidebar } from "./sidebar.js";
import { Store, loadSettings, saveSettings } from "./store.js";
import { count, oneLine, plural } from "./text.js";
import { Transcript } from "./transcript.js";

const SAVE_EVERY = 2000; // ms, while an answer comes
const TICK = 500; // ms between two looks at clocks on the screen
const LARGEST_IMPORT = 32_000_000; // bytes

class Page {
  constructor() {
    this.running = new Map(); // id of a conversation -> its Answer
    this.savedAt = new Map();
    this.moves = 0; // counts what comes on the screen, so that a conversation that loads slowly replaces nothing newer
    this.status = null;
    this.endNotice = () => {}; // of the conversation on the screen, with what would take its last change back
    this.store = new Store(notify, (id) => this.onOtherTab(id));
    this.transcript = new Transcript({
      edit: (message, text) => this.edit(message, text),
      retry: (message) => this.retry(message),
      begin: () => this.begin(),
      results: (messages) => this.say(...messages),
      example: (text) => this.say({ role: "user", content: text }),
    });
    this.composer = new Composer({
      onSend: (text) => this.say({ role: "user", content: text }),
      onStop: () => this.answer?.stop(),
      onThink: (on) => {
        this.changeSettings({ ...this.current.settings, thinking: on ? "on" : "off" });
        this.settings.show(this.current.settings);
      },
    });
    this.sidebar = new Sidebar({
      onOpen: (id) => this.open(id),
      onRename: (id, title) => this.rename(id, title),
      onDelete: (id) => this.remove(id),
    });
    this.settings = new Settings((settings) => this.changeSettings(settings));
    this.gauge = new Gauge((status) => this.onStatus(status));
    onKeyNeeded(askForKey);
    this.listen();
  }

  listen() {
    const onClick = (id, listener) => document.getElementById(id).addEventListener("click", listener);
    const file = document.getElementById("import-file");
    onClick("new", () => this.begin());
    onClick("import", () => file.click());
    onClick("export", () => this.exportCurrent());
    file.addEventListener("change", () => this.importFile(file));
    addEventListener("pagehide", () => this.leave());
    setInterval(() => this.answer?.thinking && this.transcript.update(), TICK);
  }

  /** The page is being closed: what has come is kept. Stopped, as the connections of a closed page break off. */
  leave() {
    for (const answer of this.running.values()) {
      answer.stop();
      this.store.save(answer.conversation);
    }
  }

  /** The answer that the conversation on the screen waits for. */
  get answer() {
    return this.running.get(this.current.id) ?? null;
  }

  async start() {
    const id = location.hash.slice(1);
    this.show(newConversation(loadSettings(DEFAULT_SETTINGS)));
    if (id) history.replaceState(null, "", `#${id}`); // for a reload before it is open
    const { moves } = this;
    await this.store.open();
    if (id && moves === this.moves) await this.open(id);
    await this.showList();
    this.composer.focus();
    document.documentElement.dataset.ready = "true";
    await this.gauge.start();
  }

  // ------------------------------------------------------------------------------------------------------- conversations

  show(conversation) {
    this.moves += 1;
    if (conversation.id !== this.current?.id) this.endNotice();
    this.current = conversation;
    for (const message of conversation.messages) {
      // The tab was closed while it came.
      if (message.info?.state === "running" && this.answer?.message !== message) message.info.state = "stopped";
    }
    history.replaceState(null, "", conversation.messages.length ? `#${conversation.id}` : location.pathname);
    this.transcript.show(conversation, this.answer);
    this.settings.show(conversation.settings);
    this.composer.setRunning(Boolean(this.answer));
    this.composer.catchFocus();
    this.showAround();
  }

  showAround() {
    const { title, messages, settings } = this.current;
    document.getElementById("title").textContent = title;
    document.title = messages.length ? `${title} \u2013 qwen3-8b` : "qwen3-8b";
    this.composer.setThinking(settings.thinking === "auto" ? (this.status?.thinking ?? true) : settings.thinking === "on");
    const used = messages.findLast((message) => message.info?.usage)?.info.usage.total_tokens;
    const most = this.status?.max_context;
    document.getElementById("context").textContent = used && most ? `${count(used)} of ${count(most)} tokens` : "";
  }

  async showList() {
    this.sidebar.show(await this.store.list(), this.current.id, this.running);
  }

  begin() {
    this.show(newConversation(loadSettings(DEFAULT_SETTINGS)));
    this.sidebar.toggle(false, { focus: false });
    this.showList();
    this.composer.focus();
  }

  async open(id) {
    this.moves += 1;
    const { moves } = this;
    const conversation = this.running.get(id)?.conversation ?? (await this.store.load(id));
    if (!conversation || moves !== this.moves) return;
    this.show(withSettings(conversation));
    this.sidebar.toggle(false, { focus: false });
    this.composer.focus();
    await this.showList();
  }

  async rename(id, title) {
    const name = oneLine(title);
    const conversation = id === this.current.id ? this.current : (this.running.get(id)?.conversation ?? (await this.store.load(id)));
    if (conversation && name && name !== conversation.title) {
      Object.assign(conversation, { title: name, named: true });
      await this.store.save(conversation);
      this.showAround();
    }
    await this.showList();
  }

  async remove(id) {
    this.abandon(id);
    const wasShown = id === this.current.id;
    const conversation = wasShown ? this.current : await this.store.load(id);
    await this.store.remove(id);
    if (id === this.current.id) this.begin();
    else await this.showList();
    this.composer.catchFocus();
    if (!conversation) return;
    const { moves } = this;
    const undo = async () => {
      await this.store.save(conversation);
      // Who has gone on elsewhere meanwhile, if only with half a question, stays there.
      if (wasShown && moves === this.moves && !this.composer.text) await this.open(id);
      else await this.showList();
      this.composer.catchFocus();
    };
    notify(`\u201c${conversation.title}\u201d is deleted.`, { label: "Undo", run: undo });
  }

  async onOtherTab(id) {
    if (id === this.current.id && !this.answer) {
      const conversation = await this.store.load(id);
      const { current, answer } = this; // while it was read, a person may have gone on
      if (id === current.id && !answer && conversation?.updated >= current.updated) this.show(withSettings(conversation));
    }
    await this.showList();
  }

  changeSettings(settings) {
    this.current.settings = settings;
    saveSettings(settings);
    this.showAround();
    if (this.current.messages.length) this.store.save(this.current);
  }

  exportCurrent() {
    if (!this.current.messages.length) return notify("There is nothing to export yet.");
    let text;
    try {
      text = exportConversation(this.current);
    } catch (error) {
      return notify(error.message);
    }
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
    link.download = `${this.current.title.replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 50) || "conversation"}.json`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  }

  async importFile(input) {
    const [file] = input.files;
    input.value = "";
    if (!file) return;
    try {
      if (file.size > LARGEST_IMPORT) throw new Error("The file is larger than 32 MB.");
      const conversation = importConversation(await file.text(), loadSettings(DEFAULT_SETTINGS));
      await this.store.save(conversation);
      await this.open(conversation.id);
    } catch (error) {
      notify(error.message);
    }
  }

  // -------------------------------------------------------------------------------------------------------------- answers

  /** Adds messages of the person's side and has them answered. */
  say(...messages) {
    if (this.answer) return;
    this.endNotice(); // one does not go on from what one would take back
    this.add(...messages);
  }

  add(...messages) {
    this.current.messages.push(...messages);
    updateTitle(this.current);
    this.ask();
  }

  edit(message, text) {
    this.cut(message, "The conversation goes on from the edited message.");
    this.add({ role: "user", content: text });
  }

  retry(message) {
    if (this.cut(message, "The answer is replaced.")) this.ask();
  }

  /** Drops this message and all behind it; a notice takes it back. */
  cut(message, sentence) {
    const conversation = this.current;
    this.abandon(conversation.id);
    const index = conversation.messages.indexOf(message);
    if (index < 0) return false;
    const before = conversation.messages;
    conversation.messages = before.slice(0, index);
    const worth = before.slice(index).some((dropped) => dropped.role !== "assistant" || dropped.content || dropped.tool_calls);
    const undo = () => {
      this.abandon(conversation.id);
      conversation.messages = before;
      this.store.save(conversation);
      this.show(conversation);
      this.showList();
    };
    this.endNotice();
    if (worth) this.endNotice = notify(sentence, { label: "Undo", run: undo });
    return true;
  }

  /** Stops the answer of a conversation; nobody wants to hear of its end. */
  abandon(id) {
    const answer = this.running.get(id);
    this.running.delete(id);
    answer?.stop();
  }

  ask() {
    const conversation = this.current;
    const answer = new Answer(conversation, {
      onUpdate: () => this.onUpdate(answer),
      onEnd: () => this.onEnd(answer),
    });
    this.running.set(conversation.id, answer);
    conversation.updated = Date.now();
    answer.run();
    this.show(conversation);
    this.save(conversation);
    announce("The question is sent.");
  }

  onUpdate(answer) {
    const { conversation } = answer;
    if (conversation === this.current) {
      this.transcript.update();
      if (answer.thinking && !answer.announced) announce("The model is thinking.");
      answer.announced ||= answer.thinking;
    }
    if (Date.now() - (this.savedAt.get(conversation.id) ?? 0) > SAVE_EVERY) this.save(conversation);
  }

  onEnd(answer) {
    const { conversation } = answer;
    if (this.running.get(conversation.id) !== answer) return; // it was abandoned
    this.running.delete(conversation.id);
    conversation.updated = Date.now();
    if (conversation === this.current) {
      this.transcript.end();
      this.composer.setRunning(false);
      this.showAround();
      announce(endSentence(answer));
    }
    this.save(conversation);
    this.gauge.look();
  }

  async save(conversation) {
    this.savedAt.set(conversation.id, Date.now());
    await this.store.save(conversation);
    await this.showList();
  }

  onStatus(status) {
    this.status = status;
    this.settings.showDefaults(status.defaults);
    this.transcript.greet(status);
    this.showAround();
  }
}

/** With the fields that a conversation of an older page lacks. */
function withSettings(conversation) {
  conversation.settings = { ...DEFAULT_SETTINGS, ...conversation.settings };
  return conversation;
}

function endSentence({ message, info }) {
  if (info.state === "failed") return info.error.message;
  if (info.state === "stopped") return "The answer is stopped.";
  if (message.tool_calls?.length) return "The model calls a tool and waits for its result.";
  return info.usage ? `The answer is complete: ${plural(info.usage.completion_tokens, "token")}.` : "The answer is complete.";
}

new Page().start();
