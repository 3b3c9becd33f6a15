// What a conversation is, and what may be done to it. Pure, knows no DOM, no server, no storage.
//
// {id, title, named, updated, settings, messages}. Messages are OpenAI's, and an assistant's may have `info` beside:
// {state: "running" | "done" | "stopped" | "failed", error, finish, usage, timings, firstToken, thinking, total}: times
// in seconds, as this page measured them. `named`: a person chose the title.

import { oneLine } from "./text.js";

export const DEFAULT_SETTINGS = {
  system: "",
  thinking: "auto", // auto, on, off
  budget: null,
  temperature: null,
  top_p: null,
  top_k: null,
  min_p: null,
  max_tokens: null,
  seed: null,
  tools: "", // JSON, as it was typed
};
const ROLES = ["system", "developer", "user", "assistant", "tool"];

export function newConversation(settings) {
  return { id: newId(), title: "New conversation", named: false, updated: Date.now(), settings: { ...settings }, messages: [] };
}

/** Unique in this browser. crypto.randomUUID exists on HTTPS pages only. */
export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** A title from the first question, until a person gives one. */
export function updateTitle(conversation) {
  if (conversation.named) return;
  const first = conversation.messages.find((message) => message.role === "user");
  conversation.title = (first && oneLine(first.content, 60)) || "New conversation";
}

/** Calls of the last answer that have no result yet. */
export function openCalls(conversation) {
  const { messages } = conversation;
  const last = messages.findLastIndex((message) => message.role === "assistant");
  const known = new Set(messages.slice(last + 1).map((message) => message.tool_call_id));
  if (last < 0 || messages.slice(last + 1).some((message) => message.role === "user")) return [];
  return (messages[last].tool_calls ?? []).filter((call) => !known.has(call.id));
}

/** The body of a chat request, without `stream`. Throws a sentence where the settings cannot be sent. */
export function requestBody({ messages, settings }) {
  const body = { messages: [] };
  if (settings.system.trim()) body.messages.push({ role: "system", content: settings.system });
  body.messages.push(...messages.filter(says).map(plainMessage));
  for (const name of ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"]) {
    if (settings[name] !== null) body[name] = settings[name];
  }
  if (settings.thinking !== "auto") body.enable_thinking = settings.thinking === "on";
  if (settings.budget !== null && settings.thinking !== "off") body.thinking_budget = settings.budget;
  const tools = parseTools(settings.tools);
  if (tools.length) body.tools = tools;
  return body;
}

/** Answers of which nothing came are not part of what was said. */
function says(message) {
  return message.role !== "assistant" || Boolean(message.content || message.tool_calls?.length);
}

function plainMessage(message) {
  const { info, ...plain } = message;
  const text = plain.content ?? "";
  return { ...plain, content: text.toWellFormed?.() ?? text };
}

/** The tools of the panel as a list; a bare function or a bare list of functions will do. Throws a sentence. */
export function parseTools(text) {
  if (!text.trim()) return [];
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new Error(`The tools are not valid JSON: ${error.message}.`);
  }
  const tools = Array.isArray(value) ? value : (value?.tools ?? [value]);
  if (!Array.isArray(tools)) throw new Error("The tools must be a list of functions.");
  return tools.map((tool, index) => {
    const definition = tool?.type === undefined && typeof tool?.name === "string" ? { type: "function", function: tool } : tool;
    if (definition?.type !== "function" || typeof definition.function?.name !== "string") {
      throw new Error(`Tool ${index + 1} is no function with a name: {"type": "function", "function": {"name": ...}}.`);
    }
    return definition;
  });
}

// -------------------------------------------------------------------------------------------------------- export, import

/** The conversation as a file: OpenAI's messages, the system prompt first. */
export function exportConversation({ title, settings, messages }) {
  const system = settings.system.trim() ? [{ role: "system", content: settings.system }] : [];
  const tools = settings.tools.trim() ? { tools: JSON.parse(settings.tools) } : {};
  return JSON.stringify({ title, messages: [...system, ...messages.filter(says).map(plainMessage)], ...tools }, null, 2);
}

/** A conversation from such a file, or from a bare list of messages. Throws a sentence. */
export function importConversation(text, settings) {
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new Error(`The file is not valid JSON: ${error.message}.`);
  }
  const list = Array.isArray(value) ? value : value?.messages;
  if (!Array.isArray(list) || !list.length) throw new Error("The file has no messages: it must be a list of them, or have one as `messages`.");
  const messages = list.map(readMessage);
  const conversation = newConversation(settings);
  const system = messages.filter((message) => message.role === "system").map((message) => message.content);
  conversation.settings.system = system.join("\n\n");
  conversation.settings.tools = Array.isArray(value?.tools) ? JSON.stringify(value.tools, null, 2) : "";
  conversation.messages = messages.filter((message) => message.role !== "system");
  updateTitle(conversation);
  if (typeof value?.title === "string" && oneLine(value.title)) {
    Object.assign(conversation, { title: oneLine(value.title), named: true });
  }
  return conversation;
}

function readMessage(message, index) {
  const place = `Message ${index + 1}`;
  if (!ROLES.includes(message?.role)) throw new Error(`${place} has no role that is one of ${ROLES.join(", ")}.`);
  const result = { role: message.role === "developer" ? "system" : message.role, content: readContent(message.content, place) };
  const thought = message.reasoning_content ?? message.reasoning;
  if (typeof thought === "string" && thought) result.reasoning_content = thought;
  if (message.role === "tool") result.tool_call_id = String(message.tool_call_id ?? "");
  if (message.tool_calls?.length) {
    if (message.role !== "assistant" || !Array.isArray(message.tool_calls)) throw new Error(`${place} has tool calls but is no assistant's.`);
    result.tool_calls = message.tool_calls.map((call) => readCall(call, place));
  }
  if (message.role === "assistant") result.info = { state: "done" };
  return result;
}

function readContent(content, place) {
  if (content === null || content === undefined) return "";
  if (typeof content === "string") return content;
  const parts = Array.isArray(content) ? content : [content];
  if (!parts.every((part) => typeof part?.text === "string")) throw new Error(`${place} has content that is no text; only text can be read.`);
  return parts.map((part) => part.text).join("\n");
}

function readCall(call, place) {
  const { name, arguments: given } = call?.function ?? {};
  if (typeof name !== "string") throw new Error(`${place} has a tool call without a function's name.`);
  return {
    id: String(call.id ?? newId()),
    type: "function",
    function: { name, arguments: typeof given === "string" ? given : JSON.stringify(given ?? {}) },
  };
}
