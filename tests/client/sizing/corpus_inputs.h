// A corpus for tests of plans: V2-Lite's rows, 100 M tokens, and one kind of machine.

#pragma once

#include "client/sizing/corpus_plan.h"
#include "proto/named_models.h"

namespace ckv::test {

// Calls of 16 query rows over 2048 tokens take 16 us to probe, 1.4 us to move and 110 us to
// compute.
inline CorpusPlanInput MadeCorpus() {
  CorpusPlanInput input;
  input.corpus.geometry = FindModel("deepseek-v2-lite")->geometry;
  input.corpus.tokens = 1e8;
  input.corpus.replicas = 2;
  input.corpus.domains = 2;
  input.load.agents = 64;
  input.load.steps_per_s = 20;
  input.load.query_rows = 16;
  input.load.context_tokens = 2048;
  input.load.session_steps = 100;
  input.goal.p99_us = 1000;
  input.goal.utilisation_max = 0.9;
  input.requesters.count = 8;
  input.requesters.network_bytes_per_s = 25e9;
  input.requesters.here.merge_per_row_us = 0.01;
  PlanMachine machine;
  machine.name = "made";
  machine.count_max = 512;
  machine.memory_bytes = 1e12;
  machine.network_bytes_per_s = 25e9;
  machine.price_per_hour = 2;
  machine.lane.fabric = FabricConstants{16, 25e9, 0};
  machine.lane.wire_share = 1;
  machine.lane.compute.curve.base_us = 7.6;
  machine.lane.compute.curve.anchor_count = 1;
  machine.lane.compute.curve.anchors[0] = {16, 0.05};
  input.machines = {machine};
  return input;
}

}  // namespace ckv::test
