#include "client/requester_stats.h"

#include <atomic>

#include "client/holders/counters.h"
#include "client/prefetch/prefetch_plan.h"

namespace ckv {
namespace {

LocalRowStats LocalRowStatsOf(const PrefetcherStats& stats) {
  return {.bytes = stats.local_cache_bytes,
          .bytes_max = stats.local_cache_bytes_max,
          .chunk_count = stats.local_cache_chunks,
          .prefetch_count = stats.prefetches,
          .prefetch_failed_count = stats.prefetches_failed,
          .eviction_count = stats.evictions,
          .prefetched_bytes = stats.prefetched_bytes,
          .mapped_bytes = stats.mapped_bytes,
          .routed_us = stats.routed_us,
          .saved_us = stats.saved_us,
          .prefetched_us = stats.prefetched_us,
          .recomputed_token_count = stats.recomputed_tokens,
          .recompute = stats.recompute,
          .decisions = stats.decisions};
}

RequesterLatency LatencyOf(const CallCounters& counters) {
  RequesterLatency latency = {counters.route.Read(),
                              counters.cached.Read(),
                              counters.fetch.Read(),
                              counters.prefetch.Read(),
                              {}};
  for (size_t i = 0; i < latency.lanes.size(); ++i) latency.lanes[i] = counters.lanes[i].Read();
  return latency;
}

}  // namespace

RequesterStats StatsOf(const CallCounters& counters, const PrefetcherStats& prefetcher,
                       size_t corpus_count_max) {
  const auto read = [](const auto& counter) { return counter.load(std::memory_order_relaxed); };
  return {.discarded_reply_count = read(counters.discarded),
          .rdma_fallback_count = read(counters.rdma_fallbacks),
          .retry_count = read(counters.retries),
          .retry_refused_count = read(counters.retries_refused),
          .failover_count = read(counters.failovers),
          .hedge_count = read(counters.hedges),
          .hedge_won_count = read(counters.hedges_won),
          .reopen_count = read(counters.reopens),
          .return_count = read(counters.returns),
          .lost = Duration(static_cast<int64_t>(read(counters.lost_ns))),
          .fetch_count = read(counters.fetches),
          .select_count = read(counters.selections),
          .explain_count = read(counters.explains),
          .reused_token_count = read(counters.reused_tokens),
          .local_cache = LocalRowStatsOf(prefetcher),
          .latency = LatencyOf(counters),
          .hottest = counters.corpora.Hottest(corpus_count_max)};
}

}  // namespace ckv
