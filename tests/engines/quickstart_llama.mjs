// Agents of stock node-llama-cpp for quickstart_llama.py. Does what argv's JSON file asks for:
//
//   {"model": path, "context": tokens of a sequence, "count": tokens of each agent,
//    "prefill": {"tokens": ids, "save": path},                          or
//    "agents": [{"restore": path or null, "suffix": ids}]}
//
// All agents decode together, each in a sequence of its own. Prints {"ms": time of the decoding,
// "rss": bytes of the process, "agents": [[[token, its probability, the next best, its own]]]}, or
// {"ms": time of the prefill, "position": tokens}.

import {readFileSync} from "node:fs";
import {getLlama, LlamaLogLevel} from "node-llama-cpp";

const asked = JSON.parse(readFileSync(process.argv[2], "utf8"));
const llama = await getLlama({
  gpu: false, build: "never", skipDownload: true, usePrebuiltBinaries: true,
  logLevel: LlamaLogLevel.error
});
const model = await llama.loadModel({modelPath: asked.model});
const context = await model.createContext({
  contextSize: asked.context, sequences: asked.agents?.length ?? 1, flashAttention: true,
  threads: 1, experimentalKvCacheKeyType: "BF16", experimentalKvCacheValueType: "BF16"
});

async function decode(sequence, suffix) {
  const answer = [];
  const tokens = sequence.evaluateWithMetadata(suffix, {probabilities: true}, {temperature: 0});
  for await (const {token, probabilities} of tokens) {
    const [[first, p], [second, q]] = [...probabilities].sort((a, b) => b[1] - a[1]);
    if (first !== token) throw new Error(`token ${token} is not the most likely, ${first}`);
    if (answer.push([token, p, second, q]) >= asked.count) return answer;
  }
}

if (asked.prefill) {
  const sequence = context.getSequence();
  const begin = performance.now();
  await sequence.evaluateWithoutGeneratingNewTokens(asked.prefill.tokens);
  const ms = performance.now() - begin;
  await sequence.saveStateToFile(asked.prefill.save);
  console.log(JSON.stringify({ms, position: sequence.nextTokenIndex}));
} else {
  const sequences = asked.agents.map(() => context.getSequence());
  for (const [i, agent] of asked.agents.entries()) {
    if (agent.restore) await sequences[i].loadStateFromFile(agent.restore, {acceptRisk: true});
  }
  const begin = performance.now();
  const agents = await Promise.all(
    asked.agents.map((agent, i) => decode(sequences[i], agent.suffix)));
  console.log(JSON.stringify({
    ms: performance.now() - begin, rss: process.memoryUsage().rss, agents
  }));
}
process.exit(0);
