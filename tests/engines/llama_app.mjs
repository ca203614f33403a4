// Stock node-llama-cpp for llama_e2e.py: does what argv's JSON file asks for, and prints JSON.
//
//   {"model": path, "sequences": n, "together": whether all runs are decoded at once,
//    "runs": [{"restore": path} or {"tokens": ids}, "save": path, "suffix": ids, "greedy": n]}
//
// Each run has a sequence of its own. Its answer is {"position": tokens it has, "tokens": greedy}.

import {readFileSync} from "node:fs";
import {getLlama, LlamaLogLevel} from "node-llama-cpp";

const asked = JSON.parse(readFileSync(process.argv[2], "utf8"));
const llama = await getLlama({
  gpu: false, build: "never", skipDownload: true, usePrebuiltBinaries: true,
  logLevel: LlamaLogLevel.error
});
const model = await llama.loadModel({modelPath: asked.model});
const context = await model.createContext({
  contextSize: 2048, sequences: asked.sequences, flashAttention: true, threads: 1,
  experimentalKvCacheKeyType: "BF16", experimentalKvCacheValueType: "BF16"
});

async function answer(run) {
  const sequence = context.getSequence();
  if (run.restore) await sequence.loadStateFromFile(run.restore, {acceptRisk: true});
  else await sequence.evaluateWithoutGeneratingNewTokens(run.tokens);
  if (run.save) await sequence.saveStateToFile(run.save);
  const position = sequence.nextTokenIndex;
  const tokens = [];
  for await (const token of sequence.evaluate(run.suffix, {temperature: 0})) {
    if (tokens.push(token) >= run.greedy) break;
  }
  return {position, tokens};
}

let answers = [];
if (asked.together) answers = await Promise.all(asked.runs.map(answer));
else for (const run of asked.runs) answers.push(await answer(run));
console.log(JSON.stringify({release: llama.llamaCppRelease.release, answers}));
process.exit(0);
