// Adds the metrics of a requester to a page, from one copy of its counters: calls and retries, the
// local row cache, failures, latency and the errors of the cost model, then each holder. Holders
// are those that it already has: a scrape makes no calls.

#include "server/web/metrics_requester.h"

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "transport/fabric.h"

namespace ckv {
namespace {

using Page = MetricsPage;

void AddPeers(const std::vector<HolderView>& holders, Page& page) {
  const auto family = [&](std::string_view name, std::string_view help, auto value) {
    page.Family(MetricType::Gauge, name, help);
    for (const HolderView& holder : holders)
      page.Add({{"holder", holder.member.id.name}}, value(holder));
  };
  page.Family(MetricType::Gauge, "ckv_requester_lanes",
              "Lanes open to a holder, under the fabric that was chosen for it last.");
  for (const HolderView& holder : holders) {
    page.Add(
        {{"holder", holder.member.id.name}, {"fabric", std::string(FabricName(holder.fabric))}},
        holder.lane_count);
  }
  family("ckv_requester_holder_connected",
         "1: a lane to the holder is up and none was found broken since.",
         [](const HolderView& holder) { return holder.connected ? 1 : 0; });
  family("ckv_requester_holder_fallback",
         "1: lanes to the holder are tcp where they should be verbs; ckvctl status shows why.",
         [](const HolderView& holder) { return holder.fallback.empty() ? 0 : 1; });
  family("ckv_requester_holder_in_flight", "Requests posted to the holder and not answered.",
         [](const HolderView& holder) { return holder.in_flight; });
  family("ckv_requester_holder_probe_seconds",
         "Round trip without payload, as last measured. If 0, it is not measured yet.",
         [](const HolderView& holder) { return holder.constants.t_probe_us / 1e6; });
  family("ckv_requester_holder_bandwidth_bytes_per_second",
         "Bandwidth of transfers, as last measured. If 0, it is not measured yet.",
         [](const HolderView& holder) { return holder.constants.bandwidth_bytes_per_s; });
  // If nothing is known there is no sample: 0 would say that the model is exact.
  page.Family(
      MetricType::Gauge, "ckv_requester_holder_model_error_ratio",
      "How far predicted route times are off: the median of |measured / predicted - 1| over "
      "the last 64 attends of one frame. Above 0.25 for long: run ckvctl calibrate.");
  for (const HolderView& holder : holders) {
    if (holder.model_error) page.Add({{"holder", holder.member.id.name}}, *holder.model_error);
  }
}

void AddLocalCache(const RequesterStats& stats, Page& page) {
  page.Gauge("ckv_requester_local_cache_bytes",
             "Memory of cached chunks, mapped ones included, of requester.local_cache_bytes.",
             stats.local_cache.bytes);
  page.Gauge("ckv_requester_local_cache_chunks", "Chunks in the local row cache.",
             stats.local_cache.chunk_count);
  page.Counter("ckv_requester_prefetches_total",
               "Prefetches of chunk ranges, failed ones included.",
               stats.local_cache.prefetch_count);
  page.Counter(
      "ckv_requester_prefetches_failed_total",
      "Prefetches that failed. The contexts route instead; the log has the reason at level "
      "debug.",
      stats.local_cache.prefetch_failed_count);
  page.Counter("ckv_requester_local_cache_evictions_total",
               "Chunk ranges evicted for others. A rate close to that of prefetches: raise "
               "requester.local_cache_bytes.",
               stats.local_cache.eviction_count);
  page.Counter("ckv_requester_prefetched_bytes_total", "Bytes of prefetched rows.",
               stats.local_cache.prefetched_bytes);
  page.Counter("ckv_requester_mapped_bytes_total",
               "Bytes of rows of holders on this host, mapped instead of copied.",
               stats.local_cache.mapped_bytes);
  page.Counter("ckv_requester_routed_seconds_total",
               "Time lost by routing what could have been cached, by the cost model.",
               stats.local_cache.routed_us / 1e6);
  page.Counter("ckv_requester_local_cache_saved_seconds_total",
               "Time saved by rows in the local row cache, by the cost model.",
               stats.local_cache.saved_us / 1e6);
  page.Counter("ckv_requester_prefetch_seconds_total", "Time of all prefetches, by the cost model.",
               stats.local_cache.prefetched_us / 1e6);
  page.Counter("ckv_requester_reused_tokens_total",
               "Tokens of contexts that were opened. Without their rows each would have been "
               "prefilled again.",
               stats.reused_token_count);
  page.Counter("ckv_requester_recomputed_tokens_total",
               "Tokens recomputed by contexts' own functions.",
               stats.local_cache.recomputed_token_count);
  page.Family(
      MetricType::Counter, "ckv_requester_decisions_total",
      "Decisions on chunk ranges of contexts of policy auto and cache, by what is done and "
      "why. Many of constants_unknown: a holder cannot be measured; the log has the reason at "
      "level debug.");
  for (size_t primitive = 0; primitive < kPrimitiveCount; ++primitive) {
    for (size_t reason = 0; reason < kPrefetchReasonCount; ++reason) {
      page.Add({{"primitive", std::string(PrimitiveName(static_cast<Primitive>(primitive)))},
                {"reason", std::string(PrefetchReasonName(static_cast<PrefetchReason>(reason)))}},
               static_cast<double>(stats.local_cache.decisions[primitive][reason]));
    }
  }
}

void AddRequesterLatency(const RequesterStats& stats, const std::vector<HolderView>& holders,
                         Page& page) {
  const RequesterLatency& latency = stats.latency;
  page.Histogram(
      "ckv_requester_call_seconds",
      "Time of calls that succeeded, by what they did: route, attends that queried a "
      "holder; cached, attends of rows in the local row cache; fetch, rows for a caller; "
      "prefetch, slices of rows prefetched in the background; local, rows recomputed.");
  page.Add({{"primitive", "route"}}, latency.route);
  page.Add({{"primitive", "cached"}}, latency.cached);
  page.Add({{"primitive", "fetch"}}, latency.fetch);
  page.Add({{"primitive", "prefetch"}}, latency.prefetch);
  page.Add({{"primitive", "local"}}, stats.local_cache.recompute);
  page.Histogram("ckv_requester_lane_seconds",
                 "Time that frames and their replies were on a lane: the round trip less the times "
                 "that the holder reports for waiting and computing.");
  for (const FabricKind kind : kFabrics)
    page.Add({{"fabric", std::string(FabricName(kind))}}, latency.lanes[static_cast<size_t>(kind)]);
  RatioCounts route, prefetch;
  for (const HolderView& holder : holders) {
    route.Add(holder.route_ratios);
    prefetch.Add(holder.prefetch_ratios);
  }
  page.Histogram(
      "ckv_requester_measured_over_predicted_ratio",
      "Measured time over the time that the cost model had predicted: of attends that "
      "were one frame, and of slices that were prefetched. Far from 1 for long: run ckvctl "
      "calibrate.");
  page.Add({{"primitive", "route"}}, route);
  page.Add({{"primitive", "prefetch"}}, prefetch);
}

}  // namespace

void AddRequester(const WebSources& sources, MetricsPage& page) {
  const RequesterStats stats = sources.requester->Stats();
  const std::vector<HolderView> holders = sources.requester->KnownHolders();
  if (sources.attend_count) {
    page.Counter("ckv_requester_attends_total", "Attends over gRPC, by calls and by streams.",
                 sources.attend_count());
    page.Counter("ckv_requester_attend_errors_total", "Attends over gRPC that failed.",
                 sources.attend_error_count());
  }
  page.Counter("ckv_requester_retries_total",
               "Requests sent again as an overloaded holder asked. If the rate is near a tenth "
               "of all requests, the fleet is too small.",
               stats.retry_count);
  page.Counter("ckv_requester_retries_refused_total",
               "Retries not made because a tenth of all requests were retries: callers saw "
               "RESOURCE_EXHAUSTED.",
               stats.retry_refused_count);
  page.Counter("ckv_requester_fetches_total",
               "Fetches of rows, of selected rows and into caches, failed ones included.",
               stats.fetch_count);
  page.Counter("ckv_requester_selects_total",
               "Selections of rows by scores of index keys, failed ones included.",
               stats.select_count);
  page.Counter("ckv_requester_explains_total", "Explains, failed ones included.",
               stats.explain_count);
  AddLocalCache(stats, page);
  page.Counter(
      "ckv_requester_hedges_total",
      "Attends that were sent to replicas, too, because their holders were late. At most 1 "
      "in 20. A rate near that for long: a holder is slow, or stops now and then.",
      stats.hedge_count);
  page.Counter("ckv_requester_hedges_won_total", "Hedged attends that the replicas answered first.",
               stats.hedge_won_count);
  page.Counter("ckv_requester_failovers_total",
               "Calls that continued with a replica after a holder had failed them. An increase "
               "without a restart or an overload: ckvctl status shows which holder has trouble.",
               stats.failover_count);
  page.Counter("ckv_requester_reopens_total",
               "Sessions opened again for a call because the holder's lane broke or its epoch had "
               "moved on. A few for each restart; a steady rate: a network or a holder that "
               "fails and recovers.",
               stats.reopen_count);
  page.Counter("ckv_requester_returns_total",
               "Attempts made again after a wait for a holder to return, because no replica was "
               "left. Any increase: for a moment, no holder could answer.",
               stats.return_count);
  page.Counter("ckv_requester_lost_seconds_total",
               "Time before the last attempts of attends that succeeded: failed attempts, and "
               "waits for holders. It is part of ckv_requester_call_seconds.",
               static_cast<double>(stats.lost.count()) / 1e9);
  page.Counter("ckv_requester_discarded_replies_total", "Replies to calls that had already ended.",
               stats.discarded_reply_count);
  page.Counter("ckv_requester_rdma_fallbacks_total",
               "Lanes opened over tcp that should be of verbs. Any increase: repair RDMA, or take "
               "verbs out of the fabrics.",
               stats.rdma_fallback_count);
  if (sources.directory_connected) {
    page.Gauge("ckv_requester_directory_connected",
               "1: changes of corpora arrive as they happen. 0 for long: the directory is away.",
               sources.directory_connected() ? 1 : 0);
  }
  AddRequesterLatency(stats, holders, page);
  AddPeers(holders, page);
}

}  // namespace ckv
