// The official openai package of npm against a server: models, chat, stream, helpers, parsed answers, the tools loop,
// completions, errors.
// Usage: node --input-type=module - URL/v1 MODEL < FILE, in a folder with the packages of package.json.
import assert from "node:assert/strict";
import OpenAI from "openai";
import { zodResponseFormat, zodFunction } from "openai/helpers/zod";
import { z } from "zod";

const [baseURL, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
const asked = { model, messages: [{ role: "user", content: "Tell me of a fox." }], max_tokens: 16, temperature: 0 };

const models = await client.models.list();
assert.deepEqual(models.data.map((each) => each.id), [model]);

const plain = await client.chat.completions.create(asked);
assert.equal(plain.choices[0].finish_reason, "length");
assert.equal(plain.usage.completion_tokens, 16);

let text = "";
let usage;
const options = { include_usage: true };
for await (const chunk of await client.chat.completions.create({ ...asked, stream: true, stream_options: options })) {
  text += chunk.choices[0]?.delta?.content ?? "";
  usage = chunk.usage ?? usage;
}
assert.equal(text, plain.choices[0].message.content);
assert.equal(usage.completion_tokens, 16);

const helper = client.chat.completions.stream(asked);
const final = await helper.finalChatCompletion().catch((error) => {
  assert.match(String(error), /length/);
  return helper.currentChatCompletionSnapshot;
});
assert.equal(final.choices[0].message.content, text);

// Structured output, plain and streamed: parsed by the package from its own schema.
const Person = z.object({
  name: z.string().max(8),
  colour: z.enum(["red", "blue"]),
  age: z.number().int().min(0).max(99),
});
const format = zodResponseFormat(Person, "person");
const formed = { ...asked, max_tokens: 1500, temperature: 0.8, seed: 3, response_format: format };
const parsed = (await client.chat.completions.parse(formed)).choices[0].message.parsed;
Person.parse(parsed);
const streamed = await client.chat.completions.stream(formed).finalChatCompletion();
assert.deepEqual(streamed.choices[0].message.parsed, parsed);

// The tools loop: a forced call, what it gives, and the answer behind it.
const cities = [];
const weather = zodFunction({
  name: "weather",
  description: "Tells the weather of a city.",
  parameters: z.object({ city: z.enum(["Rome", "Oslo"]) }),
  function: ({ city }) => (cities.push(city), `sunny in ${city}`),
});
const named = { type: "function", function: { name: "weather" } };
for (const stream of [false, true]) {
  const runner = client.chat.completions.runTools({ ...asked, max_tokens: 100, stream, tools: [weather], tool_choice: named });
  await runner.done();
  const roles = runner.messages.map((message) => message.role);
  assert.deepEqual(roles, ["user", "assistant", "tool"], roles.join());
  const call = runner.messages[1].tool_calls[0];
  assert.equal(runner.messages[2].tool_call_id, call.id);
  const after = await client.chat.completions.create({ ...asked, messages: runner.messages, tools: [weather] });
  assert.equal(after.usage.completion_tokens, 16);
}
assert.equal(cities.length, 2);

const completed = await client.completions.create({ model, prompt: "The fox", max_tokens: 4, temperature: 0, n: 2 });
assert.deepEqual(completed.choices.map((choice) => choice.index), [0, 1]);

await assert.rejects(client.chat.completions.create({ ...asked, temperature: -1 }), OpenAI.BadRequestError);
await assert.rejects(client.models.retrieve("none"), OpenAI.NotFoundError);
console.log("openai-node: ok");
