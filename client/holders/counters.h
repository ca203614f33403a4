// Counts events of a requester's calls, over all call contexts.

#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "client/holders/corpus_meter.h"
#include "proto/base/latency_histogram.h"
#include "transport/fabric.h"

namespace ckv {

// All accesses are relaxed: the counters are for people and metrics, and order nothing.
struct CallCounters {
  std::atomic<uint64_t> discarded{0};       // replies that no call waited for (I1)
  std::atomic<uint64_t> rdma_fallbacks{0};  // lanes on tcp that should use verbs
  std::atomic<uint64_t> retries{0};         // retries after an overloaded holder's hint
  // Retries not made in spite of a hint, because the budget was spent.
  std::atomic<uint64_t> retries_refused{0};
  std::atomic<uint64_t> failovers{0};      // attempts repeated with another replica
  std::atomic<uint64_t> hedges{0};         // attends sent to replicas, because holders were late
  std::atomic<uint64_t> hedges_won{0};     // those of them that the replicas answered first
  std::atomic<uint64_t> reopens{0};        // attempts repeated over a new session
  std::atomic<uint64_t> returns{0};        // attempts repeated after a wait for a holder
  std::atomic<uint64_t> lost_ns{0};        // time of failed attempts, in calls that succeeded
  std::atomic<uint64_t> fetches{0};        // calls that fetch ranges, selections, or into a cache
  std::atomic<uint64_t> selections{0};     // calls of SelectRows
  std::atomic<uint64_t> explains{0};       // calls of Explain
  std::atomic<uint64_t> reused_tokens{0};  // tokens of contexts that were opened

  // How long calls and lanes took (RequesterLatency, client/requester_stats.h).
  LatencyHistogram route, cached, fetch, prefetch;
  std::array<LatencyHistogram, kFabricKindEnd> lanes;
  CorpusMeter corpora;
};

}  // namespace ckv
