// The panel with a conversation's settings, and the theme. Fields are those of DEFAULT_SETTINGS, by name.

import { forgetKey, hasKey } from "./api.js";
import { DEFAULT_SETTINGS, parseTools } from "./conversation.js";
import { loadTheme, saveTheme } from "./store.js";

const TEXTS = ["system", "thinking", "tools"];

export class Settings {
  /** onChange(settings): a person has changed something. */
  constructor(onChange) {
    this.onChange = onChange;
    this.dialog = document.getElementById("settings");
    this.form = document.getElementById("settings-form");
    this.toolsError = document.getElementById("tools-error");
    this.forget = document.getElementById("forget-key");
    this.settings = { ...DEFAULT_SETTINGS };
    document.getElementById("open-settings").addEventListener("click", () => this.open());
    document.getElementById("close-settings").addEventListener("click", () => this.dialog.close());
    this.dialog.addEventListener("click", (event) => event.target === this.dialog && this.dialog.close());
    this.form.addEventListener("submit", (event) => event.preventDefault());
    this.form.addEventListener("input", () => this.read());
    document.getElementById("reset-settings").addEventListener("click", () => {
      this.show(DEFAULT_SETTINGS);
      this.onChange({ ...DEFAULT_SETTINGS });
    });
    this.forget.addEventListener("click", () => {
      forgetKey();
      this.forget.hidden = true;
    });
    this.setTheme(loadTheme());
  }

  open() {
    this.forget.hidden = !hasKey();
    this.dialog.showModal();
  }

  /** Fills in the fields. */
  show(settings) {
    this.settings = { ...settings };
    for (const name of Object.keys(DEFAULT_SETTINGS)) this.form.elements[name].value = settings[name] ?? "";
    this.checkTools();
  }

  /** What the model samples with unless told otherwise, as the server's status has it. */
  showDefaults(defaults) {
    for (const [name, value] of Object.entries(defaults)) this.form.elements[name].placeholder = value ?? "off";
  }

  read() {
    const { elements } = this.form;
    for (const name of Object.keys(DEFAULT_SETTINGS)) {
      if (TEXTS.includes(name)) this.settings[name] = elements[name].value;
      // A number that is out of range is marked by the browser and not taken over.
      else if (elements[name].validity.valid) this.settings[name] = elements[name].value === "" ? null : elements[name].valueAsNumber;
    }
    this.checkTools();
    this.setTheme(elements.theme.value);
    this.onChange({ ...this.settings });
  }

  checkTools() {
    try {
      parseTools(this.form.elements.tools.value);
      this.toolsError.textContent = "";
    } catch (error) {
      this.toolsError.textContent = error.message;
    }
  }

  setTheme(theme) {
    this.form.elements.theme.value = theme;
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    saveTheme(theme);
  }
}
