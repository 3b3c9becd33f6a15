// Vercel's AI SDK (@ai-sdk/openai-compatible) against a server: text, stream, structured output, a tools loop, errors.
// Usage: node --input-type=module - URL/v1 MODEL < FILE, in a folder with the packages of package.json.
import assert from "node:assert/strict";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const [baseURL, name] = process.argv.slice(2);
const features = { includeUsage: true, supportsStructuredOutputs: true };
const provider = createOpenAICompatible({ name: "qwen3", baseURL, apiKey: "none", ...features });
const model = provider.chatModel(name);
const asked = { model, prompt: "Tell me of a fox.", maxOutputTokens: 16, temperature: 0, maxRetries: 0 };

const plain = await generateText(asked);
assert.equal(plain.finishReason, "length");
assert.equal(plain.usage.outputTokens, 16);

const stream = streamText(asked);
let text = "";
for await (const part of stream.textStream) text += part;
assert.equal(text, plain.text);
assert.equal((await stream.usage).outputTokens, 16);

const Person = z.object({
  name: z.string().max(8),
  colour: z.enum(["red", "blue"]),
  age: z.number().int().min(0).max(99),
});
const formed = { ...asked, maxOutputTokens: 1500, temperature: 0.8, seed: 3, output: Output.object({ schema: Person }) };
const made = await generateText(formed);
Person.parse(made.output);
const parts = streamText(formed);
for await (const _ of parts.partialOutputStream);
assert.deepEqual(await parts.output, made.output);

const weather = tool({
  description: "Tells the weather of a city.",
  inputSchema: z.object({ city: z.enum(["Rome", "Oslo"]) }),
  execute: async ({ city }) => `sunny in ${city}`,
});
const calling = { ...asked, maxOutputTokens: 100, tools: { weather }, toolChoice: { type: "tool", toolName: "weather" } };
const called = await generateText({ ...calling, stopWhen: stepCountIs(1) });
assert.equal(called.finishReason, "tool-calls");
assert.match(called.toolResults[0].output, /sunny in (Rome|Oslo)/);
const calls = streamText({ ...calling, stopWhen: stepCountIs(1) });
for await (const _ of calls.fullStream);
assert.deepEqual((await calls.toolCalls).map((call) => call.input), called.toolCalls.map((call) => call.input));
// the call and its result go back as history
const question = { role: "user", content: "How is the weather?" };
const messages = [question, ...called.response.messages, { role: "user", content: "And?" }];
const after = await generateText({ ...asked, prompt: undefined, messages, tools: { weather } });
assert.ok(after.usage.outputTokens > 0);

const completed = await generateText({ ...asked, model: provider.completionModel(name) });
assert.equal(completed.usage.outputTokens, 16);

await assert.rejects(generateText({ ...asked, temperature: -1 }), (error) => {
  return APICallError.isInstance(error) && error.statusCode === 400 && /temperature/.test(error.message);
});
console.log("ai-sdk-node: ok");
