// The official openai package of npm against a server: models, chat, stream, helper, completions, errors.
// Usage: node --input-type=module - URL/v1 MODEL < openai_client.mjs, in a folder with node_modules/openai.
import assert from "node:assert/strict";
import OpenAI from "openai";

const [baseURL, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
const asked = { model, messages: [{ role: "user", content: "Tell me of a fox." }], max_tokens: 16, temperature: 0 };

const models = await client.models.list();
assert.deepEqual(models.data.map((each) => each.id), [model]);

const plain = await client.chat.completions.create(asked);
assert.equal(plain.choices[0].finish_reason, "length");
assert.equal(plain.usage.completion_tokens, 16);

let text = "";
for await (const chunk of await client.chat.completions.create({ ...asked, stream: true })) {
  text += chunk.choices[0]?.delta?.content ?? "";
}
assert.equal(text, plain.choices[0].message.content);

const helper = client.chat.completions.stream(asked);
const final = await helper.finalChatCompletion().catch((error) => {
  assert.match(String(error), /length/);
  return helper.currentChatCompletionSnapshot;
});
assert.equal(final.choices[0].message.content, text);

const completed = await client.completions.create({ model, prompt: "The fox", max_tokens: 4, temperature: 0, n: 2 });
assert.deepEqual(completed.choices.map((choice) => choice.index), [0, 1]);

await assert.rejects(client.chat.completions.create({ ...asked, temperature: -1 }), OpenAI.BadRequestError);
await assert.rejects(client.models.retrieve("none"), OpenAI.NotFoundError);
console.log("openai-node: ok");
