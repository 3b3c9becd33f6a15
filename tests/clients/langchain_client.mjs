// LangChain.js (ChatOpenAI) against a server: plain, streamed with usage, batch, tools, structured output.
// Usage: node --input-type=module - URL/v1 MODEL < FILE, in a folder with the packages of package.json.
import assert from "node:assert/strict";
import { HumanMessage, SystemMessage, ToolMessage } from "@langchain/core/messages";
import { tool } from "@langchain/core/tools";
import { ChatOpenAI } from "@langchain/openai";
import { z } from "zod";

const [baseURL, model] = process.argv.slice(2);
const options = { model, apiKey: "none", configuration: { baseURL }, temperature: 0, maxTokens: 24, maxRetries: 0 };
const chat = new ChatOpenAI(options);
const messages = [new SystemMessage("You are brief."), new HumanMessage("Tell me of a fox.")];

const plain = await chat.invoke(messages);
assert.ok(plain.content);
assert.equal(plain.usage_metadata.output_tokens, 24);
assert.equal(plain.response_metadata.finish_reason, "length");

let text = "";
let usage;
for await (const chunk of await chat.stream(messages)) {
  text += chunk.content;
  usage = chunk.usage_metadata ?? usage;
}
assert.equal(text, plain.content);
assert.equal(usage.output_tokens, 24);

const several = await chat.batch([messages, [new HumanMessage("And of a dog.")], messages]);
assert.deepEqual([several[0].content, several[2].content], [plain.content, plain.content]);

const longer = new ChatOpenAI({ ...options, maxTokens: 1500, temperature: 0.8 });
const Person = z.object({
  name: z.string().max(8),
  colour: z.enum(["red", "blue"]),
  age: z.number().int().min(0).max(99),
});
for (const method of ["jsonSchema", "functionCalling"]) {
  const structured = longer.withStructuredOutput(Person, { name: "person", method, strict: true });
  Person.parse(await structured.invoke("Make up a person."));
}

const weather = tool(async ({ city }) => `sunny in ${city}`, {
  name: "weather",
  description: "Tells the weather of a city.",
  schema: z.object({ city: z.enum(["Rome", "Oslo"]) }),
});
const question = new HumanMessage("How is the weather in Rome?");
const call = await longer.bindTools([weather], { tool_choice: "weather", strict: true }).invoke([question]);
assert.deepEqual(call.tool_calls.map((each) => each.name), ["weather"]);
const result = await weather.invoke(call.tool_calls[0]);
assert.ok(result instanceof ToolMessage && /sunny/.test(result.content));
const after = await chat.bindTools([weather]).invoke([question, call, result]);
assert.ok(after.usage_metadata.output_tokens > 0);
console.log("langchain-node: ok");
